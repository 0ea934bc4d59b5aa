"""Classifiers to score, and the metrics by their definitions, one sample at a time."""

from __future__ import annotations

import numpy as np
import torch

from cots.metrics import top_label


def classifier(seed: int, n: int = 400, classes: int = 7, sharpness: float = 1.5):
    """Float64 probabilities and labels of a classifier that is right about half of the time, and over-confident."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
    return torch.from_numpy(sharpness * logits).softmax(-1).numpy(), labels


def top(seed: int, **settings):
    probabilities, labels = classifier(seed, **settings)
    confidence, prediction = top_label(probabilities)
    return confidence, prediction == labels


def in_bin(value: float, m: int, bins: int) -> bool:
    return m / bins < value <= (m + 1) / bins or (m == 0 and value == 0)


def naive_gaps(confidence, correct, bins):
    """(|B|, |acc - conf|) of each bin that is not empty."""
    gaps = []
    for m in range(bins):
        inside = [(c, a) for c, a in zip(confidence, correct, strict=True) if in_bin(c, m, bins)]
        if inside:
            conf = sum(c for c, _ in inside) / len(inside)
            acc = sum(bool(a) for _, a in inside) / len(inside)
            gaps.append((len(inside), abs(acc - conf)))
    return gaps


def naive_ece(confidence, correct, bins):
    return sum(size / len(confidence) * gap for size, gap in naive_gaps(confidence, correct, bins))


def naive_adaptive(probabilities, labels, ranges):
    """Sort and split; samples of equal probability share their hits."""
    n, classes = probabilities.shape
    total, terms = 0.0, 0
    for c in range(classes):
        score = probabilities[:, c]
        share = [np.mean([labels[j] == c for j in range(n) if score[j] == score[i]]) for i in range(n)]
        for part in np.array_split(np.argsort(score), min(ranges, n)):
            total += abs(np.mean([share[i] for i in part]) - np.mean(score[part]))
            terms += 1
    return total / terms


def naive_aurc(confidence, correct):
    risks = []
    for threshold in confidence:
        accepted = [not a for c, a in zip(confidence, correct, strict=True) if c >= threshold]
        risks.append(sum(accepted) / len(accepted))
    return sum(risks) / len(risks)
