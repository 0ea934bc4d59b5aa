"""Template of a metric, for `cots ls metrics` and every table and page of a report.

cots report runs/first --plugin examples/plugins/metric.py
"""

import numpy as np

from cots.metrics import accuracy, metric


@metric("confident_errors", title="Confident errors", short="conf. err.", better="lower", place=500)
def confident_errors(confidence, correct, *, weights=None):
    """Confident errors: the share of wrong answers with a confidence above 0.9.

    Parameters say what it is computed from: confidence, correct, probabilities, labels. `weights` gives it intervals.
    """
    wrong = (np.asarray(confidence) > 0.9) & ~np.asarray(correct, dtype=bool)
    return accuracy(wrong, weights=weights).value
