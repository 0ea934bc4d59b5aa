"""How many of the 1000 ImageNet names the text side knows, on imagenet-sample, which is never trained on.

python measure_names.py --data DATA --checkpoint FILE.safetensors [--trunk-weights FILE]

The weights of an exported folder are such a file too. Everyday words are measured on the photos of the classes that
words.GROUPS puts under them. The trunk's own accuracy is that of the weights that training started from.
"""

import argparse
from pathlib import Path

import torch
from choose import figures, load_checkpoint, prompts
from photos import SETS, class_names, open_photo, there, to_input, weak
from safetensors.torch import load_file
from torch import nn
from tower import encode_tokens, project
from trunk import load_trunk, overlaid, round_to_half, trunk_features
from vocabulary import Vocabulary

EVERYDAY = (
    "dog", "cat", "bird", "fish", "snake", "car", "truck", "airplane", "boat", "chair", "flower", "fruit",
    "musical instrument", "building", "clothing", "bottle",
)  # fmt: skip


def everyday_labels(vocabulary: Vocabulary) -> torch.Tensor:
    """For each of the 1000 ImageNet classes the everyday word that stands for it, -1 where none does."""
    members = {name: group.members for group in vocabulary.groups for name in group.names}
    labels = torch.full((1000,), -1)
    for k, word in enumerate(EVERYDAY):
        labels[[i for i in members[word] if i < 1000]] = k
    return labels


def of_word(everyday: torch.Tensor) -> list[torch.Tensor]:
    """Masks over the photos that have an everyday word, one for each word."""
    return [everyday[everyday >= 0] == k for k in range(len(EVERYDAY))]


def told(found: dict[str, float], n: int) -> str:
    return f"{found['acc']:.1f}% of {n} photos right, mean confidence {found['conf']:.1f}%, NLL {found['nll']:.3f}"


def encode(trunk: nn.Module, pixels: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([trunk_features(trunk, x) for x in pixels])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, nargs="+", required=True)
    parser.add_argument("--trunk-weights", type=Path, help="the trunk's .pth; by default that of the registry package")
    parser.add_argument(
        "--own-trunk",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a checkpoint's own trunk where it has one; without it the one that training started from",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    sample = there(args.data / "imagenet-sample", "one folder a class, in the order of the 1000 classes")
    folders = sorted(p for p in sample.iterdir() if p.is_dir())
    photos = [(f, k) for k, folder in enumerate(folders) for f in sorted(folder.iterdir())]
    trunk = round_to_half(load_trunk(args.trunk_weights)).to(args.device)
    pixels = [to_input([weak(open_photo(f)) for f, _ in photos[i : i + 100]]) for i in range(0, len(photos), 100)]
    labels = torch.tensor([k for _, k in photos], device=args.device)
    own = figures(trunk.classifier(encode(trunk, pixels)).softmax(-1), labels)["acc"]
    vocabulary = Vocabulary({s: class_names(args.data, s) for s in SETS})
    tokens = prompts(vocabulary, [leaf.names[0] for leaf in vocabulary.leaves[:1000]]).to(args.device)
    everyday = everyday_labels(vocabulary).to(args.device)[labels]
    common = everyday >= 0
    words = prompts(vocabulary, list(EVERYDAY)).to(args.device)
    for path in args.checkpoint:
        model = load_checkpoint(path, len(vocabulary.tokens), args.device)
        x = project(model, encode(overlaid(trunk, load_file(path)) if args.own_trunk else trunk, pixels))
        p = (model.logit_scale.exp() * x @ encode_tokens(model, tokens).T).softmax(-1)
        found = figures(p, labels)
        share = f"the trunk itself {own:.1f}%, so {found['acc'] / own:.1%} of it"
        print(f"{path.stem}: 1000 names {told(found, len(labels))}; {share}")
        p, y = (model.logit_scale.exp() * x[common] @ encode_tokens(model, words).T).softmax(-1), everyday[common]
        hit = p.argmax(1) == y
        each = [f"{w} {int(hit[k].sum())} of {int(k.sum())}" for w, k in zip(EVERYDAY, of_word(everyday), strict=True)]
        print(f"{path.stem}: everyday words {told(figures(p, y), len(y))}; {', '.join(each)}")


if __name__ == "__main__":
    main()
