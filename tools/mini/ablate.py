"""Leave one part of the recipe out at a time, over several training seeds, and measure on held-out training photos.

    python ablate.py --data DATA --features FEATURES --out FOLDER --steps 1000 --seeds 0 1 2
    python ablate.py --out FOLDER --table

Writes FOLDER/VARIANT-SEED.json as each run ends, one seed of every variant after the other; what is there is not run
again, and the same command may be started several times side by side: each takes the next run that nobody has taken.
Test photos are never read.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from choose import measure, show
from options import options
from photos import SETS, class_names
from train import Material, Trainer

VARIANTS: dict[str, list[str]] = {
    "full": [],
    "no alpha penalty": ["--alpha-weight", "0"],
    "no view captions": ["--context-weight", "0"],
    "no composed captions": ["--pairs-weight", "0"],
    "no teacher": ["--no-teacher"],
    "no residuals": ["--no-residuals"],
    "labels alone": ["--hard", "1"],
    "no gains": ["--no-gains"],
}
FACTOR = 0.25


def take(file: Path) -> bool:
    """Whether this process is the first to claim a result."""
    try:
        file.open("x").close()
    except FileExistsError:
        return False
    return True


def run(variants: list[str], args: argparse.Namespace) -> None:
    names, material, end = {s: class_names(args.data, s) for s in SETS}, {}, time.time() + args.minutes * 60
    args.out.mkdir(parents=True, exist_ok=True)
    longest = 0.0
    for seed in args.seeds:
        for variant in variants:
            file = args.out / f"{variant.replace(' ', '_')}-{seed}.json"
            if time.time() + longest > end or not take(file):
                continue
            common = ["--data", str(args.data), "--features", str(args.features), "--device", args.device]
            common += ["--out", str(file.with_suffix(".safetensors")), "--seed", str(seed), "--steps", str(args.steps)]
            # As often as in a full run: the gains move eight times.
            common += ["--report", str(max(args.steps // 8, 1))]
            chosen, start = options().parse_args([*common, *VARIANTS[variant]]), time.time()
            if chosen.hard not in material:
                material[chosen.hard] = Material.load(chosen)
            own = material[chosen.hard]
            trainer = Trainer(chosen, own)
            trainer.train()
            seconds, model = time.time() - start, trainer.model.eval().requires_grad_(False)
            factors = [FACTOR, 1.0] if variant == "full" else [FACTOR]
            result = measure(model, own.bank, own.vocabulary, names, factors, args.photos, list(SETS))
            result |= {"variant": variant, "seed": seed, "steps": args.steps, "seconds": seconds}
            show(file.stem, result)
            file.write_text(json.dumps(result, indent=1))
            longest = max(longest, time.time() - start)


def row(result: dict[str, Any], factor: float = FACTOR) -> dict[str, float]:
    """The figures of one run, means over the three sets; per cent, nats for NLL."""
    tuned = [result[s][f"factor {factor}"] for s in SETS]
    found = {
        "names, prototypes": 100 * result["prototypes_agree"],
        "names, photos": 100 * result["photos_agree"],
        "alpha": statistics.mean(result[s]["alpha"] for s in SETS),
        "views read": 100 * statistics.mean(result[s]["views"] for s in SETS),
        "pairs read": 100 * result["pairs"],
        "tau": statistics.mean(t["cots"]["tau"] for t in tuned),
        "TPT conf rise": statistics.mean(t["tpt"]["conf"] - t["zeroshot"]["conf"] for t in tuned),
    }
    for method, name in {"zeroshot": "zero-shot", "tpt": "TPT", "cots": "CoTS", "ecots": "E-CoTS"}.items():
        for figure in ("acc", "ece", "nll"):
            found[f"{name} {figure}"] = statistics.mean(t[method][figure] for t in tuned)
    return found


def table(folder: Path) -> None:
    """Mean and standard deviation over the seeds, one line a variant; exported models (choose.py) come last."""
    results = [json.loads(f.read_text()) for f in sorted(folder.glob("*.json")) if f.stat().st_size]
    groups = {v: [row(r) for r in results if r.get("variant") == v] for v in VARIANTS}
    groups["full, s = 1"] = [row(r, 1.0) for r in results if r.get("variant") == "full"]
    groups["exported"] = [row(r, 1.0) for r in results if "variant" not in r]
    groups = {v: rows for v, rows in groups.items() if rows}
    columns = list(next(iter(groups.values()))[0])
    tuned = [c for c in columns if c.startswith(("tau", "TPT", "CoTS", "E-CoTS"))]
    for part in ([c for c in columns if c not in tuned], tuned):
        print("\n| variant | seeds |", " | ".join(part), "|")
        print("|---" * (len(part) + 2) + "|")
        for variant, rows in groups.items():
            cells = [cell([r[c] for r in rows], 3 if c in ("alpha", "tau") or c.endswith("nll") else 1) for c in part]
            print(f"| {variant} | {len(rows)} |", " | ".join(cells), "|")


def cell(values: list[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print what is there as a table and end")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--photos", type=int, default=10000, help="at most so many held-out photos a set for tuning")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no run that would end later")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.table:
        return table(args.out)
    if not (args.data and args.features):
        parser.error("--data and --features are needed to run")
    return run(args.variants, args)


if __name__ == "__main__":
    main()
