"""TPT: test-time prompt tuning (Shu et al., NeurIPS 2022)."""

from ._api import Adapted, adapter
from ._batch import Batch
from ._tuner import tune_context


@adapter(
    "tpt", title="TPT", cite="Shu et al., NeurIPS 2022", place=10, headline=True, tunes_text=True, one_template=True
)  # fmt: skip
def tpt(batch: Batch, *, steps: int = 1, lr: float = 5e-3, rho: float = 0.1) -> Adapted:
    """Tune the context to lower the entropy of the mean prediction over the confident views.

    L = -sum_k pbar_k log pbar_k, pbar the mean probability of the rho*N views of lowest entropy (Eq. 2). AdamW starts
    from the task's initial context for every sample.
    """
    return tune_context(batch, steps=steps, lr=lr, rho=rho)
