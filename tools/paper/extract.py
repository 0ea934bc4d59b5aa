"""Write the paper's tables as data: `python tools/paper/extract.py cots-paper.tex [folder]`.

Every word in a table's header or at the start of its rows belongs to one vocabulary (metric, dataset, method, backbone,
prompt). The words above a cell and to its left say what it is; an unknown word is an error.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from check import inconsistencies, misquoted
from latex import NUMBER, Grid, tables

from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.data import find_protocol, is_protocol
from cots.prompts import DEFAULT_TEMPLATE

METRICS = {"Accuracy": "accuracy", "ACC": "accuracy", "ECE": "ece", "Brier score": "brier", "CECE": "cece"}
METRICS |= {"AECE": "aece"}
AVERAGES = {"Fine-grained datasets": "average:fine-grained", "ImageNet variants": "average:variants"}
# Methods and datasets go by their titles; the paper's capitals vary.
ADAPTER_NAMES = {info.title.casefold(): info.name for info in ADAPTERS.infos()}
CALIBRATOR_NAMES = {info.title.casefold(): info.name for info in CALIBRATORS.infos()} | {"base": "none"}
BACKBONES = {"ViT-B/16": "ViT-B-16/openai", "ResNet-50": "RN50/openai"}
HEADINGS = {"", "Method", "Metric", "Prompt template", "Dataset"}
VIT, RN50, SIGLIP = "ViT-B-16/openai", "RN50/openai", "ViT-B-16-SigLIP/webli"


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a table does not say in words: its name here, and the values shared by all of its cells."""

    id: str
    title: str
    backbone: str = VIT
    prompt: str = DEFAULT_TEMPLATE
    base: str = "tpt"
    metric: str | None = None
    dataset: str | None = None
    statistic: str = ""


BOTH = "accuracy and ECE"
SOURCES = {
    "tab:main_standard": Source(id="fine-grained", title=f"Fine-grained datasets and ImageNet: {BOTH}"),
    "tab:imagenet_variants": Source(id="imagenet-variants", title=f"Four ImageNet variants: {BOTH}"),
    "tab:cots_ablation_full": Source(id="plug-and-play", title="CoTS and E-CoTS on top of other methods, averages"),
    "tab:coop_cots_ablation_full": Source(
        id="coop", title="Starting from contexts learned by CoOp, averages", prompt="coop"
    ),
    "tab:ttl_tps": Source(id="ttl-tps", title="SaLS, CoTS and E-CoTS on TTL and TPS, averages"),
    "tab:backbone_comparison": Source(id="backbones", title="ViT-B/16 and ResNet-50 side by side, averages"),
    "tab:time_table_dtd_imageneta": Source(id="timing", title="Seconds per image", metric="seconds"),
    "tab:main_standard_rn50": Source(
        id="fine-grained-rn50", title=f"Fine-grained datasets and ImageNet, ResNet-50: {BOTH}", backbone=RN50
    ),
    "tab:imagenet_variants_rn50": Source(
        id="imagenet-variants-rn50", title=f"Four ImageNet variants, ResNet-50: {BOTH}", backbone=RN50
    ),
    "tab:online_tta": Source(
        id="fine-grained-tda", title=f"Fine-grained datasets and ImageNet on top of TDA: {BOTH}", base="tda"
    ),
    "tab:online_tta_imagenet_variants": Source(
        id="imagenet-variants-tda", title=f"Four ImageNet variants on top of TDA: {BOTH}", base="tda"
    ),
    "tab:siglip_finegrained": Source(
        id="fine-grained-siglip", title=f"Fine-grained datasets and ImageNet, SigLIP: {BOTH}", backbone=SIGLIP
    ),
    "tab:siglip_imagenet_variants": Source(
        id="imagenet-variants-siglip", title=f"Four ImageNet variants, SigLIP: {BOTH}", backbone=SIGLIP
    ),
    "tab:std_vit_fg_imagenet": Source(
        id="std-fine-grained", title="Standard deviations over three seeds, fine-grained datasets", statistic="_std"
    ),
    "tab:std_imagenet_variants": Source(
        id="std-imagenet-variants", title="Standard deviations over three seeds, ImageNet variants", statistic="_std"
    ),
    "tab:main_brier": Source(id="brier-fine-grained", title="Brier score, fine-grained datasets"),
    "tab:main_brier2": Source(id="brier-imagenet-variants", title="Brier score, ImageNet variants"),
    "tab:cece_fg": Source(id="cece-fine-grained", title="Class-wise ECE, fine-grained datasets"),
    "tab:cece_imagenet": Source(id="cece-imagenet-variants", title="Class-wise ECE, ImageNet variants"),
    "tab:aece_fg": Source(id="aece-fine-grained", title="Adaptive ECE, fine-grained datasets"),
    "tab:aece_imagenet": Source(id="aece-imagenet-variants", title="Adaptive ECE, ImageNet variants"),
    "tab:prompt_imagenet_variants": Source(
        id="prompts", title="Seven other initial prompts, ImageNet variants, averages", dataset="average:variants"
    ),
    "tab:ens_ecots_ablation": Source(id="ensemble-only", title="The ensemble without and with CoTS, averages"),
    "tab:zero_ensemble_comparison": Source(id="zero", title="ZERO and the weak-strong ensemble, averages"),
}


