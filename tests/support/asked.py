"""Photos that were drawn to be labelled, with made-up predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cots.conformal import Setup, draw
from cots.evaluate import Asked
from cots.methods import Prediction


def asked(classes: Sequence[str], photos: int = 60, labels: int = 12, *, uniform: bool = False) -> Asked:
    """A draw from `photos` made-up photos; the prediction is the first class for photo 0, and so on in turn."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.5] * len(classes), size=photos).astype(np.float32)
    predictions = []
    for at, row in enumerate(probabilities):
        predicted = at % len(classes)
        best = int(row.argmax())
        row[[predicted, best]] = row[[best, predicted]]
        predictions.append(
            Prediction(
                label=classes[predicted], confidence=float(row[predicted]), probabilities=row, classes=tuple(classes),
                method="zeroshot", in_list=0.9, agreement=0.75, tau=1.0,
            )
        )  # fmt: skip
    drawn = draw([prediction.confidence for prediction in predictions], labels, uniform=uniform)
    setup = Setup(
        model="tiny", weights_hash="0123", classes=tuple(classes), method="zeroshot", template="{}", views=2,
        solver="none",
    )  # fmt: skip
    return Asked(
        setup=setup, draw=drawn, paths=tuple(f"photos/{at}.jpg" for at in drawn.photos),
        predictions=tuple(predictions[at] for at in drawn.photos),
    )  # fmt: skip
