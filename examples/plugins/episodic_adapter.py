"""Template of an episodic adapter, which treats samples independently.

cots run --plugin examples/plugins/episodic_adapter.py --methods zeroshot,agree,agree+cots ...
"""

import torch

import cots
from cots.adapters import Batch


@cots.adapter("agree", title="Agree", cite="you, 2026", place=500)
def agree(batch: Batch, *, rate: float = 0.5) -> cots.Adapted:
    """Move every view of a sample towards the mean of its views.

    batch.features: (B,V,D), L2-normalised, view 0 the weak one; batch.zero_shot: their logits (B,V,K). Keyword-only
    parameters are settings. Results must not depend on the other samples of the batch.
    """
    features, task = batch.features, batch.task
    mean = features.mean(dim=1, keepdim=True)
    moved = torch.nn.functional.normalize((1 - rate) * features + rate * mean, dim=-1)
    return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=task.logit_scale * moved @ task.text_features.T)
