"""Guarantees from a few labels for the probabilities of any model: prediction sets and error bounds.

>>> import numpy as np
>>> from cots import conformal
>>> rng = np.random.default_rng(0)
>>> probabilities = rng.dirichlet([0.3] * 5, size=400)
>>> labels = np.array([rng.choice(5, p=p) for p in probabilities])
>>> sets = conformal.fit(probabilities[:300], labels[:300], coverage=0.9)
>>> conformal.evaluate(sets.sets(probabilities[300:]), labels[300:])
Coverage(coverage=0.820, 95% [0.731, 0.890], mean_size=1.99, n=100)

Both hold for new samples from the same distribution as the labelled ones; other photos, classes or settings need their
own labels.
"""

from ._policy import ErrorControl, Policy, control_error
from ._sets import ConformalSets, Coverage, conf_ot, evaluate, fit

__all__ = ["ConformalSets", "Coverage", "ErrorControl", "Policy", "conf_ot", "control_error", "evaluate", "fit"]
