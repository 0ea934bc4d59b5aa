"""Random changes of the sources, each run against the tests nearest to it: which does no test notice?

    python tools/mutants.py --count 40 --seed 1

Works in a copy of the repository. A change is drawn from all comparisons, operators,
numbers, truth values and `not`s outside error messages. Survivors are for a person to judge: many change only speed,
rounding or a repr.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*"}
SIGN = re.compile(r"not\s+in|is\s+not|//|[<>=!]=|[-+*/%<>]|\bin\b|\bis\b")
WITHOUT_EFFECT = ("strict", "place", "fontsize", "repr")  # keyword arguments
SLOW = ("test_page", "test_readme", "test_structure", "test_docs", "test_cuda", "test_startup")


@dataclass(frozen=True)
class Mutant:
    """`old` at a place in bytes of a file, and what replaces it."""

    path: Path
    start: int
    old: str
    new: str
    names: tuple[str, ...]  # of the function and classes around it

    def source(self) -> str:
        raw = self.path.read_bytes()
        assert raw[self.start :].startswith(self.old.encode())
        return (raw[: self.start] + self.new.encode() + raw[self.start + len(self.old.encode()) :]).decode()

    def __str__(self) -> str:
        raw = self.path.read_bytes()
        line = raw[: self.start].count(b"\n")
        text = raw.decode().splitlines()[line].strip()
        return f"{self.path.relative_to(ROOT)}:{line + 1} {self.old.strip()} -> {self.new.strip()}: {text}"


class Places:
    """The mutants of one file, and where they are in its bytes."""

    def __init__(self, path: Path) -> None:
        self.path, self.raw = path, path.read_bytes()
        self.lines = [0]
        for line in self.raw.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def mutants(self) -> Iterator[Mutant]:
        yield from self._below(ast.parse(self.raw), ())

    def _below(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Mutant]:
        """Of a node and all that is in it."""
        if isinstance(node, (ast.Raise, ast.JoinedStr)) or getattr(node, "arg", None) in WITHOUT_EFFECT:
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = (*names, node.name)
        yield from self._of(node, names)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from self._below(child, names)

    def _of(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                yield self._other_sign(left, right, COMPARISONS[type(sign)], names)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
                yield self._other_sign(left, right, OPERATORS[type(sign)], names)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                start = self._begin(node)
                yield Mutant(self.path, start, self._text(start, self._begin(operand)), "", names)
            case ast.Constant(value=bool() as value):
                yield self._other_value(node, str(not value), names)
            case ast.Constant(value=int() as value):
                yield self._other_value(node, str(value + 1), names)
            case ast.Constant(value=float() as value):
                yield self._other_value(node, repr(1.5 * value or 0.1), names)

    def _other_sign(self, left: ast.expr, right: ast.expr, sign: str, names: tuple[str, ...]) -> Mutant:
        start = self._end(left)
        between = self._text(start, self._begin(right))
        return Mutant(self.path, start, between, SIGN.sub(sign, between, count=1), names)

    def _other_value(self, node: ast.expr, value: str, names: tuple[str, ...]) -> Mutant:
        start = self._begin(node)
        return Mutant(self.path, start, self._text(start, self._end(node)), value, names)

    def _text(self, start: int, end: int) -> str:
        return self.raw[start:end].decode()

    def _begin(self, node: ast.expr) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset


def nearest_tests(mutant: Mutant, most: int) -> list[Path]:
    """The files of tests that mention most of the mutant's surroundings: its module, package, function and class."""
    module, package = mutant.path.stem.lstrip("_"), mutant.path.parent.name
    ranked = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        score = 100 * (file.stem == f"test_{module}" and file.parent.name in (package, "tests"))
        score += 20 * (file.parent.name == package) + 5 * bool(re.search(rf"\b_?{module}\b", text))
        for name in mutant.names:
            score += 10 * bool(re.search(rf"\b{name}\b", text))
        if score and file.stem not in SLOW:
            ranked.append((-score, file.stat().st_size, file))
    return [file for _, _, file in sorted(ranked)[:most]]


def survives(mutant: Mutant, copy: Path, most: int, limit: float) -> bool:
    """Whether the tests pass with the mutant in a copy of the repository; a run that takes too long is a failure."""
    place = copy / mutant.path.relative_to(ROOT)
    place.write_text(mutant.source(), encoding="utf-8")
    tests = [str(file.relative_to(ROOT)) for file in nearest_tests(mutant, most)]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    command = [sys.executable, "-m", "pytest", "-x", "-n0", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return False
    finally:
        shutil.copy(mutant.path, place)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=8, help="files of tests per mutant")
    parser.add_argument("--limit", type=float, default=240, help="seconds per mutant")
    options = parser.parse_args()
    found = []
    for path in sorted((ROOT / "src/cots").rglob("*.py")):
        if not path.stem.startswith(("_triton", "kernels")):
            found += Places(path).mutants()
    survivors, left_out = 0, shutil.ignore_patterns(".git", ".venv", "__pycache__")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(ROOT, Path(folder) / "copy", ignore=left_out))
        for mutant in random.Random(options.seed).sample(found, options.count):
            alive = survives(mutant, copy, options.files, options.limit)
            survivors += alive
            print(f"{'SURVIVES' if alive else 'killed  '} {mutant}", flush=True)
    print(f"{options.count - survivors} of {options.count} killed, of {len(found):,} possible mutants")


if __name__ == "__main__":
    main()
