"""Random logits and the calls that every calibrator is tested with."""

from __future__ import annotations

import torch

from cots import calibrate
from cots.calibrators import CALIBRATORS

METHODS = ["none", "sals", "cor", "cots", "ecots", "ensemble", "zero", "ts"]
NEED_SETTINGS = ["pseudocal", "dac"]
CALLS = [(m, {}) for m in METHODS] + [(m, {"solver": "adam"}) for m in ("cots", "ecots")]
CALLS += [("cots", {"loss": loss, "solver": "adam"}) for loss in ("l1", "huber", "kl")] + [("cots", {"loss": "kl"})]


def random_logits(*shape, scale=3.0, seed=0, dtype=torch.float32):
    """Adapted and zero-shot logits, independent of each other."""
    g = torch.Generator().manual_seed(seed)
    return tuple((scale * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype) for _ in range(2))


def needed(method, samples, classes):
    """The settings without which a calibrator cannot run."""
    if method == "pseudocal":
        return {"temperature": 2.0}
    if method != "dac":
        return {}
    text, moved = random_logits(samples, classes, 8, dtype=torch.float64)
    text, tuned = (torch.nn.functional.normalize(t, dim=-1) for t in (text[0], text[:1] + 0.3 * moved))
    return {"text_features": text, "tuned_features": tuned}


def published(adapted_logits, zero_shot_logits, method="cots", **settings):
    """`cots.calibrate` with the paper's solver where the method has one, like a run."""
    if "solver" in CALIBRATORS.settings(method):
        settings.setdefault("solver", "adam")
    return calibrate(adapted_logits, zero_shot_logits, method, **settings)
