"""Taxonomies as files: edges (parent,child) or one row of ranks per class; and the tree of a class list from one."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Self

from .._errors import InputError
from ..classes import MAX_NAME, clean_name
from ._tree import Taxonomy

MAX_FILE = 2**25  # bytes
KNOWN = ("imagenet",)
_EDGES = (("parent", "child"), ("parent", "child", "rank"))
_NAME_COLUMNS = ("name", "common name", "class name", "label")  # as the last column: the class, not a rank
_TOP = -1
_REMEDY = "Write edges (parent,child) or one row of ranks per class (kingdom,...,species)."


@dataclass(frozen=True, kw_only=True)
class TaxonomyFile:
    """The nodes of a file, by index: name, rank and parent (-1 at the top); `found`: the nodes of each name."""

    where: str
    names: list[str] = field(repr=False)
    ranks: list[str | None] = field(repr=False)
    parents: list[int] = field(repr=False)
    found: dict[str, list[int]] = field(repr=False)

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """Read a CSV or TSV file of edges or ranks, or the known taxonomy "imagenet"."""
        where, text = _read_text(file)
        rows = _rows(text, where)
        header = tuple(clean_name(cell).casefold() for cell in rows[0][1])
        if header in _EDGES or len(header) > 2:
            rows = rows[1:]
        if not rows:
            raise InputError(f"{where} has a header and no rows. {_REMEDY}")
        nodes = _edges(rows, where) if header in _EDGES or len(header) == 2 else _ranks(rows, header, where)
        _refuse_cycles(nodes, where)
        return cls(where=where, names=nodes.names, ranks=nodes.ranks, parents=nodes.parents, found=nodes.found)

    def knows(self, classes: Sequence[str]) -> bool:
        """Whether the file has any of the classes."""
        return any(_key(name) in self.found for name in classes)

    def tree(self, classes: Sequence[str]) -> Taxonomy:
        """The tree of a class list.

        Classes that the file lacks are attached to the root. A class that is also a group becomes a class directly
        below that group. Nodes with a single child are dropped, because they have the same probability.
        """
        if not self.knows(classes):
            raise InputError(
                f"{self.where} has none of the {len(classes)} classes, such as {classes[0]!r}. Check the names."
            )
        children: dict[int, list[int]] = {}
        ranks: list[str | None] = []
        size = len(self.names)
        for k, name in enumerate(classes):
            child, parent = size + k, self._node(name)
            ranks.append(None if parent == _TOP else self.ranks[parent])
            while parent not in children and parent != _TOP:
                children[parent] = [child]
                child, parent = parent, self.parents[parent]
            children.setdefault(parent, []).append(child)
        return _compact(children, [*self.names, *classes], [*self.ranks, *ranks], size)

    def _node(self, name: str) -> int:
        nodes = self.found.get(_key(name), [])
        if len(nodes) > 1:
            branches = " and ".join(self._describe(node) for node in nodes[:2])
            raise InputError(
                f"{self.where}: the class {name!r} is in {len(nodes)} places ({branches}). Use a name that is unique, "
                "such as the genus with the species."
            )
        return nodes[0] if nodes else _TOP

    def _describe(self, node: int) -> str:
        parent = self.parents[node]
        return "at the top" if parent == _TOP else f"below {self.names[parent]!r}"


@dataclass(frozen=True)
class _Nodes:
    names: list[str] = field(default_factory=list)
    ranks: list[str | None] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    found: dict[str, list[int]] = field(default_factory=dict)

    def add(self, name: str, rank: str | None, parent: int) -> int:
        self.names.append(name)
        self.ranks.append(rank)
        self.parents.append(parent)
        node = len(self.names) - 1
        self.call(name, node)
        return node

    def call(self, name: str, node: int) -> None:
        """Let a name stand for a node."""
        nodes = self.found.setdefault(_key(name), [])
        if node not in nodes:
            nodes.append(node)


Rows = list[tuple[int, list[str]]]  # line numbers and cells


def _key(name: str) -> str:
    return clean_name(name).casefold()


def _read_text(file: str | Path) -> tuple[str, str]:
    if str(file) in KNOWN:
        known = files("cots") / "embedded" / f"{file}-taxonomy.csv"
        return f"taxonomy {str(file)!r}", known.read_text(encoding="utf-8")
    where = f"taxonomy {str(file)!r}"
    try:
        with open(file, "rb") as stream:
            data = stream.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise InputError(f"{where} is larger than {MAX_FILE >> 20} MiB. Keep the rows of your classes.")
        return where, data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{where} does not exist. Pass a CSV file, or a known taxonomy: {', '.join(KNOWN)}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where} cannot be read ({error}). It must be UTF-8 text.") from None


def _rows(text: str, where: str) -> Rows:
    """The rows that are not empty; lines that start with # are comments."""
    text = re.sub("^#.*$", "", text, flags=re.MULTILINE)
    first = text.lstrip("\r\n").partition("\n")[0]
    delimiter = next((mark for mark in "\t," if mark in first), " ")
    rows: Rows = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for cells in reader:
            if "".join(cells).strip():
                rows.append((reader.line_num, [_checked(cell, where, reader.line_num) for cell in cells]))
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}. {_REMEDY}") from None
    if not rows:
        raise InputError(f"{where} is empty. {_REMEDY}")
    width = len(rows[0][1])
    if width < 2:
        raise InputError(f"{where} has one column. {_REMEDY}")
    for line, cells in rows:
        if len(cells) != width:
            raise InputError(f"{where}, line {line} has {len(cells)} columns, the first has {width}. {_REMEDY}")
    return rows


