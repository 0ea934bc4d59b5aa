"""Leave one part of the recipe out at a time, over several training seeds, and measure on held-out training photos.

    python ablate.py --data DATA --features FEATURES --out FOLDER --steps 600 --seeds 0 1 2
    python ablate.py --data DATA --features FEATURES --out FOLDER --steps 3000 --leave-out caltech
    python ablate.py --out FOLDER --table

With --leave-out the recipe's numbers are changed instead, no photo of that set takes part in training or in the logit
scale, and the table is of that set alone (but for the 1000 names on photos and the pairs, which take all three sets).

Writes FOLDER/VARIANT-SEED.json as each run ends, one seed of every variant after the other; what is there is not run
again, and the same command may be started several times side by side: each takes the next run that nobody has taken
(by an empty file, which a run that fails takes away; if a process was killed, take it away yourself). One folder holds
runs of one length. Test photos are never read.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from choose import measure, rounded, show
from options import parse
from photos import SETS, class_names
from train import Material, Trainer

VARIANTS: dict[str, list[str]] = {
    "full": [],
    "no alpha penalty": ["--alpha-weight", "0"],
    "no view captions": ["--context-weight", "0"],
    "no composed captions": ["--pairs-weight", "0"],
    "no teacher": ["--no-teacher"],
    "no residuals": ["--no-residuals"],
    "label 0.7": ["--hard", "0.7"],
    "no gains": ["--no-gains"],
}
CHOICES: dict[str, list[str]] = {
    "full": [],
    "label 0.7": ["--hard", "0.7"],
    "label 0.3": ["--hard", "0.3"],
    "alpha 0.85": ["--alpha", "0.85"],
    "no gains": ["--no-gains"],
}
TRUNK: dict[str, list[str]] = {
    "last stage, 1e-5": ["--trunk-stages", "1"],
    "last stage, 1e-4": ["--trunk-stages", "1", "--trunk-lr", "1e-4"],
    "last stage, 1e-4, not kept": ["--trunk-stages", "1", "--trunk-lr", "1e-4", "--keep-weight", "0"],
    "last two stages, 1e-5": ["--trunk-stages", "2"],
}
NAMED = {"label 0.7, no gains": ["--hard", "0.7", "--no-gains"]} | TRUNK  # run only when named
ALL = VARIANTS | CHOICES | NAMED
FACTOR, OTHER_FACTORS = 0.25, {False: (1.0,), True: (1.0, 0.5, 0.125)}  # of `full`: usually, and with a set left out


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
            file = args.out / f"{variant.replace(',', '').replace(' ', '_')}-{seed}.json"
            if time.time() + longest > end or not take(file):
                continue
            common = ["--data", str(args.data), "--features", str(args.features), "--device", args.device]
            common += ["--out", str(file.with_suffix(".safetensors")), "--seed", str(seed), "--steps", str(args.steps)]
            common += ["--leave-out", args.leave_out] if args.leave_out else []
            chosen, start = parse([*common, *ALL[variant]]), time.time()
            try:
                kind = chosen.hard, chosen.trunk_stages
                if kind not in material:
                    material[kind] = Material.load(chosen)
                own = material[kind]
                trainer = Trainer(chosen, own)
                trainer.train()
                seconds, model = time.time() - start, trainer.model.eval().requires_grad_(False)
                bank = own.bank.with_set(args.features, args.leave_out) if args.leave_out else own.bank
                tuned = [args.leave_out] if args.leave_out else list(SETS)
                factors = [FACTOR, *(OTHER_FACTORS[bool(args.leave_out)] if variant == "full" else ())]
                result = measure(model, bank, own.vocabulary, names, factors, args.photos, own.sets, tuned)
            except BaseException:
                file.unlink()
                raise
            result |= {"variant": variant, "seed": seed, "steps": args.steps, "seconds": seconds}
            result |= {"left_out": args.leave_out} if args.leave_out else {}
            show(file.stem, result)
            file.write_text(json.dumps(rounded(result), indent=1) + "\n")
            longest = max(longest, time.time() - start)


def row(result: dict[str, Any], factor: float = FACTOR) -> dict[str, float]:
    """The figures of one run, means over the three sets or those of the set left out; per cent, nats for NLL."""
    sets = measured(result)
    tuned = [result[s][f"factor {factor}"] for s in sets]
    scales = [result["names_scale"], *(result[s]["own_scale"] for s in sets)]
    found = {
        "names, prototypes": 100 * result["prototypes_agree"],
        "names, photos": 100 * result["photos_agree"],
        "alpha": statistics.mean(result[s]["alpha"] for s in sets),
        "scales apart": max(scales) / min(scales),
        "views read": 100 * statistics.mean(result[s]["views"] for s in sets),
        "pairs read": 100 * result["pairs"],
        "tau": statistics.mean(t["cots"]["tau"] for t in tuned),
        "rise of confidence under TPT": statistics.mean(t["tpt"]["conf"] - t["zeroshot"]["conf"] for t in tuned),
    }
    for method, name in {"zeroshot": "zero-shot", "tpt": "TPT", "cots": "CoTS", "ecots": "E-CoTS"}.items():
        for figure, word in {"acc": "accuracy", "conf": "confidence", "ece": "ECE", "nll": "NLL"}.items():
            # Two confidences say it all: that of TPT is zero-shot's and the rise, CoTS is made to bring it back.
            if figure != "conf" or method == "zeroshot":
                found[f"{name} {word}"] = statistics.mean(t[method][figure] for t in tuned)
    return found


Groups = dict[str, list[dict[str, float]]]


def read(folder: Path) -> Groups:
    """The rows of every variant, a row for each seed; models that choose.py measured come last, by the file's name."""
    results = {f.stem: json.loads(f.read_text()) for f in sorted(folder.glob("*.json")) if f.stat().st_size}
    runs = [r for r in results.values() if "variant" in r]
    for kind, word in {"steps": "steps", "left_out": "left out"}.items():
        found = sorted({str(r.get(kind, "none")) for r in runs})
        if len(found) > 1:
            raise SystemExit(f"{folder} holds runs with {word} {', '.join(found)}: keep each in a folder of its own.")
    named = {v: [r for r in runs if r["variant"] == v] for v in ALL}
    groups = {v: [row(r) for r in found] for v, found in named.items()}
    for v, found in named.items():
        for factor in OTHER_FACTORS[True]:
            groups[f"{v}, s = {factor:g}"] = [row(r, factor) for r in found if factor in factors(r)]
    for name, r in results.items():
        for factor in factors(r) if "variant" not in r else ():
            groups[name if factors(r) == [1.0] else f"{name}, s = {factor:g}"] = [row(r, factor)]
    return {v: rows for v, rows in groups.items() if rows}


