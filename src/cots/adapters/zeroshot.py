"""Zero-shot: no adaptation."""

from ._api import Adapted, adapter
from ._batch import Batch


@adapter("zeroshot", title="Zero-shot", cite="Radford et al., ICML 2021", place=0, headline=True, one_view={})
def zeroshot(batch: Batch) -> Adapted:
    """The backbone as it is: adapted logits equal the zero-shot ones (Eq. 1)."""
    return Adapted(zero_shot_logits=batch.zero_shot, logits=batch.zero_shot.clone())
