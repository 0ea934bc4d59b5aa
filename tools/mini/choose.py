"""Measure a checkpoint on held-out training photos: the figures from which every knob was chosen.

    python choose.py --data DATA --features FEATURES --checkpoint CHECKPOINT.safetensors --factors 1 0.5 0.25

A small prompt tuner of its own (one sign step of 0.005 on the context; TPT, SaLS, CoTS, E-CoTS by their formulas), so
that choosing does not depend on the package; the shipped figures come from evaluate.py, which uses cots itself.
"""

import argparse
import json
from pathlib import Path

import torch
from bank import Bank
from open_clip.model import CLIP
from photos import SETS, class_names
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from tower import build, encode_tokens, fit_scale, project, rescaled, run_text
from train import alpha_of
from vocabulary import Vocabulary, clean

STEP, SELECTED = 0.005, 6


def load_checkpoint(path: Path, vocab_size: int, device: str) -> CLIP:
    model = build(vocab_size)
    model.visual.trunk = nn.Identity()
    model.load_state_dict(load_file(path))
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


def tune(model: CLIP, tokens: Tensor, views: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Zero-shot and adapted logits (B, V, K) of projected views (B, V, D): each sample takes its own step from the same
    context.
    """
    length = int((tokens != 0).sum(1).max())
    tokens = tokens[:, :length]
    embedded, end = model.token_embedding(tokens), tokens.argmax(-1)

    def text(context: Tensor) -> Tensor:
        x = torch.cat([embedded[:, :1], context.expand(len(embedded), -1, -1), embedded[:, 5:]], 1)
        return run_text(model, x, end)

    start = embedded[0, 1:5].clone().requires_grad_()
    before = text(start)
    zeroshot, adapted = scale * views @ before.detach().T, []
    for z0, v in zip(zeroshot, views, strict=True):
        best = entropy(z0).topk(SELECTED, largest=False).indices
        logits = scale * v[best] @ before.T
        mean = logits.log_softmax(-1).logsumexp(0) - torch.tensor(SELECTED).log()
        (gradient,) = torch.autograd.grad(-(mean.exp() * mean).sum(), start, retain_graph=True)
        with torch.no_grad():
            adapted.append(scale * v @ text(start * (1 - STEP * 0.01) - STEP * gradient / (gradient.abs() + 1e-8)).T)
    return zeroshot, torch.stack(adapted)


def spread(logits: Tensor) -> Tensor:
    return logits.amax(-1, keepdim=True) - logits.amin(-1, keepdim=True)


def methods(zeroshot: Tensor, adapted: Tensor, alpha: float) -> dict[str, Tensor]:
    strong = entropy(adapted[:, 1:]).topk(SELECTED, largest=False).indices + 1
    rows = torch.arange(len(adapted), device=adapted.device)[:, None]
    z, target = adapted[rows, strong], zeroshot[rows, strong].softmax(-1).amax(-1)
    tau = temperature(z, target)[:, None]
    cots = (adapted[:, 0] / tau).softmax(-1)
    return {
        "zeroshot": zeroshot[:, 0].softmax(-1),
        "tpt": adapted[:, 0].softmax(-1),
        "sals": (adapted[:, 0] * spread(zeroshot[:, 0]) / spread(adapted[:, 0])).softmax(-1),
        "cots": cots,
        "ecots": alpha * cots + (1 - alpha) * (z / tau[..., None]).softmax(-1).mean(1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument(
        "--trained", nargs="*", default=list(SETS), choices=list(SETS), help="sets that the scale is fitted on"
    )
    parser.add_argument("--factors", nargs="*", type=float, default=[1.0, 0.5, 0.25])
    parser.add_argument("--photos", type=int, default=200, help="held-out photos a set for prompt tuning")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(1)
    vocabulary = Vocabulary({s: class_names(args.data, s) for s in SETS})
    bank = Bank(args.features, list(SETS), args.device)
    model = load_checkpoint(args.checkpoint, len(vocabulary.tokens), args.device)
    tokens = {s: prompts(vocabulary, class_names(args.data, s)).to(args.device) for s in SETS}
    names = prompts(vocabulary, [leaf.names[0] for leaf in vocabulary.leaves[:1000]]).to(args.device)
    texts = {s: encode_tokens(model, t) for s, t in tokens.items()} | {"names": encode_tokens(model, names)}
    held = {s: project(model, bank.sets[s].held_views_MVF.float()) for s in SETS}
    prototypes = bank.prototypes(torch.randint(1000, (4000,), device=args.device))
    teacher = bank.teacher(prototypes)
    images = [held[s][:, 0] for s in args.trained] + [project(model, prototypes)]
    targets = [bank.sets[s].held_labels_M for s in args.trained] + [teacher]
    scale = fit_scale(images, [texts[s] for s in args.trained] + [texts["names"]], targets)
    agree = (images[-1] @ texts["names"].T).argmax(1) == teacher.argmax(1)
    result: dict[str, object] = {
        "checkpoint": args.checkpoint.stem,
        "scale": scale,
        "prototypes_agree": agree.float().mean().item(),
    }
    for s in SETS:
        y, alpha = bank.sets[s].held_labels_M, alpha_of(texts[s]).item()
        result[s] = {"alpha": alpha, "all": figures((scale * held[s][:, 0] @ texts[s].T).softmax(-1), y)}
        own = fit_scale([held[s][:, 0]], [texts[s]], [y])
        print(
            f"{args.checkpoint.stem} {s} alpha {alpha:.3f} scale {scale:.1f} (its own {own:.1f})",
            result[s]["all"],
            flush=True,
        )
        pick = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[: args.photos].to(args.device)
        for factor in args.factors:
            z = tune(rescaled(model, factor), tokens[s], held[s][pick], scale)
            result[s][f"factor {factor}"] = {m: figures(p, y[pick]) for m, p in methods(*z, alpha).items()}
            shown = " | ".join(
                f"{m} {f['acc']:.1f} {f['conf']:.1f} {f['ece']:.1f} {f['nll']:.3f}"
                for m, f in result[s][f"factor {factor}"].items()
            )
            print(f"{args.checkpoint.stem} {s} x{factor}: {shown}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
