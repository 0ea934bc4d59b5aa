"""Photos that end after given rounds of `views="auto"`: with random weights no photo is ever sure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from cots.rounds import ROUNDS

# Shares of the demo's photos that end after each round (`benchmarks/auto_views.py`).
SHARES = {"known classes": (0.82, 0.06, 0.04, 0.08), "unknown classes": (0.30, 0.16, 0.13, 0.41)}


@contextmanager
def ending(shares: tuple[float, ...]) -> Iterator[None]:
    """End photos at random after each of ROUNDS with these probabilities."""
    draws = torch.Generator().manual_seed(0)

    def enough(now_BK: Tensor, before_BK: Tensor | None, views: int) -> Tensor:
        place = ROUNDS.index(views)
        left = sum(shares[place:])
        end_B = torch.rand(len(now_BK), generator=draws) < shares[place] / left
        return end_B.to(now_BK.device)

    with patch("cots.photos.enough", enough):
        yield
