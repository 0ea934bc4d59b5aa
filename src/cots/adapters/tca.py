"""TCA: prompts with attributes (Hebbalaguppe et al., ECML-PKDD 2025, https://arxiv.org/abs/2506.22819).

Shape letters: B samples, V views, n selected views, K classes, A attributes, D embedding width.
"""

from torch import Tensor

from .._arrays import take
from .._errors import InputError, whole_number
from ..prompts import Task
from ._api import Adapted, adapter
from ._batch import Batch, confident_views, marginal_entropy
from ._tuner import TextTerm, check_context, tune_context


@adapter(
    "tca", title="TCA", cite="Hebbalaguppe et al., ECML-PKDD 2025", place=86, one_template=True, takes_attributes=True
)
def tca(
    batch: Batch,
    *,
    words: int = 2,
    alpha: float = 10.0,
    beta: float = 35.0,
    double_softmax: bool = False,
    steps: int = 1,
    lr: float = 5e-3,
    rho: float = 0.1,
) -> Adapted:
    """TPT over attributes, such as `a photo of a striped cat.`, apart between classes and together within each.

    u_ka are the features of the first A = `words` attributes of each class, s the logit scale, m_k = mean_a u_ka:
        class logit z_k = log sum_a exp(s x . u_ka);   L = H(mean_v softmax z_v) - alpha D + beta R,
        D = mean_k ||m_k - mean_j m_j||,   R = mean_ka ||u_ka - m_k||,
    with the rho*V views of lowest entropy, m_k not normalised, and one context for all texts. With one word, R is 0.

    double_softmax=True is the form of the authors' code, which applies softmax to the probabilities softmax z again, to
    select views and in the entropy. That is nearly uniform, so D and R, which do not see the image, decide the step.

    The zero-shot logits that calibrators see are z before the step, not those of the names alone. alpha and beta:
    by default those of two words on fine-grained sets; published with one word are 1 and 10, and on ImageNet and its
    variants 10 and 20, or 45 and 15 with two. The words are the user's, because the published lists have no licence.
    """
    task, count = batch.task, whole_number("words", words, least=1)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not -float("inf") < value < float("inf"):
            raise InputError(f"{name} must be finite, not {value!r}.")
    check_context(task)
    every = AttributeBatch(batch.features, task.by_attribute(count), count, double_softmax)

    def spread(text: Tensor) -> Tensor:
        """-alpha D + beta R of texts (..., K*A, D)"""
        u = text.unflatten(-2, (-1, count))
        m = u.mean(-2)
        D = (m - m.mean(-2, keepdim=True)).norm(dim=-1).mean(-1)
        R = (u - m[..., None, :]).norm(dim=-1).mean((-2, -1))
        return beta * R - alpha * D

    term = TextTerm(name=f"tca {alpha} {beta}", value=spread, weight=1.0)
    adapted = tune_context(every, steps=steps, lr=lr, rho=rho, objective=every.loss, term=term)
    return Adapted(
        zero_shot_logits=every.over_attributes(adapted.zero_shot_logits),
        logits=every.over_attributes(adapted.logits),
    )


class AttributeBatch(Batch):
    """Samples whose logits have one column per attribute; views are selected by the entropy over classes."""

    def __init__(self, features: Tensor, task: Task, count: int, double_softmax: bool) -> None:
        super().__init__(features, task)
        self.count, self.double_softmax = count, double_softmax

    def over_attributes(self, z: Tensor) -> Tensor:
        """Class logits (..., K) from logits (..., K*A)."""
        return z.unflatten(-1, (-1, self.count)).logsumexp(-1)

    def scores(self, z: Tensor) -> Tensor:
        """What is turned into probabilities for the selection and the loss: class logits, or their probabilities."""
        logits = self.over_attributes(z)
        return logits.softmax(-1) if self.double_softmax else logits

    def selected(self, rho: float) -> Tensor:
        return take(self.features, confident_views(self.scores(self.zero_shot), rho))

    def loss(self, logits_BnK: Tensor, weak_BK: Tensor) -> Tensor:
        """The entropy of the mean probability over the selected views."""
        return marginal_entropy(self.scores(logits_BnK))
