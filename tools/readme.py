"""The README's picture and results: `mini` on the demo's photos, and the paper's averages.

uv run python tools/readme.py
"""

import re
from pathlib import Path
from textwrap import fill

from cots.demo import ALL_TEST_PHOTOS, KNOWN, DemoResult, read_photos, run_demo, short_lists
from cots.evaluate import save_demo_picture
from cots.paper import load_table

ROOT = Path(__file__).parents[1]
WIDTH = 135
METHODS = ("zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots")
PAPER = {"*paper: 11 datasets*": ("fine-grained", "average:fine-grained"),
         "*paper: 4 ImageNet variants*": ("imagenet-variants", "average:variants")}  # fmt: skip


def results(result: DemoResult) -> str:
    """What the demo says as Markdown, known classes first, and the paper's averages."""
    parts = []
    for kind in result.kinds:
        sentences = [*kind.sentences, ALL_TEST_PHOTOS] if kind.name == KNOWN else kind.sentences
        parts.append(fill(f"**{kind.name.capitalize()}, {len(kind)} photos.** {' '.join(sentences)}", WIDTH))
    return "\n\n".join([*parts, table()])


def table() -> str:
    """The paper's averages of the demo's methods, accuracy / ECE."""
    lines = [["method", *PAPER], ["---"] * (1 + len(PAPER))]
    for method in METHODS:
        lines.append([f"`{method}`", *paper(method)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def paper(method: str) -> list[str]:
    """The paper's averages of a method, accuracy / ECE."""
    found = []
    for name, average in PAPER.values():
        accuracy, ece = (load_table(name).value(metric, method, average) for metric in ("accuracy", "ece"))
        found.append(f"{accuracy:.2f} / {ece:.2f}")
    return found


def main() -> None:
    result = run_demo(photos=short_lists(read_photos()), methods=METHODS)
    save_demo_picture(result, ROOT / "docs/figures/gain-and-gap")
    readme = ROOT / "README.md"
    marked = re.compile(r"(<!-- results -->\n).*(<!-- /results -->)", re.DOTALL)
    readme.write_text(marked.sub(lambda found: f"{found[1]}\n{results(result)}\n{found[2]}", readme.read_text()))


if __name__ == "__main__":
    main()
