"""Write the model folder that open_clip and cots load: configuration, half-precision weights, vocabulary.

    python export.py --data DATA --features FEATURES --checkpoint CHECKPOINT.safetensors --out model --factor 0.25

The residual stream is rescaled by --factor; then the logit scale is fitted on held-out photos and fresh prototypes.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from bank import Bank
from open_clip.model import CLIP
from photos import SETS, class_names
from safetensors.torch import save_file
from tower import config, encode_tokens, fit_scale, load_checkpoint, project, rescaled
from trunk import PREFIX, load_trunk
from vocabulary import Vocabulary


def held_out_scale(
    model: CLIP, bank: Bank, vocabulary: Vocabulary, names: dict[str, list[str]], prototypes: int = 4000
) -> float:
    """The logit scale with the lowest NLL over the held-out photos of every set and over fresh prototypes."""
    torch.manual_seed(1)
    lists = [*names.values(), [leaf.names[0] for leaf in vocabulary.leaves[:1000]]]
    texts = [encode_tokens(model, vocabulary.prompts(n).to(bank.device)) for n in lists]
    x = bank.prototypes(torch.randint(1000, (prototypes,), device=bank.device))
    images = [project(model, bank.sets[s].held_MF) for s in names] + [project(model, x)]
    targets = [bank.sets[s].held_labels_M for s in names] + [bank.teacher(x)]
    return fit_scale(images, texts, targets)


def write_model(model: CLIP, scale: float, vocabulary: Vocabulary, weights: Path | None, out: Path) -> None:
    trunk = load_trunk(weights).state_dict()
    tensors = model.state_dict() | {PREFIX + k: v for k, v in trunk.items() if not k.startswith("classifier")}
    tensors["logit_scale"] = torch.tensor(math.log(scale))
    half = {k: (v.half() if v.is_floating_point() else v).contiguous().cpu() for k, v in tensors.items()}
    if not all(v.isfinite().all() for v in half.values()):
        raise ValueError("A weight exceeds the range of half precision.")
    out.mkdir(parents=True, exist_ok=True)
    save_file(half, out / "open_clip_model.safetensors", metadata={"format": "pt"})
    (out / "open_clip_config.json").write_text(json.dumps(config(len(vocabulary.tokens)), indent=2) + "\n")
    (out / "vocabulary.json").write_text(json.dumps(vocabulary.json()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--factor", type=float, default=0.25)
    parser.add_argument("--weights", type=Path, help="the trunk's .pth file; default: the registry package's")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    names = {s: class_names(args.data, s) for s in SETS}
    vocabulary = Vocabulary(names)
    model = rescaled(load_checkpoint(args.checkpoint, len(vocabulary.tokens), args.device), args.factor)
    scale = held_out_scale(model, Bank(args.features, list(SETS), args.device), vocabulary, names)
    write_model(model, scale, vocabulary, args.weights, args.out)
    size = sum(f.stat().st_size for f in args.out.iterdir()) / 1e6
    kept = f"{len(vocabulary.tokens)} tokens, {len(vocabulary.words)} words"
    print(f"{args.out}: logit scale {scale:.2f}, {kept}, {size:.1f} MB")


if __name__ == "__main__":
    main()
