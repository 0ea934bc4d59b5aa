"""Zero-shot: no adaptation."""

from ._api import Adapted, adapter
from ._start import Start


@adapter("zeroshot", title="Zero-shot", cite="Radford et al., ICML 2021", place=0, headline=True)
def zeroshot(start: Start) -> Adapted:
    """The backbone as it is: adapted logits equal the zero-shot ones (Eq. 1)."""
    return Adapted(zero_shot_logits=start.zero_shot, logits=start.zero_shot.clone())
