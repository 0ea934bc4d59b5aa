"""What a type checker sees of the classifier; pyright checks this file (pyproject.toml)."""

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
