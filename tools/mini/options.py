"""What a training run can be told; the defaults are the recipe of the shipped model."""

import argparse
from pathlib import Path

import torch
from photos import SETS

STEPS, MOVES = 3000, 8  # the gains move eight times in a run
TRUNK_LR, KEEP_WEIGHT = 1e-5, 1.0  # where stages of the trunk are trained


def options() -> argparse.ArgumentParser:
    """The recipe; its defaults are those of the shipped model."""
    parser = argparse.ArgumentParser(
        description="Train the text tower and the projection of `mini`, and if wanted the trunk's last stages."
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="the folder in the benchmark's layout (class names are read from its splits)",
    )
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--leave-out", choices=list(SETS), help="a set that takes no part, to choose knobs on")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch", type=int, default=256, help="photos of each set in a step")
    parser.add_argument("--prototypes", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=20000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.02)
    parser.add_argument(
        "--hard", type=float, default=1.0, help="share of the true label in photos' targets; the rest: probes"
    )
    parser.add_argument("--alpha", type=float, default=0.75)
    parser.add_argument("--alpha-weight", type=float, default=30.0, help="0: no penalty")
    parser.add_argument("--context-weight", type=float, default=0.5, help="0: no captions of views")
    parser.add_argument("--pairs-weight", type=float, default=0.3, help="0: no captions of two things")
    parser.add_argument(
        "--trunk-stages", type=int, default=0, choices=(0, 1, 2), help="last stages of the trunk to train; 0: frozen"
    )
    parser.add_argument("--trunk-lr", type=float, help=f"of these stages: {TRUNK_LR}")
    parser.add_argument(
        "--keep-weight",
        type=float,
        help=f"of the term that holds a trained trunk to its own softmax over the 1000 classes: {KEEP_WEIGHT}",
    )
    flag = argparse.BooleanOptionalAction
    parser.add_argument(
        "--teacher", action=flag, default=True, help="the trunk's softmax as target; without it the class drawn"
    )
    parser.add_argument("--residuals", action=flag, default=True, help="residuals of real photos on prototypes")
    parser.add_argument("--gains", action=flag, default=True, help="move the lists to one common logit scale")
    parser.add_argument("--report", type=int, help="steps between held-out figures, at which the gains move: an eighth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a run; what has no effect is an error."""
    parser = options()
    args = parser.parse_args(arguments)
    if not args.trunk_stages and (args.trunk_lr, args.keep_weight) != (None, None):
        parser.error("--trunk-lr and --keep-weight act on trained stages of the trunk alone: add --trunk-stages")
    args.trunk_lr = TRUNK_LR if args.trunk_lr is None else args.trunk_lr
    args.keep_weight = KEEP_WEIGHT if args.keep_weight is None else args.keep_weight
    return args
