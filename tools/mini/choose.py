"""Measure a checkpoint on held-out training photos.

    python choose.py --data DATA --features FEATURES --checkpoint CHECKPOINT.safetensors --factors 1 0.5 0.25

A small prompt tuner of its own (one sign step of 0.005 on the context; TPT, SaLS, CoTS, E-CoTS by their formulas), so
that choosing does not depend on the package; the figures of the model card come from `cots run`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from bank import Bank
from open_clip.model import CLIP
from photos import SETS, class_names
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from tower import build, encode_tokens, fit_scale, project, rescaled, run_text, see
from train import alpha_of
from trunk import PREFIX, Tail, trained_stages
from vocabulary import Vocabulary, clean

STEP, SELECTED = 0.005, 6


def load_checkpoint(path: Path, vocab_size: int, device: str) -> CLIP:
    stages, tensors, model = trained_stages(path), load_file(path), build(vocab_size)
    model.visual.trunk = Tail(model.visual.trunk, stages) if stages else nn.Identity()
    own = model.state_dict()
    model.load_state_dict({k: v.float() for k, v in tensors.items() if k in own or not k.startswith(PREFIX)})
    return model.to(device).eval().requires_grad_(False)


def prompts(vocabulary: Vocabulary, names: list[str]) -> Tensor:
    return vocabulary.encode([f"a photo of a {clean(n)}." for n in names])


def ece(p: Tensor, y: Tensor, bins: int = 20) -> float:
    confidence, predicted = p.max(-1)
    place = (confidence * bins).ceil().clamp(1, bins).long()
    gap = torch.zeros(bins + 1, device=p.device).index_add_(0, place, (predicted == y).float() - confidence)
    return gap.abs().sum().item() / len(p)


def figures(p: Tensor, y: Tensor) -> dict[str, float]:
    return {
        "acc": 100 * (p.argmax(-1) == y).float().mean().item(),
        "conf": 100 * p.amax(-1).mean().item(),
        "ece": 100 * ece(p, y),
        "nll": nll_loss(p.clamp(min=1e-12).log(), y).item(),
    }


def entropy(z: Tensor) -> Tensor:
    return -(z.softmax(-1) * z.log_softmax(-1)).sum(-1)


def temperature(z: Tensor, target: Tensor) -> Tensor:
    """The tau of least mean squared gap of confidences over the selected views, on a grid; (B,V,K), (B,V) -> (B,)."""
    grid = torch.logspace(-0.7, 1.3, 81, device=z.device)
    gaps = torch.stack([((z / t).softmax(-1).amax(-1) - target).square().mean(-1) for t in grid])
    return grid[gaps.argmin(0)]


def tune(model: CLIP, tokens: Tensor, views: Tensor, scale: float, batch: int = 25) -> tuple[Tensor, Tensor]:
    """Zero-shot and adapted logits (B, V, K) of projected views (B, V, D): each sample takes its own step from the same
    context.
    """
    tokens = tokens[:, : int((tokens != 0).sum(1).max())]
    embedded, end = model.token_embedding(tokens), tokens.argmax(-1)

    def text(contexts: Tensor) -> Tensor:
        """Contexts (B, 4, width) -> features (B, K, D)."""
        n, k = len(contexts), len(embedded)
        x = torch.cat([embedded[:, :1], embedded[:, 5:]], 1).expand(n, -1, -1, -1)
        x = torch.cat([x[:, :, :1], contexts[:, None].expand(-1, k, -1, -1), x[:, :, 1:]], 2)
        return run_text(model, x.flatten(0, 1), end.repeat(n)).unflatten(0, (n, k))

    start = embedded[:1, 1:5]
    zeroshot, adapted = scale * views @ text(start)[0].T, []
    for z0, v in zip(zeroshot.split(batch), views.split(batch), strict=True):
        context = start.expand(len(v), -1, -1).clone().requires_grad_()
        best = entropy(z0).topk(SELECTED, largest=False).indices
        logits = scale * v[torch.arange(len(v), device=v.device)[:, None], best] @ text(context).mT
        mean = logits.log_softmax(-1).logsumexp(1) - torch.tensor(SELECTED).log()
        (gradient,) = torch.autograd.grad(-(mean.exp() * mean).sum(), context)
        with torch.no_grad():
            stepped = context * (1 - STEP * 0.01) - STEP * gradient / (gradient.abs() + 1e-8)
            adapted.append(scale * v @ text(stepped).mT)
    return zeroshot, torch.cat(adapted)


def spread(logits: Tensor) -> Tensor:
    return logits.amax(-1, keepdim=True) - logits.amin(-1, keepdim=True)


def methods(zeroshot: Tensor, adapted: Tensor, alpha: float) -> tuple[dict[str, Tensor], Tensor]:
    """Probabilities by method, and the temperatures of CoTS."""
    strong = entropy(adapted[:, 1:]).topk(SELECTED, largest=False).indices + 1
    rows = torch.arange(len(adapted), device=adapted.device)[:, None]
    z, target = adapted[rows, strong], zeroshot[rows, strong].softmax(-1).amax(-1)
    tau = temperature(z, target)[:, None]
    cots = (adapted[:, 0] / tau).softmax(-1)
    found = {
        "zeroshot": zeroshot[:, 0].softmax(-1),
        "tpt": adapted[:, 0].softmax(-1),
        "sals": (adapted[:, 0] * spread(zeroshot[:, 0]) / spread(adapted[:, 0])).softmax(-1),
        "cots": cots,
        "ecots": alpha * cots + (1 - alpha) * (z / tau[..., None]).softmax(-1).mean(1),
    }
    return found, tau[:, 0]


def reads_views(model: CLIP, vocabulary: Vocabulary, described: Tensor, names: list[str], labels: Tensor) -> float:
    """The share of changed held-out photos (M, A, D) whose way is picked by its caption among all ways, the class being
    given.
    """
    ways = [vocabulary.templates[w[0]] for w in vocabulary.described]
    tokens = torch.stack([vocabulary.encode([w.format(clean(n)) for w in ways]) for n in names])
    text = torch.stack([encode_tokens(model, t.to(described.device)) for t in tokens])
    found = torch.einsum("mad,mwd->maw", described, text[labels]).argmax(-1)
    return (found == torch.arange(len(ways), device=found.device)).float().mean().item()


def reads_pairs(model: CLIP, vocabulary: Vocabulary, bank: Bank, names: dict[str, list[str]], n: int = 500) -> float:
    """How often the mean of two held-out photos finds "a photo of a {a} and a {b}." among n such captions."""
    photos = torch.cat([see(model, bank.sets[s].held_views_MVF[:, 0]) for s in names])
    words = [clean(names[s][k]) for s in names for k in bank.sets[s].held_labels_M.tolist()]
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.randperm(len(words), generator=draw)[:n].tolist() for _ in range(2))
    captions = [f"a photo of a {words[i]} and a {words[j]}." for i, j in zip(first, second, strict=True)]
    text = encode_tokens(model, vocabulary.encode(captions).to(photos.device))
    found = (project(model, (photos[first] + photos[second]) / 2) @ text.T).argmax(1).tolist()
    return sum(captions[k] == c for k, c in zip(found, captions, strict=True)) / n


def measure(
    model: CLIP,
    bank: Bank,
    vocabulary: Vocabulary,
    names: dict[str, list[str]],
    factors: list[float],
    photos: int,
    trained: list[str],
    tuned: list[str],
) -> dict[str, Any]:
    """Held-out figures of one model: every list zero-shot, and prompt tuning of some at each factor."""
    device = bank.device
    torch.manual_seed(1)
    tokens = {s: prompts(vocabulary, n).to(device) for s, n in names.items()}
    listed = prompts(vocabulary, [leaf.names[0] for leaf in vocabulary.leaves[:1000]]).to(device)
    texts = {s: encode_tokens(model, t) for s, t in tokens.items()} | {"names": encode_tokens(model, listed)}
    held = {s: project(model, see(model, bank.sets[s].held_views_MVF)) for s in names}
    prototypes = bank.prototypes(torch.randint(1000, (4000,), device=device))
    teacher = bank.teacher(prototypes)
    images = [held[s][:, 0] for s in trained] + [project(model, prototypes)]
    targets = [bank.sets[s].held_labels_M for s in trained] + [teacher]
    scale = fit_scale(images, [texts[s] for s in trained] + [texts["names"]], targets)
    agree = (images[-1] @ texts["names"].T).argmax(1) == teacher.argmax(1)
    real = [(held[s][:, 0], bank.teacher(bank.sets[s].held_views_MVF[:, 0])) for s in names]
    same = [(x @ texts["names"].T).argmax(1) == q.argmax(1) for x, q in real]
    result: dict[str, Any] = {
        "scale": scale,
        "prototypes_agree": agree.float().mean().item(),
        "photos_agree": torch.cat(same).float().mean().item(),
        "names_alpha": alpha_of(texts["names"]).item(),
        "names_scale": fit_scale(images[-1:], [texts["names"]], [teacher]),
        "pairs": reads_pairs(model, vocabulary, bank, names),
    }
    for s in names:
        y, alpha = bank.sets[s].held_labels_M, alpha_of(texts[s]).item()
        described = project(model, see(model, bank.sets[s].held_described_MAF))
        result[s] = {
            "n": len(y),
            "alpha": alpha,
            "own_scale": fit_scale([held[s][:, 0]], [texts[s]], [y]),
            "views": reads_views(model, vocabulary, described, names[s], y),
            "all": figures((scale * held[s][:, 0] @ texts[s].T).softmax(-1), y),
        }
        pick = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:photos].to(device)
        for factor in factors if s in tuned else ():
            found, tau = methods(*tune(rescaled(model, factor), tokens[s], held[s][pick], scale), alpha)
            result[s][f"factor {factor}"] = {m: figures(p, y[pick]) for m, p in found.items()}
            result[s][f"factor {factor}"]["cots"]["tau"] = tau.median().item()
    return result


def rounded(result: Any) -> Any:
    """Five digits after the point: far below the spread of seeds, and small files."""
    if isinstance(result, dict):
        return {k: rounded(v) for k, v in result.items()}
    return round(result, 5) if isinstance(result, float) else result


def show(name: str, result: dict[str, Any]) -> None:
    print(name, {k: round(v, 4) for k, v in result.items() if isinstance(v, float)}, flush=True)
    for s in (k for k, v in result.items() if isinstance(v, dict)):
        head = f"alpha {result[s]['alpha']:.3f}, its own scale {result[s]['own_scale']:.1f}"
        print(f"{name} {s}: {head}, views read {result[s]['views']:.3f}, all {result[s]['all']}", flush=True)
        for key in (k for k in result[s] if k.startswith("factor")):
            row = {m: " ".join(f"{f[x]:.1f}" for x in ("acc", "conf", "ece")) for m, f in result[s][key].items()}
            shown = " | ".join(f"{m} {row[m]} {f['nll']:.3f}" for m, f in result[s][key].items())
            print(f"{name} {s} {key}: {shown} | tau {result[s][key]['cots']['tau']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path)
    source.add_argument("--model", type=Path, help="an exported folder; its stream is rescaled already (factor 1)")
    parser.add_argument(
        "--trained", nargs="*", default=list(SETS), choices=list(SETS), help="sets that the scale is fitted on"
    )
    parser.add_argument("--factors", nargs="*", type=float, default=[1.0, 0.5, 0.25])
    parser.add_argument("--photos", type=int, default=10000, help="at most so many held-out photos a set for tuning")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    names = {s: class_names(args.data, s) for s in SETS}
    path = args.checkpoint or args.model / "open_clip_model.safetensors"
    vocabulary = Vocabulary(names)
    bank = Bank(args.features, list(SETS), args.device, stages=trained_stages(path), training=False)
    model = load_checkpoint(path, len(vocabulary.tokens), args.device)
    result = measure(model, bank, vocabulary, names, args.factors, args.photos, args.trained, list(SETS))
    show(path.stem, result)
    if args.out:
        args.out.write_text(json.dumps({"checkpoint": path.stem} | rounded(result), indent=1) + "\n")


if __name__ == "__main__":
    main()