def meaning(words: list[str], source: Source, group: str, above: str | None) -> dict[str, str]:
    """Metric, dataset, method and so on of a cell; `above` is the last adapter in the rows before."""
    found: dict[str, str] = {}

    def put(axis: str, value: str) -> None:
        if found.setdefault(axis, value) != value:
            raise ValueError(f"{axis} appears twice, as {found[axis]} and {value}, in {words}.")

    for word in words:
        word = word.removesuffix("(%)").strip()
        if word in HEADINGS:
            continue
        name = re.sub(r"^(\+|w/) | \(Ours\)$", "", word)
        if word in METRICS:
            put("metric", METRICS[word])
        elif word in AVERAGES:
            put("dataset", AVERAGES[word])
        elif is_protocol(word):
            put("dataset", find_protocol(word).name)
        elif word in {"Average", "Avg."}:
            put("dataset", group)
        elif word in BACKBONES:
            put("backbone", BACKBONES[word])
        elif word.casefold() in ADAPTER_NAMES:
            put("adapter", ADAPTER_NAMES[word.casefold()])
        elif name.casefold() in CALIBRATOR_NAMES:
            put("calibrator", CALIBRATOR_NAMES[name.casefold()])
            if word.startswith("w/") and above:
                put("adapter", above)
        elif re.fullmatch(r'"\w+"', word):
            put("prompt", word.strip('"').replace("_", " ") + " {}.")
        else:
            raise ValueError(f"{source.id}: unknown word {word!r}.")
    return found


def method_name(adapter: str | None, calibrator: str, base: str) -> str:
    """`adapter+calibrator` as cots writes it; `tda(ctpt)` is a tuned prompt with TDA's caches."""
    name = adapter or base
    if base == "tda" and name != "tda":
        name = f"tda({name})"
    return name if calibrator == "none" else f"{name}+{calibrator}"


def read(label: str, cells: Grid) -> dict:
    """One table as it is stored: one entry per metric, method, backbone and prompt."""
    source = SOURCES[label]
    first = next(i for i, row in enumerate(cells) if any(NUMBER.fullmatch(cell) for cell in row))
    head, body = cells[:first], cells[first:]
    width = len(body[0])
    above_column = [[row[i] for row in head if i < len(row)] for i in range(width)]
    names = {word for column in above_column for word in column}
    group = "average:fine-grained" if "ImgNet" in names else "average:variants"
    label_columns = next(i for i, cell in enumerate(body[0]) if NUMBER.fullmatch(cell))
    stored: dict[tuple[str, str, str, str], dict] = {}
    last, above, decimals = [""] * label_columns, None, set()
    for row in body:
        if len(row) != width:
            raise ValueError(f"{source.id}: {len(row)} cells instead of {width} in {row}")
        last = [cell or old for cell, old in zip(row, last, strict=False)][:label_columns]
        for word in last:
            above = ADAPTER_NAMES.get(word.casefold(), above)
        for column, text in enumerate(row[label_columns:], label_columns):
            if not NUMBER.fullmatch(text):
                raise ValueError(f"{source.id}: {text!r} is not a number.")
            about = meaning(last + above_column[column], source, group, above)
            printed, _, change = text.partition(" @")
            value = printed.removesuffix("!")
            metric = about.get("metric") or source.metric or ""
            if value.startswith("+"):
                metric = f"extra_{metric}"
            method = method_name(about.get("adapter"), about.get("calibrator", "none"), source.base)
            key = (
                metric + source.statistic,
                method,
                about.get("backbone", source.backbone),
                about.get("prompt", source.prompt),
            )
            line = stored.setdefault(
                key, {**dict(zip(("metric", "method", "backbone", "prompt"), key, strict=True)), "cells": {}}
            )
            dataset = about.get("dataset") or source.dataset
            if not metric or dataset is None or dataset in line["cells"]:
                raise ValueError(f"{source.id}: no metric, no dataset, or the same cell twice: {about}")
            line["cells"][dataset] = float(value)
            decimals.add(len(value.partition(".")[2]))
            if value != printed:
                line.setdefault("bold", []).append(dataset)
            if change:
                line.setdefault("change", {})[dataset] = float(change)
    (digits,) = decimals
    head = {"id": source.id, "label": label, "title": source.title, "decimals": digits}
    return {**head, "rows": list(stored.values())}


def dump(table: dict, key: str) -> str:
    """JSON with one entry of `table[key]` per line, so that diffs are readable."""
    head = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in table.items() if name != key)
    lines = ",\n".join("  " + json.dumps(entry) for entry in table[key])
    return f'{{\n{head} "{key}": [\n{lines}\n ]\n}}\n'


def shortened(table: dict) -> dict:
    """The table with backbone and prompt written once, and again only in rows that differ."""
    common = {axis: table["rows"][0][axis] for axis in ("backbone", "prompt")}
    rows = [{k: v for k, v in row.items() if common.get(k) != v} for row in table["rows"]]
    return {**{k: v for k, v in table.items() if k != "rows"}, **common, "rows": rows}


def main(tex: str, folder: str = "src/cots/paper") -> None:
    found = [read(label, cells) for label, cells in tables(Path(tex).read_text(encoding="utf-8"))]
    if [table["label"] for table in found] != list(SOURCES):
        raise ValueError("The source does not have the expected tables in the expected order.")
    claims = json.loads(Path(folder, "claims.json").read_text(encoding="utf-8"))["rows"]
    wrong = misquoted(Path(tex).read_text(encoding="utf-8"), [claim["quote"] for claim in claims])
    if wrong:
        raise ValueError(f"The source does not have these words of claims.json: {wrong}")
    for table in found:
        Path(folder, "tables", f"{table['id']}.json").write_text(dump(shortened(table), "rows"), encoding="utf-8")
    order = [table["id"] for table in found]
    Path(folder, "index.json").write_text(json.dumps(order, indent=1) + "\n", encoding="utf-8")
    text = dump({"rows": inconsistencies(found)}, "rows")
    Path(folder, "inconsistencies.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
