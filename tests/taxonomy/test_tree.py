"""Climbing against the definition, and what holds for every tree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trees import below, naive_answer, naive_sufficient, random_rows, random_tree

from cots import InputError
from cots.taxonomy import Taxonomy


@pytest.mark.parametrize("seed", range(5))
def test_answers_follow_the_definition(seed):
    tree, (rows, labels) = random_tree(seed, 9), random_rows(seed, 40, 9)
    for threshold in (0.0, 0.3, 0.7, 0.95, 1.0):
        nodes, shares = tree.climb(rows, threshold)
        assert nodes.tolist() == [naive_answer(tree, row, threshold) for row in rows]
        sums = [1.0 if node == 0 else row[list(below(tree, node))].sum() for node, row in zip(nodes, rows, strict=True)]
        np.testing.assert_allclose(shares, sums, atol=1e-12)
    naive = [naive_sufficient(tree, row, label) for row, label in zip(rows, labels, strict=True)]
    np.testing.assert_allclose(tree.sufficient_thresholds(rows, labels), naive, atol=1e-12)
    for node in range(len(tree.parents)):
        assert set(tree.classes_below(node).tolist()) == below(tree, node)


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_the_loss_never_rises_with_the_threshold(seed, classes):
    tree, (rows, labels) = random_tree(seed, classes), random_rows(seed, 30, classes)
    sufficient = tree.sufficient_thresholds(rows, labels)
    before, depth = np.ones(30, dtype=bool), np.full(30, len(tree.parents))
    for threshold in (*np.linspace(0, 1, 11), *sufficient[:5], np.nextafter(sufficient[0], -1)):
        nodes, _ = tree.climb(rows, max(0.0, threshold))
        np.testing.assert_array_equal(~tree.contains(nodes, labels), sufficient > max(0.0, threshold))
    for threshold in np.linspace(0, 1, 11):
        nodes, _ = tree.climb(rows, threshold)
        wrong = ~tree.contains(nodes, labels)
        assert not (wrong & ~before).any()
        assert (tree.depth[nodes] <= depth).all()
        before, depth = wrong, tree.depth[nodes]
    assert not wrong.any() or (sufficient > 1).any()


def test_the_root_is_certain_and_information_ends_at_the_classes():
    tree = random_tree(3, 8)
    rows, labels = random_rows(3, 20, 8)
    nodes, shares = tree.climb(rows.astype(np.float32), 1.0)
    assert set(nodes) == {0}
    assert set(shares) == {1.0}
    assert tree.contains(nodes, labels).all()
    assert tree.information[0] == 0
    assert (tree.information[list(tree.leaves)] == 1).all()


@pytest.mark.parametrize(
    ("parents", "leaves", "problem"),
    [
        ((), (), "parent"),
        ((0,), (), "parent"),
        ((-1, 2, 0), (1,), "earlier node"),
        ((-1, 0, 0), (1,), "each once"),
        ((-1, 0, 1), (1, 2), "without children"),
        ((-1, 0, 0), (1, 1), "each once"),
    ],
)
def test_what_is_no_tree_is_refused(parents, leaves, problem):
    names = tuple(map(str, range(len(parents))))
    with pytest.raises(InputError, match=problem):
        Taxonomy(names=names, ranks=names, parents=parents, leaves=leaves)


def test_other_class_lists_are_refused():
    with pytest.raises(InputError, match="4 classes, the taxonomy 5"):
        random_tree(0, 5).climb(np.full((2, 4), 0.25), 0.5)
