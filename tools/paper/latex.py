"""Tables of a LaTeX source as grids of plain text: just enough of the language for `tabular`."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Applied until nothing changes, so that inner commands go first.
UNWRAP = [
    (re.compile(r"\\textbf\{([+-]?\d+\.\d+)\}"), r"\1!"),
    (re.compile(r"\\(?:cite|cellcolor|rowcolor|columncolor|hspace\*?)\{[^{}]*\}"), ""),
    (re.compile(r"\\(?:texttt|textbf|shortstack(?:\[\w\])?)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\rotatebox\[[^\]]*\]\{[^{}]*\}\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\multirow\{\d+\}\{\*\}\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\{\\scriptsize([^{}]*)\}"), r"\1"),
]
MULTICOLUMN = re.compile(r"\\multicolumn\{(\d+)\}\{[^{}]*\}\{([^{}]*)\}")
SUBSCRIPT = re.compile(r"\$_[^$]*?([+-]\d+\.\d+)[^$]*\$")
RULES = re.compile(r"\\(?:toprule|midrule|bottomrule|cmidrule(?:\([lr]+\))?\{[\d-]+\})")
NUMBER = re.compile(r"[+-]?\d+\.\d+!?(?: @[+-]\d+\.\d+)?")

Grid = list[list[str]]


def tables(source: str) -> Iterator[tuple[str, Grid]]:
    """Each `tabular` with the nearest `tab:` label before it; in a cell, `@+0.12` is a subscript and `!` means bold."""
    source = re.sub(r"(?<!\\)%.*", "", source)
    for start in re.finditer(r"\\begin\{tabular\}", source):
        labels = re.findall(r"\\label\{(tab:[^}]*)\}", source[: start.start()])
        body_start = _after_braces(source, start.end())
        yield labels[-1], grid(source[body_start : source.index(r"\end{tabular}", body_start)])


def grid(body: str) -> Grid:
    """The cells of a `tabular` body: spans are repeated over their columns, empty rows dropped."""
    body = SUBSCRIPT.sub(r" @\1", RULES.sub("", body))
    body = re.sub(r"\\(e?)cots\b", lambda m: "E-CoTS" if m[1] else "CoTS", body)
    before = None
    while body != before:
        before = body
        for pattern, replacement in UNWRAP:
            body = pattern.sub(replacement, body)
        body = MULTICOLUMN.sub(lambda m: " & ".join([m[2]] * int(m[1])), body)
    body = body.replace("~", " ").replace(r"\_", "_").replace(r"\%", "%")
    # Rows end in two backslashes; any other backslash left is a command that is not handled.
    rows = [[" ".join(cell.split()) for cell in row.split("&")] for row in body.split(r"\\")]
    rows = [row for row in rows if any(row)]
    left = [cell for row in rows for cell in row if re.search(r"[\\{}$]", cell)]
    if left:
        raise ValueError(f"Unsupported LaTeX in a table: {left[:3]}")
    return rows


def _after_braces(source: str, position: int) -> int:
    """The end of the braced argument that starts at `position`; column specifications nest braces."""
    depth = 0
    for index in range(position, len(source)):
        depth += {"{": 1, "}": -1}.get(source[index], 0)
        if depth == 0:
            return index + 1
    raise ValueError("A tabular's column specification does not end.")
