"""Random logits and the calls that every calibrator is tested with."""

from __future__ import annotations

import torch

METHODS = ["none", "sals", "cor", "cots", "ecots", "ensemble", "zero", "ts"]
CALLS = [(m, {}) for m in METHODS] + [(m, {"solver": "exact"}) for m in ("cots", "ecots")]
CALLS += [("cots", {"loss": loss}) for loss in ("l1", "huber", "kl")] + [("cots", {"loss": "kl", "solver": "exact"})]


def random_logits(*shape, scale=3.0, seed=0, dtype=torch.float32):
    """Adapted and zero-shot logits, independent of each other."""
    g = torch.Generator().manual_seed(seed)
    return tuple((scale * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype) for _ in range(2))
