"""The README's picture and its table of results: `mini` on the demo's photos, and the paper's averages.

uv run python tools/readme.py
"""

import re
from pathlib import Path

from cots.demo import DemoResult, read_photos, run_demo, short_lists
from cots.evaluate.plots import OVER, RIGHT, UNDER, draw_reliability, new_figure, save_figure, styled
from cots.paper import load_table

ROOT = Path(__file__).parents[1]
METHODS = ("zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots")
PANELS = {"tpt": "Before: TPT", "tpt+cots": "After: TPT + CoTS"}
PAPER = {"fine-grained": "average:fine-grained", "imagenet-variants": "average:variants"}
HEAD = """\
| method | accuracy | confidence | ECE | NLL | *paper: 11 datasets* | *paper: 4 ImageNet variants* |
| --- | --- | --- | --- | --- | --- | --- |
"""


def table(result: DemoResult) -> str:
    """The results as Markdown: the demo's rows, with the paper's accuracy and ECE in the last two columns."""
    lines = []
    for method in METHODS:
        row = result.row(method)
        low, high = row["intervals"]["ece"]
        cells = [f"{row['accuracy']:.1f}", f"{row['mean_confidence']:.1f}", f"{row['ece']:.1f} [{low:.1f}, {high:.1f}]"]
        cells += [f"{row['nll']:.2f}", *paper(method)]
        lines.append(f"| `{method}` | {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def paper(method: str) -> list[str]:
    """The paper's averages of a method, accuracy / ECE."""
    found = []
    for name, average in PAPER.items():
        accuracy, ece = (load_table(name).value(metric, method, average) for metric in ("accuracy", "ece"))
        found.append(f"{accuracy:.2f} / {ece:.2f}")
    return found


@styled({"font.size": 9.5, "axes.titlesize": 12})
def picture(result: DemoResult, stem: Path) -> None:
    """Reliability before and after; white behind it, so that it reads on dark pages too."""
    figure = new_figure(7.4, 3.9, left=0.075, right=0.975, top=0.84, bottom=0.12)
    grid = figure.add_gridspec(1, 2, wspace=0.18)
    for cell, (method, title) in zip(grid, PANELS.items(), strict=True):
        row = result.row(method)
        outcome = next(o for o in result.outcomes if (o.method, o.dataset) == (method, row["dataset"]))
        draw_reliability(figure, cell, outcome.scored.reliability(), title)
        claim = f"{row['mean_confidence']:.0f}% sure\n{row['accuracy']:.0f}% right"
        figure.axes[-2].text(0.04, 0.95, claim, va="top", fontsize=15, fontweight="bold", linespacing=1.3)
    for x, colour, text in ((0.075, RIGHT, "right"), (0.16, OVER, "over-confident"), (0.34, UNDER, "under-confident")):
        figure.text(x, 0.955, f"\u25a0 {text}", color=colour, fontsize=10, va="center")
    figure.text(0.98, 0.955, "dashed: perfect calibration", fontsize=9, ha="right", va="center")
    caption = f"{row['n']:,} photos that the model never saw; accuracy per bin of confidence, and the photos per bin."
    save_figure(figure, stem, "Reliability of TPT, and of TPT + CoTS", caption, ("svg",))


def main() -> None:
    result = run_demo(photos=short_lists(read_photos()), methods=METHODS)
    picture(result, ROOT / "docs/figures/before-after")
    readme = ROOT / "README.md"
    marked = re.compile(r"(<!-- results -->\n).*(<!-- /results -->)", re.DOTALL)
    readme.write_text(marked.sub(rf"\1\n{table(result)}\n\2", readme.read_text()))


if __name__ == "__main__":
    main()
