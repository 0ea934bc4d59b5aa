"""Cache the trunk features of every training photo.

    python features.py --data DATA --out FEATURES --workers 16

A training photo gets its weak view, random crops and one view per description; a held-out photo its weak view. Test
photos are never read here.
"""

import argparse
import random
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp
from photos import CHANGES, SETS, Photo, class_names, describe, held_out, open_photo, read_split, strong, to_input, weak
from safetensors.torch import load_file, save_file
from torch import Tensor
from trunk import load_trunk, round_to_half, trunk_features
from vocabulary import Vocabulary


def photo_features(trunk: torch.nn.Module, photo: Photo, crops: int, seed: str) -> tuple[Tensor, Tensor]:
    """(1 + crops, F) views and (descriptions, F) described views, drawn from the seed and the file name.

    Caltech reuses file names across classes, so those photos share their draws.
    """
    rng, image = random.Random(f"{seed}/{photo.path.name}"), open_photo(photo.path)
    views = [weak(image)] + [strong(image, rng) for _ in range(crops)]
    described = [describe(image, how, rng) for how in CHANGES]
    features = trunk_features(trunk, to_input(views + described)).half().cpu()
    return features[: 1 + crops], features[1 + crops :]


def work(rank: int, args: argparse.Namespace) -> None:
    """Write this worker's share of every set to a part file."""
    torch.set_num_threads(1)
    trunk = round_to_half(load_trunk(args.weights)).to(args.device, memory_format=torch.channels_last)
    for name in SETS:
        photos = read_split(args.data, name, "train")
        held, found = held_out(photos, args.held_out), {}
        for i in range(rank, len(photos), args.workers):
            if held[i]:
                pixels = to_input([weak(open_photo(photos[i].path))])
                found[f"held.{i}"] = trunk_features(trunk, pixels)[0].half().cpu()
            else:
                seed = f"{args.seed}/{name}"
                found[f"views.{i}"], found[f"described.{i}"] = photo_features(trunk, photos[i], args.crops, seed)
        save_file(found, args.out / f"part-{name}-{rank}.safetensors")


def gather(args: argparse.Namespace, name: str) -> dict[str, Tensor]:
    """Join the parts of one set, in the order of its training split."""
    photos = read_split(args.data, name, "train")
    held, found = held_out(photos, args.held_out), {}
    for rank in range(args.workers):
        part = args.out / f"part-{name}-{rank}.safetensors"
        found |= load_file(part)
        part.unlink()
    labels = torch.tensor([p.label for p in photos])
    rows = {"views": ~held, "described": ~held, "held": held}
    result = {k: torch.stack([found[f"{k}.{i}"] for i in mask.nonzero()[:, 0].tolist()]) for k, mask in rows.items()}
    return result | {"labels": labels[~held], "held_labels": labels[held]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="the trunk's .pth file; default: the registry package's")
    parser.add_argument("--crops", type=int, default=20)
    parser.add_argument("--held-out", type=float, default=0.15)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    vocabulary = Vocabulary({s: class_names(args.data, s) for s in SETS})
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    context = mp.spawn(work, (args,), nprocs=args.workers, join=False)
    save_file({"tokens": vocabulary.caption_tokens.to(torch.int16)}, args.out / "captions.safetensors")
    while not context.join():
        pass
    for name in SETS:
        save_file(gather(args, name), args.out / f"{name}.safetensors")
    classifier = load_trunk(args.weights).classifier
    save_file({"weight": classifier.weight.data, "bias": classifier.bias.data}, args.out / "classifier.safetensors")
    print(f"features of {', '.join(SETS)} in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
