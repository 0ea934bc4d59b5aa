"""Template of an online adapter, which carries a state from sample to sample.

cots run --plugin examples/plugins/online_adapter.py --methods zeroshot,means,means+cots ...
"""

from dataclasses import dataclass

import torch

import cots
from cots.adapters import Batch


@dataclass(frozen=True, kw_only=True)
class Means:
    """A dataclass of tensors: `cots run` saves it after every shard, so a killed run resumes in mid-stream."""

    total: torch.Tensor  # (K,D), sum of the features assigned to each class
    count: torch.Tensor  # (K,)


@cots.adapter("means", title="Means", cite="you, 2026", place=510)
def means(batch: Batch, *, state: Means | None = None, strength: float = 0.5) -> cots.Adapted:
    """Add each sample's similarity to the mean feature of every class so far. The parameter `state` makes it online."""
    task, text, before = batch.task, batch.task.text_features, batch.zero_shot
    # Never change the state that was passed in: others may hold it.
    total = torch.zeros_like(text) if state is None else state.total.to(text, copy=True)
    count = text.new_zeros(len(text)) if state is None else state.count.to(text, copy=True)
    after = before.clone()
    for i, (views, logits) in enumerate(zip(batch.features, before, strict=True)):
        k = int(logits[0].argmax())
        total[k] += views[0]
        count[k] += 1
        mean = torch.nn.functional.normalize(total, dim=-1)  # zero where a class has not been seen
        after[i] += strength * task.logit_scale * views @ mean.T
    return cots.Adapted(zero_shot_logits=before, logits=after, state=Means(total=total, count=count))