def _checked(cell: str, where: str, line: int) -> str:
    if len(cell) > MAX_NAME:
        raise InputError(f"{where}, line {line}: a name has more than {MAX_NAME} characters. Shorten it.")
    if re.search(r"[\x00-\x1f\x7f]", cell):
        raise InputError(f"{where}, line {line}: {cell[:60]!r} has a control character. Remove it.")
    return clean_name(cell)


def _edges(rows: Rows, where: str) -> _Nodes:
    """Nodes of the rows parent,child or parent,child,rank; an empty parent is the root."""
    nodes = _Nodes()
    line_of: dict[int, int] = {}  # of the row that gave a node its parent

    def node_of(name: str) -> int:
        known = nodes.found.get(_key(name))
        return known[0] if known else nodes.add(name, None, _TOP)

    for line, (above, name, *rank) in rows:
        if not name:
            raise InputError(f"{where}, line {line}: the child is empty. Write parent,child.")
        parent = node_of(above) if above else _TOP
        child = node_of(name)
        if child in line_of and nodes.parents[child] != parent:
            raise InputError(
                f"{where}, line {line}: {name!r} has another parent in line {line_of[child]}, so its probability would "
                "count twice. Keep one row, or write one row of ranks per class."
            )
        line_of[child] = line
        nodes.parents[child] = parent
        if rank and rank[0]:
            nodes.ranks[child] = rank[0]
    return nodes


def _ranks(rows: Rows, header: tuple[str, ...], where: str) -> _Nodes:
    """Nodes of the rows of ranks, keyed by their full path, because names repeat across branches.

    A class is found by the name of any of its nodes, and by "genus species".
    """
    nodes, keys = _Nodes(), dict[tuple[int, str], int]()
    last = len(header) - 1
    shown = list(header)
    if header[last] in _NAME_COLUMNS:
        shown[last] = header[last - 1]
    for line, cells in rows:
        if not cells[last]:
            raise InputError(f"{where}, line {line}: the last column is empty. It must name the class.")
        node, genus = _TOP, ""
        for column, name in enumerate(cells):
            if not name:  # a missing rank is skipped
                continue
            key = node, _key(name)
            if key not in keys:
                keys[key] = nodes.add(name, shown[column], node)
            node = keys[key]
            if header[column] == "genus":
                genus = name
            elif header[column] == "species" and genus:
                nodes.call(f"{genus} {name}", node)
    return nodes


def _refuse_cycles(nodes: _Nodes, where: str) -> None:
    checked = [False] * len(nodes.names)
    for first in range(len(nodes.names)):
        node, path = first, set[int]()
        while node != _TOP and not checked[node]:
            if node in path:
                raise InputError(f"{where}: {nodes.names[node]!r} is above itself. Remove one row of this cycle.")
            path.add(node)
            node = nodes.parents[node]
        for seen in path:
            checked[seen] = True


def _compact(children: dict[int, list[int]], names: list[str], ranks: list[str | None], classes_from: int) -> Taxonomy:
    """The tree below the top without nodes that have a single child; indices from `classes_from` on are classes."""
    top = _TOP
    while len(children[top]) == 1 and children[top][0] < classes_from:
        top = children[top][0]
    kept, parents = [top], [-1]
    leaves = [0] * (len(names) - classes_from)
    waiting = [(child, 0) for child in reversed(children[top])]
    while waiting:
        node, parent = waiting.pop()
        while node < classes_from and len(children[node]) == 1:
            node = children[node][0]
        place = len(kept)
        kept.append(node)
        parents.append(parent)
        if node >= classes_from:
            leaves[node - classes_from] = place
        else:
            waiting += [(child, place) for child in reversed(children[node])]
    kept_names, kept_ranks = [names[node] for node in kept], [ranks[node] for node in kept]
    if top == _TOP:
        kept_names[0], kept_ranks[0] = "", None
    return Taxonomy(names=tuple(kept_names), ranks=tuple(kept_ranks), parents=tuple(parents), leaves=tuple(leaves))
