"""Answers at the rank that is sure: "heron (family)" when the species is not.

>>> import numpy as np
>>> from cots.taxonomy import Taxonomy
>>> tree = Taxonomy(
...     names=("bird", "heron", "grey heron", "purple heron", "robin"), ranks=(None, "family", *["species"] * 3),
...     parents=(-1, 0, 1, 1, 0), leaves=(2, 3, 4),
... )
>>> nodes, probabilities = tree.climb(np.array([[0.5, 0.45, 0.05]]), threshold=0.9)
>>> tree.names[nodes[0]], round(float(probabilities[0]), 2)
('heron', 0.95)

`TaxonomyFile.read("tree.csv").tree(classes)` makes the tree of a class list, `RankRule.fit` a threshold with a promise.
"""

from ._file import KNOWN, TaxonomyFile
from ._rule import SURE, RankReport, RankRule, evaluate_ranks
from ._tree import Taxonomy

__all__ = ["KNOWN", "SURE", "RankReport", "RankRule", "Taxonomy", "TaxonomyFile", "evaluate_ranks"]
