"""ECALP: label propagation on a graph that grows with the stream (Li et al., ICLR 2025, arXiv:2412.18303)."""

import math
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from .._checks import one_of
from ..prompts import Task
from ._api import Adapted, adapter
from ._online import State, each_sample
from ._start import Start

IMAGES, TEXTS, POWER, ITERATIONS = 8, 3, 10, 3
FADE, SCALE = 5.0, 10_000.0
SMALLEST, FLOOR = 1e-6, 1e-12


@dataclass(frozen=True, kw_only=True)
class ECALPState(State):
    """The images so far: reweighted features, edges to the nearest images (-inf: no edge yet), top labels."""

    keys: Tensor  # (N, D), normalise(w * x)
    near: Tensor  # (N, 8), images
    similarity: Tensor  # (N, 8)
    text_edges: Tensor  # (N, K), similarity ** 10 of the nearest texts, else 0
    top_label: Tensor  # (N,)
    top_value: Tensor  # (N,)

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of classes and width of the features."""
        return self.text_edges.shape[1], self.keys.shape[1]

    @classmethod
    def empty(cls, task: Task, samples: int = 0) -> Self:
        """A graph with room for `samples` images."""
        (K, D), new = task.text_features.shape, task.text_features.new_zeros
        whole = {"dtype": torch.int64, "device": task.device}
        return cls(
            keys=new(samples, D),
            near=torch.zeros(samples, IMAGES, **whole),
            similarity=new(samples, IMAGES) - math.inf,
            text_edges=new(samples, K),
            top_label=torch.zeros(samples, **whole),
            top_value=new(samples),
        )

    def grown(self, task: Task, samples: int) -> Self:
        """With room for `samples` more images."""
        more = self.empty(task, samples)
        return type(self)(**{f.name: torch.cat([getattr(self, f.name), getattr(more, f.name)]) for f in fields(self)})


@adapter("ecalp", title="ECALP", cite="Li et al., ICLR 2025", place=115)
def ecalp(start: Start, *, state: ECALPState | None = None, output: str = "softmax") -> Adapted:
    """Label propagation from texts to images on a graph that grows with the stream.

    Nodes are the K texts, the images of the stream (view 0) and a copy of the newest one. Each image has edges to its
    8 most similar images, S_ab = cos(w * x_a, x_b) for a older than b, w = normalise(var over classes of t), and to its
    3 most similar texts, of weight S^10; W + W' is normalised by the roots of its row sums. Three times
        Y <- W_text I + W_image Y,
    starting from each image's top label at the previous sample, at a fifth of its value. The row y of the copy is the
    result.

    output: "softmax", logits 10000 y as in the authors' code (Yushu-Li/ECALP, 96ddf0b), an arbitrary scale that is
    nearly always certain; "share", probabilities y / sum(y). Constants follow that code. Not verified in the paper: the
    copy, the fifth and the factor 10000. Their code sometimes drops an early neighbour; here the 8 nearest are exact.
    Views other than 0 replace the copy, with their own edges, and read the final labels once; this is not part of
    ECALP. Time per sample and memory grow with the square of the number of images.
    """
    one_of("output", output, ("softmax", "share"))
    task, text, zero_shot = start.task, start.task.text_features, start.zero_shot
    before = ECALPState.empty(task) if state is None else state.copy_to(task)
    seen, graph = len(before.keys), before.grown(task, len(zero_shot))
    reweight = F.normalize(text.var(0), dim=0) if len(text) > 1 else torch.ones_like(text[0])
    graph.keys[seen:] = F.normalize(reweight * start.inputs[:, 0], dim=-1)
    views_BVK = nearest_texts(start.inputs @ text.T)
    graph.text_edges[seen:] = views_BVK[:, 0]

    def step(i: int) -> Tensor:
        n = seen + i + 1  # images, with this one
        scores_VK = propagate(graph, n, start.inputs[i], views_BVK[i])
        if output == "softmax":
            return SCALE * scores_VK
        return (scores_VK / scores_VK.sum(-1, keepdim=True).clamp_min(FLOOR)).clamp_min(FLOOR).log()

    return Adapted(zero_shot_logits=zero_shot, logits=each_sample(zero_shot, step), state=graph)


def nearest_texts(cosine: Tensor) -> Tensor:
    """cosine ** 10 of the 3 largest, else 0."""
    value, place = cosine.sort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(cosine).scatter(-1, place[..., :TEXTS], value[..., :TEXTS] ** POWER)


def propagate(graph: ECALPState, n: int, x_VD: Tensor, text_VK: Tensor) -> Tensor:
    """Scores (V,K) of image n - 1, the newest; adds its edges and label to the graph."""
    similarity_Vn = x_VD @ graph.keys[:n].T
    mine_n = similarity_Vn[0]
    older = graph.near[: n - 1], graph.similarity[: n - 1]
    offer(*older, mine_n[: n - 1], n - 1)
    value, place = mine_n.sort(descending=True, stable=True)
    count = min(IMAGES, n)
    graph.near[n - 1, :count], graph.similarity[n - 1, :count] = place[:count], value[:count]

    # The copy is node n for this sample only; as the last node it loses ties.
    near, similarity = graph.near[:n].clone(), graph.similarity[:n].clone()
    offer(near, similarity, mine_n, n)
    value, place = torch.cat([mine_n, mine_n[-1:]]).sort(descending=True, stable=True)
    W = x_VD.new_zeros(n + 1, n + 1)
    W[:n].scatter_add_(1, near, torch.where(similarity.isfinite(), similarity**POWER, 0))
    W[n, place[:IMAGES]] = value[:IMAGES] ** POWER
    W = W + W.T
    text = torch.cat([graph.text_edges[:n], text_VK[:1]])
    d, d_text = (1 / (sums.sqrt() + SMALLEST) for sums in (W.sum(1) + text.sum(1), text.sum(0)))
    W, text = d[:, None] * W * d, d[:, None] * text * d_text
    Y = torch.zeros_like(text)
    Y[: n - 1].scatter_(1, graph.top_label[: n - 1, None], graph.top_value[: n - 1, None])
    for _ in range(ITERATIONS):
        Y = text + W @ Y
    top = Y[:n].max(1)
    graph.top_label[:n], graph.top_value[:n] = top.indices, top.values / FADE

    value, place = similarity_Vn.sort(dim=1, descending=True, stable=True)
    edges_Vn = torch.zeros_like(similarity_Vn).scatter(1, place[:, :IMAGES], value[:, :IMAGES] ** POWER)
    d_V = 1 / ((edges_Vn.sum(1) + text_VK.sum(1)).sqrt() + SMALLEST)
    scores_VK = d_V[:, None] * (edges_Vn @ (d[:n, None] * Y[:n]) + text_VK * d_text)
    scores_VK[0] = Y[n]
    return scores_VK


def offer(near: Tensor, similarity: Tensor, new: Tensor, node: int) -> None:
    """Replace the least similar neighbour of each row by `node` if that is more similar. Works in place."""
    least, slot = similarity.min(1, keepdim=True)
    better = new[:, None] > least
    near.scatter_(1, slot, torch.where(better, node, near.gather(1, slot)))
    similarity.scatter_(1, slot, torch.where(better, new[:, None], least))
