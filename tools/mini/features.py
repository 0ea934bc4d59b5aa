"""Cache trunk features of every training photo: its weak view, random crops, and one view for each description.

    python features.py --data DATA --out FEATURES --workers 16 [--stages 1 2]

With --stages also the maps that enter the trunk's last stages, for runs that train them: 6 GB for --stages 1, 14 for
--stages 2, 20 for both. Maps that are there already are removed: they would be of other views. Held-out photos get 64
views, so that knobs of prompt tuning can be chosen on them. Test photos are never read here.
"""

import argparse
import random
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp
from bank import maps_file
from photos import CHANGES, SETS, Photo, class_names, describe, held_out, open_photo, read_split, strong, to_input, weak
from safetensors.torch import load_file, save_file
from torch import Tensor
from trunk import TRUNK, load_trunk, round_to_half, trunk_outputs
from vocabulary import Vocabulary

VIEWS = 64


def photo_features(
    trunk: torch.nn.Module, photo: Photo, crops: int, seed: str, stages: list[int]
) -> dict[int, tuple[Tensor, Tensor]]:
    """(1 + crops, F) views and (descriptions, F) described views of one photo, drawn by seed and file name: features
    under 0, and for each number of last stages the maps that enter them.

    Caltech's photos of several classes have the same file names, and so the same draws.
    """
    rng, image = random.Random(f"{seed}/{photo.path.name}"), open_photo(photo.path)
    views = [weak(image)] + [strong(image, rng) for _ in range(crops)]
    described = [describe(image, how, rng) for how in CHANGES]
    features, maps = trunk_outputs(trunk, to_input(views + described), stages)
    halves = {k: v.half().cpu() for k, v in ({0: features} | maps).items()}
    return {k: (v[: 1 + crops], v[1 + crops :]) for k, v in halves.items()}


def work(rank: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    trunk = round_to_half(load_trunk(args.weights)).to(args.device, memory_format=torch.channels_last)
    for name in SETS:
        photos = read_split(args.data, name, "train")
        held = held_out(photos, args.held_out)
        found: dict[int, dict[str, Tensor]] = {k: {} for k in (0, *args.stages)}
        for i in range(rank, len(photos), args.workers):
            crops = VIEWS - 1 if held[i] else args.crops
            for k, pair in photo_features(trunk, photos[i], crops, f"{args.seed}/{name}", args.stages).items():
                found[k][f"views.{i}"], found[k][f"described.{i}"] = pair
        for k, tensors in found.items():
            save_file(tensors, args.out / f"part-{name}-{k}-{rank}.safetensors")


def gather(args: argparse.Namespace, name: str, stages: int) -> dict[str, Tensor]:
    """One file a set: held-out photos apart, with all their views; labels are in that of the features (0)."""
    photos = read_split(args.data, name, "train")
    held, found = held_out(photos, args.held_out), {}
    for rank in range(args.workers):
        part = args.out / f"part-{name}-{stages}-{rank}.safetensors"
        found |= load_file(part)
        part.unlink()
    labels = torch.tensor([p.label for p in photos])
    result = {} if stages else {"labels": labels[~held], "held_labels": labels[held]}
    for kind in ("views", "described"):
        result[kind] = torch.stack([found[f"{kind}.{i}"] for i in range(len(photos)) if not held[i]])
        result[f"held_{kind}"] = torch.stack([found[f"{kind}.{i}"] for i in range(len(photos)) if held[i]])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="the trunk's .pth; by default that of the registry package")
    parser.add_argument("--crops", type=int, default=20)
    parser.add_argument("--held-out", type=float, default=0.15)
    parser.add_argument(
        "--stages", nargs="*", type=int, default=[], choices=(1, 2), help="also the maps that enter so many last stages"
    )
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    for name in SETS:
        read_split(args.data, name, "train")
    args.stages = sorted(set(args.stages))
    args.out.mkdir(parents=True, exist_ok=True)
    for stale in (args.out / TRUNK, *args.out.glob(maps_file("*", "*"))):  # of other views than the new features
        stale.unlink(missing_ok=True)
    start = time.time()
    context = mp.spawn(work, (args,), nprocs=args.workers, join=False)
    vocabulary = Vocabulary({s: class_names(args.data, s) for s in SETS})
    save_file({"tokens": vocabulary.caption_tokens.to(torch.int16)}, args.out / "captions.safetensors")
    print(
        f"{len(vocabulary.names)} names x {len(vocabulary.templates)} templates, {time.time() - start:.0f} s",
        flush=True,
    )
    while not context.join():
        pass
    for name in SETS:
        for stages in (0, *args.stages):
            file = maps_file(name, stages) if stages else f"{name}.safetensors"
            save_file(gather(args, name, stages), args.out / file)
    classifier = load_trunk(args.weights).classifier
    save_file({"weight": classifier.weight.data, "bias": classifier.bias.data}, args.out / "classifier.safetensors")
    if args.stages:
        save_file(round_to_half(load_trunk(args.weights)).state_dict(), args.out / TRUNK)
    print(f"features of {', '.join(SETS)} in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
