"""How many of the 1000 ImageNet names the text side knows, on imagenet-sample: for measuring only, never for choosing.

python measure_names.py --data DATA --checkpoint CHECKPOINT.safetensors [--trunk-weights FILE]
"""

import argparse
from pathlib import Path

import torch
from choose import load_checkpoint, prompts
from photos import SETS, class_names, open_photo, to_input, weak
from tower import encode_tokens, project
from trunk import load_trunk, round_to_half, trunk_features
from vocabulary import Vocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, nargs="+", required=True)
    parser.add_argument("--trunk-weights", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    folders = sorted(p for p in (args.data / "imagenet-sample").iterdir() if p.is_dir())
    photos = [(f, k) for k, folder in enumerate(folders) for f in sorted(folder.iterdir())]
    trunk = round_to_half(load_trunk(args.trunk_weights)).to(args.device)
    features = torch.cat(
        [
            trunk_features(trunk, to_input([weak(open_photo(f)) for f, _ in photos[i : i + 100]]))
            for i in range(0, len(photos), 100)
        ]
    )
    labels = torch.tensor([k for _, k in photos], device=args.device)
    own = (trunk.classifier(features).argmax(1) == labels).float().mean().item()
    vocabulary = Vocabulary({s: class_names(args.data, s) for s in SETS})
    tokens = prompts(vocabulary, [leaf.names[0] for leaf in vocabulary.leaves[:1000]]).to(args.device)
    for path in args.checkpoint:
        model = load_checkpoint(path, len(vocabulary.tokens), args.device)
        logits = project(model, features) @ encode_tokens(model, tokens).T
        right = (logits.argmax(1) == labels).float().mean().item()
        print(f"{path.stem}: {right:.3f} of the names, the trunk itself {own:.3f}: {right / own:.3f} of it", flush=True)


if __name__ == "__main__":
    main()
