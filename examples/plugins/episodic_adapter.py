"""Template of an episodic adapter, which treats samples independently.

cots run --plugin examples/plugins/episodic_adapter.py --methods zeroshot,agree,agree+cots ...
"""

import torch

import cots


@cots.adapter("agree", title="Agree", cite="you, 2026", place=500)
def agree(features: torch.Tensor, task: cots.Task, *, rate: float = 0.5) -> cots.Adapted:
    """Move every view of a sample towards the mean of its views.

    features: (B,V,D), L2-normalised, view 0 the weak one. Keyword-only parameters are settings. Results must not depend
    on the other samples of the batch.
    """
    mean = features.mean(dim=1, keepdim=True)
    moved = torch.nn.functional.normalize((1 - rate) * features + rate * mean, dim=-1)
    before, after = (task.logit_scale * x @ task.text_features.T for x in (features, moved))
    return cots.Adapted(zero_shot_logits=before, logits=after)
