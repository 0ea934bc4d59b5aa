"""A tree over the classes of a list: node probabilities, and answers at the lowest node that is probable enough."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .._errors import InputError
from ..metrics.inputs import Values, probability_table, table_inputs

Nodes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Taxonomy:
    """A tree over K classes. Node 0 is the root; every other inner node has two children or more.

    names, ranks: of each node; a rank can be unknown. parents: of each node, -1 for the root. leaves: the node of each
    class, in the order of the class list.
    """

    names: tuple[str, ...] = field(repr=False)
    ranks: tuple[str | None, ...] = field(repr=False)
    parents: tuple[int, ...] = field(repr=False)
    leaves: tuple[int, ...] = field(repr=False)

    def __post_init__(self) -> None:
        size = len(self.parents)
        sizes = {len(self.names), len(self.ranks), size}
        above = all(0 <= parent < node for node, parent in enumerate(self.parents[1:], start=1))
        if len(sizes) > 1 or not size or self.parents[0] != -1 or not above:
            raise InputError(
                "A taxonomy needs a name, a rank and an earlier node as parent for every node but the root."
            )
        childless = set(range(1, size)) - set(self.parents)
        if len(self.leaves) != len(childless) or set(self.leaves) != childless:
            raise InputError("The classes of a taxonomy must be its nodes without children, each once.")

    def __repr__(self) -> str:
        classes = len(self.leaves)
        return f"Taxonomy({classes} classes, {len(self.parents) - classes} groups, depth {max(self.depth)})"

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the nodes."""
        nodes = [self.names, self.ranks, self.parents, self.leaves]
        return hashlib.sha256(json.dumps(nodes).encode()).hexdigest()

    @cached_property
    def depth(self) -> Nodes:
        """Steps from the root, of each node."""
        depth = np.zeros(len(self.parents), dtype=np.int64)
        for node, parent in enumerate(self.parents[1:], start=1):
            depth[node] = depth[parent] + 1
        return depth

    @cached_property
    def _above(self) -> Nodes:
        return np.array(self.parents)

    @cached_property
    def _spans(self) -> tuple[Nodes, Nodes, Nodes]:
        """The classes in an order in which those below a node are neighbours; start and end of each node in it."""
        size = len(self.parents)
        children: list[list[int]] = [[] for _ in range(size)]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        class_of = dict(zip(self.leaves, range(len(self.leaves)), strict=True))
        order: list[int] = []
        start, below, waiting = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64), [0]
        while waiting:
            node = waiting.pop()
            start[node] = len(order)
            if node in class_of:
                order.append(class_of[node])
                below[node] = 1
            waiting += reversed(children[node])
        for node in range(size - 1, 0, -1):
            below[self.parents[node]] += below[node]
        return np.array(order), start, start + below

    @property
    def information(self) -> NDArray[np.float64]:
        """1 - ln(classes below) / ln K of each node: 1 for a class, 0 for the root."""
        _, start, end = self._spans
        return 1.0 - np.log(end - start) / max(np.log(len(self.leaves)), 1e-9)

    def classes_below(self, node: int) -> Nodes:
        """The classes below a node, by position in the list."""
        order, start, end = self._spans
        return np.sort(order[start[node] : end[node]])

    def path(self, node: int) -> list[int]:
        """The nodes from below the root to `node`; empty for the root."""
        found = []
        while node:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def contains(self, nodes: Nodes, labels: Nodes) -> NDArray[np.bool_]:
        """Whether the class of each sample lies below its node."""
        order, start, end = self._spans
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return (start[nodes] <= place[labels]) & (place[labels] < end[nodes])

    def climb(self, probabilities: Values, threshold: float) -> tuple[Nodes, NDArray[np.float64]]:
        """The answer of each sample (S,K) and its probability.

            p_v = sum of the probabilities of the classes below v;  p_root = 1

        From the most probable class up to the first node with p_v > threshold, or the root.
        """
        mass = _Mass(self, probability_table(probabilities))
        node = mass.best
        while True:
            low = (node > 0) & (mass.of(node) <= threshold)
            if not low.any():
                return node, mass.of(node)
            node = np.where(low, self._above[node], node)

    def sufficient_thresholds(self, probabilities: Values, labels: Values) -> NDArray[np.float64]:
        """The smallest threshold with which each sample's answer contains its label.

            theta*_i = 0 if the best class is right, else the largest p among the wrong nodes above it

        The answer is wrong for every threshold below theta*_i and right from there on, because p rises along the path.
        """
        table_SK, truth = table_inputs(probabilities, labels)
        mass = _Mass(self, table_SK)
        node, found = mass.best, np.zeros(len(truth))
        while True:
            wrong = ~self.contains(node, truth)
            if not wrong.any():
                return found
            found = np.where(wrong, mass.of(node), found)
            node = np.where(wrong, self._above[node], node)


class _Mass:
    """Node probabilities of samples, as differences of cumulative sums: exactly monotone along every path."""

    def __init__(self, tree: Taxonomy, table_SK: NDArray[np.float64]) -> None:
        if table_SK.shape[1] != len(tree.leaves):
            raise InputError(
                f"probabilities have {table_SK.shape[1]} classes, the taxonomy {len(tree.leaves)}. Make the taxonomy "
                "for the same class list."
            )
        order, self._start, self._end = tree._spans
        self._rows = np.arange(len(table_SK))
        self._total = np.zeros((len(table_SK), len(order) + 1))
        np.cumsum(table_SK[:, order], axis=1, out=self._total[:, 1:])
        self.best: Nodes = np.asarray(tree.leaves)[table_SK.argmax(1)]

    def of(self, nodes: Nodes) -> NDArray[np.float64]:
        """The probability of one node per sample."""
        total = self._total[self._rows, self._end[nodes]] - self._total[self._rows, self._start[nodes]]
        return np.where(nodes == 0, 1.0, np.minimum(total, 1.0))
