"""Calibrate your own adaptation method in two ways: as a registered adapter, and from its logits only.

    python examples/plug_in_your_method.py [--photos 60]

Runs offline with the embedded model and the view features of real photos that ship with it. Replace `pull` with your
method.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import cots
from cots.adaptation import Pipeline
from cots.adapters import Batch
from cots.demo import read_photos

VERDICT = """
`pull` is only a template: it adds far more confidence than accuracy. CoTS keeps its answers and moves their confidence
back towards zero-shot's, which is too high on these paintings as well; only labels can correct that (cots check)."""


# An adapter is one function: a batch with view features (B,V,D) and the task in, logits of all views before and after
# adaptation out. Its keyword-only parameters are its settings.
@cots.adapter("pull")
def pull(batch: Batch, *, rate: float = 0.3, keep: float = 0.1) -> cots.Adapted:
    """Pull each class's text features towards the most confident views, in proportion to the class's probability."""
    features, task, before = batch.features, batch.task, batch.zero_shot  # (B,V,D), the task, (B,V,K)
    probabilities = before.softmax(dim=-1)
    n = max(1, round(keep * features.shape[1]))
    chosen = probabilities.amax(dim=-1).topk(n, dim=1).indices  # (B,n)
    rows = torch.arange(len(features))[:, None]
    centre = features[rows, chosen].mean(dim=1)  # (B,D)
    weight = probabilities[rows, chosen].mean(dim=1)  # (B,K)
    text = task.text_features + rate * weight[:, :, None] * centre[:, None, :]
    text = torch.nn.functional.normalize(text, dim=-1)  # (B,K,D)
    return cots.Adapted(zero_shot_logits=before, logits=task.logit_scale * features @ text.mT)


def as_registered_adapter(features: torch.Tensor, task: cots.Task) -> dict[str, cots.Calibrated]:
    """`pull` works wherever a method's name does: here, in cots.Classifier and in cots.bench."""
    outcomes = Pipeline(task, ["zeroshot", "pull", "pull+cots", "pull+ecots"]).run(features)
    return {str(method): outcome.calibrated for method, outcome in outcomes.items()}


def on_logits_only(my_logits: np.ndarray, my_zero_shot_logits: np.ndarray) -> cots.Calibrated:
    """Two arrays (samples, views, classes), view 0 being the whole photo, from any framework and any model."""
    return cots.calibrate(my_logits, my_zero_shot_logits, method="cots", solver="adam")  # as in a run


def scores(result: cots.Calibrated, labels: np.ndarray) -> str:
    confidence = np.asarray(result.confidence, dtype=float)
    correct = np.asarray(result.prediction) == labels
    return (
        f"{100 * correct.mean():10.1f} {100 * confidence.mean():12.1f} "
        f"{100 * float(cots.metrics.ece(confidence, correct)):8.1f} "
        f"{float(cots.metrics.nll(result.probabilities, labels)):8.3f}"
    )


def main(photos: int) -> None:
    art = next(one for one in read_photos() if one.name == "pacs-art")
    art = art.take(np.random.default_rng(0).permutation(len(art.labels))[:photos])
    task = cots.Task(cots.load("mini"), art.classes)
    features = art.features.float()
    print(f"{len(art.labels)} paintings, {len(art.classes)} classes, {features.shape[1]} views each\n")
    print(f"{'':24}accuracy % confidence %    ECE %      NLL")
    for method, result in as_registered_adapter(features, task).items():
        print(f"{method:24}{scores(result, art.labels)}")

    adapted = cots.adapt("pull", features, task)  # imagine that these two arrays come from your own code
    result = on_logits_only(adapted.logits.numpy(), adapted.zero_shot_logits.numpy())
    print(f"{'logits only, cots':24}{scores(result, art.labels)}")
    print(f"\nmedian temperature {float(np.median(np.asarray(result.tau))):.2f}")
    print(VERDICT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=133, help="number of photos to use")
    main(parser.parse_args().photos)
