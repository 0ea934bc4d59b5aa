"""The text of docs/all-methods.md, every sentence of it computed from the stored results.

benchmarks/all_methods.py writes it; tests/tools/test_findings.py compares the page with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cots.adapters import ADAPTERS
from cots.data import find_protocol, is_protocol

Group = Mapping[str, Any]  # of photos: "sets", "photos" and "rows" of all-methods.json
DIGITS = {"accuracy": 1, "ece": 1, "nll": 2}
TITLES = {"tiny-imagenet": "Tiny-ImageNet", "pacs-art": "PACS art", "pacs-cartoon": "PACS cartoon"}
COSTS = """\
ms: milliseconds per sample of one more method with CoTS on cached features of {views} views and {classes} classes,
{device} (`python benchmarks/toolbox.py --out benchmarks/results/h200-toolbox.json`)."""

TEXTS = {  # of methods that need others than the template
    "reta": "`reta` has CLIP's seven templates.",
    "tca": "`tca` has two words per class (benchmarks/attributes.json).",
}


def blocks(groups: Mapping[str, Group], cost: Mapping[str, Any]) -> dict[str, str]:
    """The blocks of the page by name."""
    found = {"findings": "\n\n".join([changes_table(groups), *sentences(groups)])}
    for name, group in groups.items():
        found[name] = f"{photos(group)}\n\n{table(group, cost.get('milliseconds', {}))}"
    notes = []
    for name, note in TEXTS.items():
        if all(name in group["rows"] for group in groups.values()):
            notes.append(note)
    found["cost"] = "\n\n".join(filter(None, [COSTS.format(**cost) if cost else "", " ".join(notes)]))
    return found


def adapters(group: Group) -> list[str]:
    """The methods of a group, without CoTS."""
    return [name for name in group["rows"] if not name.endswith("+cots")]


def table(group: Group, cost: Mapping[str, Any]) -> str:
    """One row per method: alone, then with CoTS and a mark where the change excludes zero."""
    head = ["method", "accuracy", "ECE", "NLL", "ECE+CoTS", "NLL+CoTS", "kind", *(["ms"] if cost else [])]
    lines = [f"|{'|'.join(head)}|", "|---" * len(head) + "|"]
    for name in adapters(group):
        alone, calibrated = group["rows"][name], group["rows"][f"{name}+cots"]
        cells = [f"`{name}`", *(interval(alone[key], digits) for key, digits in DIGITS.items())]
        for key in ("ece", "nll"):
            mark = {"falls": "▼", "rises": "▲"}.get(change(group, name, key), "")
            cells.append(interval(calibrated[key], DIGITS[key]) + mark)
        cells.append(ADAPTERS.info(name).kind)
        if cost:
            cells.append(f"{cost[name]['cots']:.2f}" if name in cost else "")
        lines.append(f"|{'|'.join(cells)}|")
    return "\n".join(lines)


def interval(value: list[float], digits: int) -> str:
    return f"{value[0]:.{digits}f}±{(value[2] - value[1]) / 2:.{digits}f}"


def change(group: Group, name: str, key: str) -> str:
    """What CoTS does to a figure: "falls" or "rises" if the interval excludes zero and the table shows it, else ""."""
    value, low, high = group["rows"][f"{name}+cots"]["change"][key]
    if abs(value) < 0.5 / 10 ** DIGITS[key]:
        return ""
    if high < 0:
        return "falls"
    return "rises" if low > 0 else ""


def photos(group: Group) -> str:
    """`300 photos of OxfordPets, 300 of Caltech101`"""
    counts = []
    for name, count in group["sets"].items():
        title = find_protocol(name).title if is_protocol(name) else TITLES[name]
        counts.append(f"{count} of {title}")
    return f"{group['photos']:,} photos: {', '.join(counts)}."


def changes_table(groups: Mapping[str, Group]) -> str:
    """The methods by what CoTS does to their ECE and NLL on each group of photos."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name in adapters(next(iter(groups.values()))):
        if name != "zeroshot":
            kinds.setdefault(tuple(_words(group, name) for group in groups.values()), []).append(f"`{name}`")
    lines = [f"|methods|{'|'.join(f'{name} photos' for name in groups)}|", "|---" * (1 + len(groups)) + "|"]
    for words, names in kinds.items():
        lines.append(f"|{', '.join(names)}|{'|'.join(words)}|")
    return "\n".join(lines)


def _words(group: Group, name: str) -> str:
    parts = []
    for key in ("ece", "nll"):
        verb = change(group, name, key)
        if verb:
            parts.append(f"{key.upper()} {verb}")
    return ", ".join(parts) or "within chance"


def sentences(groups: Mapping[str, Group]) -> list[str]:
    """What the tables say, in words."""
    return [
        " ".join(_counts(name, group) for name, group in groups.items()),
        _correlation(groups),
        " ".join(_below_zero_shot(name, group) for name, group in groups.items()),
        _same_predictions(groups),
    ]


def _counts(title: str, group: Group) -> str:
    names = [name for name in adapters(group) if name != "zeroshot"]
    parts = []
    for key in ("ece", "nll"):
        verbs = [change(group, name, key) for name in names]
        parts.append(f"lowers the {key.upper()} of {verbs.count('falls')} and raises that of {verbs.count('rises')}")
    return f"On {title} photos, of {len(names)} methods, CoTS {', and '.join(parts)}."


def _correlation(groups: Mapping[str, Group]) -> str:
    values = []
    for title, group in groups.items():
        names = adapters(group)
        alone = [group["rows"][name]["ece"][0] for name in names]
        changes = [group["rows"][f"{name}+cots"]["change"]["ece"][0] for name in names]
        values.append((title, float(np.corrcoef(alone, changes)[0, 1])))
    listed = ", ".join(f"{value:.2f} on {title} photos" for title, value in values)
    if all(value < -0.5 for _, value in values):
        return f"CoTS lowers the ECE most where it is high: the correlation of ECE alone with its change is {listed}."
    return f"The correlation of ECE alone with its change by CoTS is {listed}."


def _below_zero_shot(title: str, group: Group) -> str:
    rows = group["rows"]

    def below(suffix: str) -> str:
        return _listed(group, lambda name: rows[f"{name}{suffix}"]["ece"][0] < rows["zeroshot"]["ece"][0])

    return f"ECE below zero-shot's on {title} photos: alone {below('')}; with CoTS {below('+cots')}."


def _listed(group: Group, wanted: Callable[[str], bool]) -> str:
    others = [name for name in adapters(group) if name != "zeroshot"]
    names = [f"`{name}`" for name in others if wanted(name)]
    return f"{len(names)} of {len(others)}" if len(names) > 3 else ", ".join(names) or "none"


def _same_predictions(groups: Mapping[str, Group]) -> str:
    for group in groups.values():
        for name in adapters(group):
            if any(group["rows"][f"{name}+cots"]["change"]["accuracy"]):
                return "CoTS changes predictions, which it must not."
    return "CoTS changes the accuracy of no method."
