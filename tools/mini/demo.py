"""View features of some test photos for `cots demo`, from the exported model and cots' own views.

    python demo.py --data DATA --model model --out demo.safetensors --workers 16

Each set gives the same number of photos, drawn by a seeded permutation. The photos themselves are not stored.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.multiprocessing as mp
from photos import SETS, Photo, class_names, read_split
from safetensors.torch import load_file, save_file

import cots


def drawn(args: argparse.Namespace) -> dict[str, list[Photo]]:
    """The demo's photos per set, in the order of its test list."""
    found = {}
    for k, name in enumerate(SETS):
        photos = read_split(args.data, name, "test")
        pick = np.sort(np.random.default_rng([args.seed, k]).permutation(len(photos))[: args.photos])
        found[name] = [photos[i] for i in pick]
    return found


def encode(rank: int, args: argparse.Namespace, folder: str) -> None:
    """Encode this worker's share; views depend on the seed, the set and the file name only."""
    torch.set_num_threads(1)
    backbone = cots.load(f"local-dir:{args.model}", device=args.device)
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, augmix=True)
    found = {}
    for name, photos in drawn(args).items():
        for i in range(rank, len(photos), args.workers):
            views = cots.make_views(photos[i].path, settings, cots.sample_seed(args.seed, name, photos[i].path.name))
            found[f"{name}.{i}"] = backbone.encode_images(views.to(args.device)).half().cpu()
    save_file(found, Path(folder) / f"{rank}.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=133, help="photos per set")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    chosen, features = drawn(args), {}
    with TemporaryDirectory() as folder:
        mp.spawn(encode, (args, folder), nprocs=args.workers)
        for part in Path(folder).iterdir():
            features |= load_file(part)
    tensors, described = {}, []
    for name, photos in chosen.items():
        tensors[f"{name}.features"] = torch.stack([features[f"{name}.{i}"] for i in range(len(photos))])
        tensors[f"{name}.labels"] = torch.tensor([p.label for p in photos], dtype=torch.int16)
        ids = [p.path.name for p in photos]
        described.append({"name": name, "classes": class_names(args.data, name), "ids": ids})
    save_file(tensors, args.out, metadata={"sets": json.dumps(described)})
    print(f"{args.out}: {', '.join(f'{len(photos)} photos of {name}' for name, photos in chosen.items())}")


if __name__ == "__main__":
    main()
