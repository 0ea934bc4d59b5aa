"""Measure the 1000 ImageNet names and 16 everyday words on imagenet-sample, which is never trained on.

    python measure_names.py --data DATA --checkpoint model/open_clip_model.safetensors

Everyday words are measured on the photos of the classes that words.GROUPS lists under them.
"""

import argparse
from pathlib import Path

import torch
from photos import SETS, class_names, open_photo, require, to_input, weak
from torch import Tensor
from torch.nn.functional import nll_loss
from tower import encode_tokens, load_checkpoint, project
from trunk import load_trunk, round_to_half, trunk_features
from vocabulary import Vocabulary

EVERYDAY = (
    "dog", "cat", "bird", "fish", "snake", "car", "truck", "airplane", "boat", "chair", "flower", "fruit",
    "musical instrument", "building", "clothing", "bottle",
)  # fmt: skip


def everyday_labels(vocabulary: Vocabulary) -> Tensor:
    """The index of the everyday word for each of the 1000 ImageNet classes, or -1."""
    members = {name: group.members for group in vocabulary.groups for name in group.names}
    labels = torch.full((1000,), -1)
    for k, word in enumerate(EVERYDAY):
        labels[[i for i in members[word] if i < 1000]] = k
    return labels


def figures(p: Tensor, y: Tensor) -> str:
    accuracy, confidence = (p.argmax(-1) == y).float().mean(), p.amax(-1).mean()
    nll = nll_loss(p.clamp(min=1e-12).log(), y)
    return f"{accuracy:.1%} of {len(y)} photos right, mean confidence {confidence:.1%}, NLL {nll:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a checkpoint or an exported model's weights")
    parser.add_argument("--weights", type=Path, help="the trunk's .pth file; default: the registry package's")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    sample = require(args.data / "imagenet-sample", "it must have one folder per class, in ImageNet's order")
    folders = sorted(p for p in sample.iterdir() if p.is_dir())
    photos = [(f, k) for k, folder in enumerate(folders) for f in sorted(folder.iterdir())]
    labels = torch.tensor([k for _, k in photos], device=args.device)
    trunk = round_to_half(load_trunk(args.weights)).to(args.device)
    batches = [photos[i : i + 100] for i in range(0, len(photos), 100)]
    features = torch.cat([trunk_features(trunk, to_input([weak(open_photo(f)) for f, _ in b])) for b in batches])
    vocabulary = Vocabulary({s: class_names(args.data, s) for s in SETS})
    model = load_checkpoint(args.checkpoint, len(vocabulary.tokens), args.device)
    x = model.logit_scale.exp() * project(model, features)

    def probabilities(names: list[str], x: Tensor) -> Tensor:
        return (x @ encode_tokens(model, vocabulary.prompts(names).to(args.device)).T).softmax(-1)

    print(f"trunk: {figures(trunk.classifier(features).softmax(-1), labels)}")
    print(f"1000 names: {figures(probabilities([leaf.names[0] for leaf in vocabulary.leaves[:1000]], x), labels)}")
    everyday = everyday_labels(vocabulary).to(args.device)[labels]
    y = everyday[everyday >= 0]
    p = probabilities(list(EVERYDAY), x[everyday >= 0])
    print(f"everyday words: {figures(p, y)}")
    hit = p.argmax(1) == y
    print(", ".join(f"{w} {int(hit[y == k].sum())} of {int((y == k).sum())}" for k, w in enumerate(EVERYDAY)))


if __name__ == "__main__":
    main()
