"""CoTS on an adaptation method of your own, in two ways: as a registered adapter, and on its logits alone.

    python examples/plug_in_your_method.py [--photos 60]

Runs offline: the embedded model and its shipped view features of real photos. `pull` stands for your method.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import cots
from cots.demo import read_photos


# A method is one function: view features (B,V,D) and the task in, logits of all views before and after out.
# Keyword-only parameters are its settings.
@cots.adapter("pull")
def pull(features: torch.Tensor, task: cots.Task, *, rate: float = 0.3, keep: float = 0.1) -> cots.Adapted:
    """Pull every class's text features to the mean of the surest views, as far as those views believe in the class."""
    before = task.logit_scale * features @ task.text_features.T  # (B,V,K)
    belief = before.softmax(dim=-1)
    n = max(1, round(keep * features.shape[1]))
    surest = belief.amax(dim=-1).topk(n, dim=1).indices  # (B,n)
    rows = torch.arange(len(features))[:, None]
    centre = features[rows, surest].mean(dim=1)  # (B,D)
    weight = belief[rows, surest].mean(dim=1)  # (B,K)
    text = task.text_features + rate * weight[:, :, None] * centre[:, None, :]
    text = torch.nn.functional.normalize(text, dim=-1)  # (B,K,D)
    return cots.Adapted(zero_shot_logits=before, logits=task.logit_scale * features @ text.mT)


def as_registered_adapter(features: torch.Tensor, task: cots.Task, method: str) -> cots.Calibrated:
    """`pull` now works wherever a method's name does: here, in cots.Classifier and in cots.bench."""
    parsed = cots.parse_method(method)
    adapted = cots.adapt(parsed.adapter, features, task)
    return cots.calibrate(adapted.logits, adapted.zero_shot_logits, method=parsed.calibrator, alpha=task.alpha)


def on_logits_alone(my_logits: np.ndarray, my_zero_shot_logits: np.ndarray) -> cots.Calibrated:
    """Nothing but two arrays (samples, views, classes), view 0 being the whole photo: any framework, any model."""
    return cots.calibrate(my_logits, my_zero_shot_logits, method="cots")


def figures(result: cots.Calibrated, labels: np.ndarray) -> str:
    confidence = np.asarray(result.confidence, dtype=float)
    correct = np.asarray(result.prediction) == labels
    probability = np.asarray(result.probabilities, dtype=float)[np.arange(len(labels)), labels]
    loss = -np.log(np.maximum(probability, np.finfo(float).tiny)).mean()
    return (
        f"{100 * correct.mean():8.1f} {100 * confidence.mean():12.1f} "
        f"{100 * float(cots.metrics.ece(confidence, correct)):8.1f} {loss:8.3f}"
    )


def main(photos: int) -> None:
    pets = read_photos()[0]
    rows = np.random.default_rng(0).permutation(len(pets.labels))[:photos]
    pets = pets.take(rows)
    task = cots.Task(cots.load("mini"), pets.classes)
    features = pets.features.float()
    print(f"{len(rows)} photos of pets, {len(pets.classes)} classes, {features.shape[1]} views each\n")
    print(f"{'':26}right % confidence %    ECE %      NLL")
    for method in ("zeroshot", "pull", "pull+cots", "pull+ecots"):
        print(f"{method:24}{figures(as_registered_adapter(features, task, method), pets.labels)}")

    adapted = pull(features, task)  # pretend that these two arrays came from your own code
    result = on_logits_alone(adapted.logits.numpy(), adapted.zero_shot_logits.numpy())
    print(f"{'its logits alone, cots':24}{figures(result, pets.labels)}")
    print(f"\nmedian temperature {float(np.median(np.asarray(result.tau))):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=133, help="how many of the shipped photos")
    main(parser.parse_args().photos)
