"""The demo's page: one self-contained HTML file that works offline."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from .. import metrics
from ._reliability import reliability_svg

STYLE = """
:root { color-scheme: light dark; --ink:#1b1f24; --soft:#5b6470; --line:#d7dce2; --paper:#fff; --card:#f6f8fa;
  --acc:#3b6fb6; --over:#d9534f; --under:#e0a526; --good:#1a7f4b; --bad:#b3372f; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e9ee; --soft:#9aa4b1; --line:#333a44; --paper:#14171b;
  --card:#1c2127; --acc:#6ea1e6; --over:#ef7d78; --under:#f0c35b; --good:#57c48c; --bad:#ef8a83; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { max-width: 72ch; } .soft, figcaption { color: var(--soft); font-size: .88rem; }
.lead { font-size: 1.08rem; border-left: 4px solid var(--acc); padding: .2rem 0 .2rem 1rem; }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .6rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; min-width: 640px;
  width: 100%; }
th, td { padding: .32rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; }
td small { color: var(--soft); } tr.ours td { background: var(--card); font-weight: 600; } .up { color: var(--good); }
.down { color: var(--bad); } summary { cursor: pointer; margin: .6rem 0; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem;
  overflow-x: auto; }
svg.reliability { width: 100%; height: auto; font: 11px system-ui, sans-serif; fill: var(--ink); }
svg .name { font-size: 13px; font-weight: 600; } svg .note, svg .tick { fill: var(--soft); }
svg .acc { fill: var(--acc); } svg .over { fill: var(--over); } svg .under { fill: var(--under); }
svg .count { fill: var(--soft); opacity: .55; }
svg .diagonal { stroke: var(--soft); stroke-dasharray: 4 3; fill: none; }
svg .frame { fill: none; stroke: var(--line); } svg .empty, svg .axis { stroke: var(--soft); fill: none; }
.key span { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 .9em; }
"""
SHOWN = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots")
OURS = {"tpt+cots", "tpt+ecots"}
COLUMNS = (("accuracy", "accuracy %"), ("ece", "ECE %"), ("nll", "NLL"), ("mean_confidence", "confidence %"))


def demo_page(result: Any, sentences: Sequence[str], next_command: str) -> str:
    """HTML for a `cots.demo.DemoResult`: the sentences, reliability diagrams, tables pooled and per set."""
    pooled = result.rows[-1]["dataset"]
    n = result.row("zeroshot")["n"]
    others = dict.fromkeys(row["dataset"] for row in result.rows if row["dataset"] != pooled)
    sets = "".join(_table(result, name, f"{name} (alpha {result.alpha[name]:.2f})") for name in others)
    figures = "".join(f"<figure>{_diagram(result, method, pooled)}</figure>" for method in SHOWN)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>cots demo</title><style>{STYLE}</style></head><body><main>
<h1>Can you act on the confidence?</h1>
<p class="soft">cots demo · model <b>{html.escape(result.model)}</b> (weights {result.weights_hash[:12]}) · {n} real
photos of {len(others)} datasets · 64 views each. These are figures of a small embedded model, not of CLIP.</p>
{"".join(f'<p class="lead">{html.escape(sentence)}</p>' for sentence in sentences)}
<h2>Confidence against accuracy</h2>
<div class="grid">{figures}</div>
<p class="soft key">Of the photos given a confidence (across), how many were right (up).
<span style="background:var(--acc)"></span>right, as promised
<span style="background:var(--over)"></span>over-confident by
<span style="background:var(--under)"></span>under-confident by (right, and more than promised).
A tick marks a bin without photos; the strip below counts photos. {n} photos, 20 equal bins (lo, hi]. With this many
photos even a perfectly calibrated model would show an ECE of about {result.noise_floor:.1f}%.</p>
<h2>All methods, all photos</h2>
{_table(result, pooled, "")}
<details><summary>Each dataset</summary>{sets}
<p class="soft">A third of the photos each: too few for a 20-bin ECE to be more than a hint; look at the intervals.</p>
</details>
<h2>Next</h2>
<pre>{html.escape(next_command)}</pre>
</main></body></html>
"""


def _diagram(result: Any, method: str, dataset: str) -> str:
    outcome = next(o for o in result.outcomes if o.method == method and o.dataset == dataset)
    row = result.row(method, dataset)
    note = f"accuracy {row['accuracy']:.1f}%, mean confidence {row['mean_confidence']:.1f}%"
    return reliability_svg(metrics.ece(outcome.confidence, outcome.correct), method, note)


def _table(result: Any, dataset: str, title: str) -> str:
    base = {m: result.row(m.split("+")[0], dataset) for m in {row["method"] for row in result.rows}}
    head = "".join(f"<th>{label}</th>" for _, label in COLUMNS)
    body = []
    for row in (r for r in result.rows if r["dataset"] == dataset):
        cells = "".join(_cell(row, base[row["method"]], name) for name, _ in COLUMNS)
        kind = ' class="ours"' if row["method"] in OURS else ""
        body.append(f"<tr{kind}><td>{html.escape(row['method'])}</td>{cells}</tr>")
    caption = f"<h2>{html.escape(title)}</h2>" if title else ""
    return (
        f'{caption}<div class="scroll"><table><thead><tr><th>method</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<p class="soft">In brackets the 95% bootstrap interval; an arrow compares with the same adapter alone.</p>'
    )


def _cell(row: dict[str, Any], base: dict[str, Any], name: str) -> str:
    digits = 3 if name == "nll" else 1
    value, (low, high) = row[name], row["intervals"][name]
    arrow = ""
    change = round(value, digits) - round(base[name], digits)
    if name != "mean_confidence" and change:
        better = (change > 0) == (name == "accuracy")
        arrow = f' <span class="{"up" if better else "down"}">{"▲" if change > 0 else "▼"}</span>'
    return f"<td>{value:.{digits}f}{arrow} <small>[{low:.{digits}f}, {high:.{digits}f}]</small></td>"
