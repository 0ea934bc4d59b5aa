"""Where the paper contradicts itself: averages that are not the mean of their row, values printed twice.

Printed values are rounded. A mean of printed values is off by at most half a unit of the last digit, and so is the
printed average, so they contradict each other only if they differ by more than one unit.
"""

from __future__ import annotations

import re

AXES = ("metric", "method", "backbone", "prompt")


def inconsistencies(tables: list[dict]) -> list[dict]:
    """Every contradiction, as it is stored in inconsistencies.json."""
    return [found for table in tables for found in (*averages(table), *changes(table))] + twice(tables)


def averages(table: dict) -> list[dict]:
    unit = 10 ** table["decimals"]
    found = []
    for row in table["rows"]:
        single = {name: round(value * unit) for name, value in row["cells"].items() if ":" not in name}
        for name in row["cells"]:
            if ":" not in name or not single:
                continue
            printed = round(row["cells"][name] * unit)
            if abs(sum(single.values()) - printed * len(single)) <= len(single):
                continue
            entry = about(table, row, name, "average", row["cells"][name])
            entry["expected"] = round(sum(single.values()) / len(single) / unit, table["decimals"] + 1)
            rest = [value for dataset, value in single.items() if dataset != "imagenet"]
            if len(rest) < len(single) and abs(sum(rest) - printed * len(rest)) <= len(rest):
                entry["without"] = "imagenet"
            found.append(entry)
    return found


def changes(table: dict) -> list[dict]:
    """Printed differences from TPT: three roundings of half a unit add up to one and a half."""
    unit = 10 ** table["decimals"]
    base = {row["metric"]: row["cells"] for row in table["rows"] if row["method"] == "tpt"}
    found = []
    for row in table["rows"]:
        for name, change in row.get("change", {}).items():
            expected = round((row["cells"][name] - base[row["metric"]][name]) * unit)
            # Zero-shot's difference is an invisible placeholder, +0.00.
            if row["method"] != "zeroshot" and abs(expected - round(change * unit)) > 1:
                found.append(about(table, row, name, "change", change) | {"expected": expected / unit})
    return found


def twice(tables: list[dict]) -> list[dict]:
    """Values that differ from the same quantity in an earlier table."""
    first: dict[tuple[str, ...], tuple[str, float]] = {}
    found = []
    for table in tables:
        for row in table["rows"]:
            for name, value in row["cells"].items():
                key = (*(row[axis] for axis in AXES), name)
                source, before = first.setdefault(key, (table["id"], value))
                if value != before:
                    entry = about(table, row, name, "printed twice", value)
                    found.append(entry | {"expected": before, "note": f"as printed in {source}"})
    return found


def about(table: dict, row: dict, dataset: str, kind: str, printed: float) -> dict:
    names = {"metric": row["metric"], "method": row["method"], "dataset": dataset}
    return {"kind": kind, "table": table["id"], **names, "printed": printed}


def misquoted(source: str, quotes: list[str]) -> list[str]:
    """The quotations that are not in the LaTeX source, read as plain text without citations."""
    text = re.sub(r"(?<!\\)%.*|~?\\cite\{[^{}]*\}", "", source)
    text = text.replace(r"\ecots", "E-CoTS").replace(r"\cots", "CoTS").replace("$\\mathcal{L}_2$", "L2")
    text = re.sub(r"\\(?:texttt|textbf|emph)\{([^{}]*)\}", r"\1", text)
    text = " ".join(text.replace("~", " ").replace(r"\%", "%").replace("\\", "").split())
    return [quote for quote in quotes if quote not in text]
