"""Write the model folder that open_clip and cots load: configuration, half-precision weights, vocabulary.

    python export.py --data DATA --features FEATURES --checkpoint CHECKPOINT.safetensors --out model --factor 0.25

The residual stream is rescaled first; then the one logit scale is fitted on held-out training photos and held-out
prototypes together.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from bank import Bank
from choose import load_checkpoint, prompts
from open_clip.model import CLIP
from photos import SETS, class_names
from safetensors.torch import save_file
from tower import config, encode_tokens, fit_scale, project, rescaled, see
from trunk import PREFIX, load_trunk, overlaid, said, trained_stages
from vocabulary import Vocabulary


def held_out_scale(
    model: CLIP, bank: Bank, vocabulary: Vocabulary, names: dict[str, list[str]], prototypes: int = 4000
) -> float:
    """The logit scale with the least negative log-likelihood over the held-out photos of every set and over fresh
    prototypes.
    """
    device = bank.device
    torch.manual_seed(1)
    lists = [prompts(vocabulary, n).to(device) for n in names.values()]
    lists.append(prompts(vocabulary, [leaf.names[0] for leaf in vocabulary.leaves[:1000]]).to(device))
    x = bank.prototypes(torch.randint(1000, (prototypes,), device=device))
    images = [project(model, see(model, bank.sets[s].held_views_MVF[:, 0])) for s in names] + [project(model, x)]
    targets = [bank.sets[s].held_labels_M for s in names] + [bank.teacher(x)]
    return fit_scale(images, [encode_tokens(model, t) for t in lists], targets)


def write_model(model: CLIP, scale: float, vocabulary: Vocabulary, weights: Path | None, out: Path) -> None:
    trained = model.state_dict()
    tensors = {k: v for k, v in trained.items() if not k.startswith(PREFIX)}
    tensors["logit_scale"] = torch.tensor(math.log(scale))
    trunk = overlaid(load_trunk(weights), trained).state_dict()
    tensors |= {PREFIX + k: v for k, v in trunk.items() if not k.startswith("classifier")}
    half = {
        k: v.half().contiguous().cpu() if v.is_floating_point() else v.contiguous().cpu() for k, v in tensors.items()
    }
    if not all(v.isfinite().all() for v in half.values()):
        raise ValueError("a weight does not fit half precision.")
    out.mkdir(parents=True, exist_ok=True)
    save_file(half, out / "open_clip_model.safetensors", metadata=said(model.visual.trunk))
    (out / "open_clip_config.json").write_text(json.dumps(config(len(vocabulary.tokens)), indent=2) + "\n")
    (out / "vocabulary.json").write_text(json.dumps(vocabulary.json()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--factor", type=float, default=0.25)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--features", type=Path, help="fit the logit scale on these")
    source.add_argument("--scale", type=float, help="take this logit scale")
    parser.add_argument("--weights", type=Path, help="the trunk's .pth; by default that of the registry package")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    names = {s: class_names(args.data, s) for s in SETS}
    vocabulary = Vocabulary(names)
    model = rescaled(load_checkpoint(args.checkpoint, len(vocabulary.tokens), args.device).float(), args.factor)
    if args.features:
        bank = Bank(args.features, list(SETS), args.device, stages=trained_stages(args.checkpoint), training=False)
        args.scale = held_out_scale(model, bank, vocabulary, names)
    write_model(model, args.scale, vocabulary, args.weights, args.out)
    size = sum(f.stat().st_size for f in args.out.iterdir()) / 1e6
    kept = f"{len(vocabulary.tokens)} tokens, {len(vocabulary.words)} words"
    print(f"{args.out}: logit scale {args.scale:.2f}, {kept}, {size:.1f} MB")


if __name__ == "__main__":
    main()