def factors(result: dict[str, Any]) -> list[float]:
    """Every s that a run was measured at, in its file's order."""
    return [float(k.removeprefix("factor ")) for k in result[measured(result)[0]] if k.startswith("factor ")]


def measured(result: dict[str, Any]) -> list[str]:
    """The sets whose figures count: the one left out, or all three."""
    return [result["left_out"]] if "left_out" in result else list(SETS)


def common_variance(groups: list[list[float]]) -> float:
    """The variance over seeds of several recipes together, each about its own mean; every one has two seeds or more."""
    freedom = sum(len(values) - 1 for values in groups)
    return sum(statistics.variance(values) * (len(values) - 1) for values in groups) / freedom


def apart(groups: Groups) -> set[tuple[str, str]]:
    """(variant, figure) whose mean over the seeds differs from that of `full` by more than seeds explain: Student's t
    with the spread of all trained variants together, 5% for all comparisons of a folder together (Bonferroni). The same
    runs at another s have no part in that spread: theirs counts where it is larger.
    """
    from scipy.stats import t as student

    trained = [rows for v, rows in groups.items() if v in ALL and len(rows) > 1]
    freedom = sum(len(rows) - 1 for rows in trained)
    compared = {v: rows for v, rows in groups.items() if v != "full" and len(rows) > 1}
    if "full" not in groups or not compared or not freedom:
        return set()
    columns, full = list(groups["full"][0]), groups["full"]
    limit = student.isf(0.05 / 2 / (len(columns) * len(compared)), freedom)
    found = set()
    for c in columns:
        spread = common_variance([[r[c] for r in rows] for rows in trained])
        for v, rows in compared.items():
            difference = statistics.mean(r[c] for r in rows) - statistics.mean(r[c] for r in full)
            own = spread if v in ALL else max(spread, statistics.variance([r[c] for r in rows]))
            if abs(difference) > limit * (own / len(rows) + spread / len(full)) ** 0.5:
                found.add((v, c))
    return found


def table(folder: Path) -> Iterator[str]:
    """Mean and standard deviation over the seeds, one line a variant; bold where it is apart from `full`."""
    groups = read(folder)
    if not groups:
        raise SystemExit(f"{folder} holds no finished runs.")
    bold, columns = apart(groups), list(next(iter(groups.values()))[0])
    tuned = [c for c in columns if c.startswith(("tau", "rise", "TPT", "CoTS", "E-CoTS"))]
    for part in ([c for c in columns if c not in tuned], tuned):
        yield f"\n| variant | seeds | {' | '.join(part)} |"
        yield "|---" * (len(part) + 2) + "|"
        for variant, rows in groups.items():
            cells = [cell([r[c] for r in rows], digits(c)) for c in part]
            cells = [f"**{x}**" if (variant, c) in bold else x for c, x in zip(part, cells, strict=True)]
            yield f"| {variant} | {len(rows)} | {' | '.join(cells)} |"


def digits(column: str) -> int:
    return 3 if column in ("alpha", "tau") or column.endswith("NLL") else 2 if column == "scales apart" else 1


def cell(values: list[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print what is there as a table and end")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--leave-out", choices=list(SETS), help="a set that takes no part, to choose numbers on")
    parser.add_argument("--variants", nargs="*", choices=list(ALL), help="those of the recipe, if not given")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--photos", type=int, default=10000, help="at most so many held-out photos a set for tuning")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no run that would end later")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.table:
        return print(*table(args.out), sep="\n")
    if not (args.data and args.features):
        parser.error("--data and --features are needed to run")
    return run(args.variants or list(CHOICES if args.leave_out else VARIANTS), args)


if __name__ == "__main__":
    main()
