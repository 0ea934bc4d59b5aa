"""What a type checker sees of the library; pyright checks this file (pyproject.toml)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, assert_type

import numpy as np
import torch
from PIL import Image

import cots


def uses(classifier: cots.Classifier, file: BinaryIO, image: Image.Image) -> None:
    assert_type(classifier("photo.jpg"), cots.Prediction)
    assert_type(classifier(Path("photo.jpg")), cots.Prediction)
    assert_type(classifier(b"bytes"), cots.Prediction)
    assert_type(classifier(file), cots.Prediction)
    assert_type(classifier(io.BytesIO()), cots.Prediction)
    assert_type(classifier(image), cots.Prediction)
    assert_type(classifier(np.zeros((4, 4))), cots.Prediction)
    assert_type(classifier(torch.zeros(3, 4, 4)), cots.Prediction)
    assert_type(classifier(["a.jpg", "b.jpg"]), list[cots.Prediction])
    assert_type(classifier((image, image)), list[cots.Prediction])
    assert_type(classifier(Path().glob("*.jpg")), list[cots.Prediction])


def calibrates(arrays: np.ndarray, tensors: torch.Tensor, features: torch.Tensor, task: cots.Task) -> None:
    assert_type(cots.calibrate(arrays, arrays).probabilities, np.ndarray)
    assert_type(cots.calibrate(tensors, tensors, "ecots", alpha=0.6).tau, torch.Tensor)
    assert_type(cots.calibrate([[2.0, 1.0]], [[3.0, 1.0]], rows="samples").confidence, np.ndarray)
    assert_type(cots.adapt("zeroshot", features, task).logits, torch.Tensor)
    assert_type(cots.adapt("zeroshot", features.numpy(), task).logits, np.ndarray)
    assert_type(cots.calibrate(tensors, tensors).alpha, float | None)
    assert_type(cots.mean_similarity(task.text_features), float)
    assert_type(cots.fit_temperature(arrays, arrays), float)
