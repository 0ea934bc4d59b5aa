"""Random taxonomies, and answers from the definition: one loop per sample, sets of classes per node."""

from __future__ import annotations

import numpy as np

from cots.taxonomy import Taxonomy


def random_tree(seed: int, classes: int) -> Taxonomy:
    """A tree made by joining random groups until one is left; the classes get random places among the nodes."""
    rng = np.random.default_rng(seed)
    groups: list = [int(k) for k in rng.permutation(classes)]
    while len(groups) > 1:
        size = min(len(groups), int(rng.integers(2, 5)))
        picked = [groups.pop(int(rng.integers(len(groups)))) for _ in range(size)]
        groups.append(picked)
    parents: list[int] = []
    leaves = [0] * classes
    waiting = [(groups[0], -1)]
    while waiting:
        group, parent = waiting.pop(int(rng.integers(len(waiting))))
        place = len(parents)
        parents.append(parent)
        if isinstance(group, int):
            leaves[group] = place
        else:
            waiting += [(child, place) for child in group]
    names = tuple(f"n{i}" for i in range(len(parents)))
    return Taxonomy(names=names, ranks=(None,) * len(names), parents=tuple(parents), leaves=tuple(leaves))


def random_rows(seed: int, samples: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident probabilities and labels."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet([0.3] * classes, size=samples)
    labels = (table.cumsum(1) > rng.random((samples, 1))).argmax(1)
    sharp = table**1.7
    return sharp / sharp.sum(1, keepdims=True), labels


def below(tree: Taxonomy, node: int) -> set[int]:
    """The classes below a node, by walking up from each."""
    found = set()
    for k, leaf in enumerate(tree.leaves):
        while leaf not in (node, -1):
            leaf = tree.parents[leaf]
        if leaf == node:
            found.add(k)
    return found


def naive_answer(tree: Taxonomy, row: np.ndarray, threshold: float) -> int:
    node = tree.leaves[int(row.argmax())]
    while node and sum(row[k] for k in below(tree, node)) <= threshold:
        node = tree.parents[node]
    return node


def naive_sufficient(tree: Taxonomy, row: np.ndarray, label: int) -> float:
    node, found = tree.leaves[int(row.argmax())], 0.0
    while label not in below(tree, node):
        found = max(found, sum(row[k] for k in below(tree, node)))
        node = tree.parents[node]
    return found
