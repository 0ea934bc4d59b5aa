"""Numbers that more than one stage needs: entropy, the order of views, similarity of text features."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._arrays import as_tensor, check_finite
from ._errors import InputError

# Gaps beyond this are all "probability zero" at any temperature, and their products must not overflow float32.
_WIDEST = 1e18


def gaps(logits: Tensor) -> Tensor:
    """max_j z_j - z_k, never negative: the softmax sees nothing else, and differences of large logits stay exact."""
    return (logits.amax(-1, keepdim=True) - logits).clamp(max=_WIDEST)


def entropy(logits: Tensor) -> Tensor:
    """H(softmax(z)) in nats, over the last axis: log s + E_p[d] with d = max z - z and s = sum exp(-d).

    Both terms are sums of non-negative numbers, so that the order of nearly certain views is not lost to rounding.
    """
    d = gaps(logits)
    e = (-d).exp()
    s = e.sum(-1)
    return s.log() + (e * d).sum(-1) / s


def by_entropy(logits_BVK: Tensor) -> Tensor:
    """View indices, lowest entropy first; of equal entropies the lower index first."""
    return entropy(logits_BVK).argsort(dim=-1, stable=True)


def take(values_BVx: Tensor, index_Bn: Tensor) -> Tensor:
    """The selected views of each sample: (B,V,x) and indices (B,n) -> (B,n,x)."""
    return values_BVx.gather(1, index_Bn[:, :, None].expand(-1, -1, values_BVx.shape[2]))


def mean_similarity(text_features: Any) -> float:
    """alpha of Eq. (6): the mean cosine between the features (K,D) of different classes, of the untuned prompt.

    alpha = 1 / (K(K-1)) * sum over i != j of t_i . t_j = (|sum_i t_i|^2 - K) / (K(K-1)), with t normalised here,
    in float64; 1 for a single class.

    >>> round(mean_similarity([[1.0, 0.0], [3.0, 4.0]]), 6)
    0.6
    """
    t_KD = as_tensor(text_features, "text_features").double()
    if t_KD.ndim != 2 or 0 in t_KD.shape:
        raise InputError(f"text_features must be (K, D), one row per class, not {tuple(t_KD.shape)}.")
    check_finite(t_KD, "text_features")
    t_KD = t_KD / t_KD.abs().amax(1, keepdim=True)  # squares of very large or small features stay representable
    if bool((t_KD != t_KD).any()):
        row = int((t_KD != t_KD).any(1).nonzero()[0])
        raise InputError(f"text_features[{row}] is all zeros and has no direction; encode that class name again.")
    t_KD = t_KD / t_KD.norm(dim=1, keepdim=True)
    classes = len(t_KD)
    if classes == 1:
        return 1.0
    mean = (float(t_KD.sum(0).square().sum()) - classes) / (classes * (classes - 1))
    return min(1.0, max(-1.0, mean))
