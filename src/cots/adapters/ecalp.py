"""ECALP: label propagation on a graph that grows with the stream (Li et al., ICLR 2025, arXiv:2412.18303)."""

import math
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from .._errors import check_one_of
from ..prompts import Task
from ._api import Adapted, adapter
from ._batch import Batch
from ._stream import State, run_stream, stack_logits

IMAGES, TEXTS, POWER, ITERATIONS = 8, 3, 10, 3
FADE, SCALE = 5.0, 10_000.0
ROOM = 64  # images by which the graph grows: steps of one shape, and a rounding that depends on the place in the stream
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

    def resized(self, task: Task, images: int) -> Self:
        """The first `images` images, or all of them and room for more."""
        more = self.empty(task, max(0, images - len(self.keys)))
        both = {f.name: (getattr(self, f.name), getattr(more, f.name)) for f in fields(self)}
        return type(self)(**{name: torch.cat(parts)[:images] for name, parts in both.items()})


@adapter("ecalp", title="ECALP", cite="Li et al., ICLR 2025", place=115, one_view={})
def ecalp(batch: Batch, *, state: ECALPState | None = None, output: str = "softmax") -> Adapted:
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
    An image and its copy are equally similar to every other image: where only one fits, it is the image here and often
    the copy in their code, which changes probabilities by up to 2e-2.
    Views other than 0 replace the copy, with their own edges, and read the final labels once; this is not part of
    ECALP. Time per sample and memory grow with the square of the number of images.
    """
    check_one_of("output", output, ("softmax", "share"))
    task, text, zero_shot = batch.task, batch.task.text_features, batch.zero_shot
    graph = ECALPState.resumed(state, task) or ECALPState.empty(task)
    first, end = len(graph.keys), len(graph.keys) + len(zero_shot)
    reweight = F.normalize(text.var(0), dim=0) if len(text) > 1 else torch.ones_like(text[0])
    keys_BD = F.normalize(reweight * batch.features[:, 0], dim=-1)
    index_B1 = torch.arange(first, end, device=task.device)[:, None]
    samples = index_B1, keys_BD, batch.features, nearest_texts(batch.features @ text.T)
    outputs = []
    for begin, stop in pairwise([first, *range(first - first % ROOM + ROOM, end, ROOM), end]):
        graph = graph.resized(task, -(-stop // ROOM) * ROOM)
        part = slice(begin - first, stop - first)
        more, graph = run_stream(task, propagate, graph, *(each[part] for each in samples))
        outputs += more
    scores = stack_logits(outputs, zero_shot)
    if output == "softmax":
        logits = SCALE * scores
    else:
        logits = (scores / scores.sum(-1, keepdim=True).clamp_min(FLOOR)).clamp_min(FLOOR).log()
    return Adapted(zero_shot_logits=zero_shot, logits=logits, state=graph.resized(task, end))


def nearest_texts(cosine: Tensor) -> Tensor:
    """cosine ** 10 of the 3 largest, else 0."""
    value, index = cosine.sort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(cosine).scatter(-1, index[..., :TEXTS], value[..., :TEXTS] ** POWER)


def propagate(
    i_1: Tensor, key_D: Tensor, x_VD: Tensor, text_VK: Tensor, keys: Tensor, near: Tensor, similarity: Tensor,
    text_edges: Tensor, top_label: Tensor, top_value: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Scores (V,K) of image i, and the graph after it. Rows of the graph beyond i have room for images to come."""
    N = len(keys)
    keys.index_copy_(0, i_1, key_D[None])
    text_edges.index_copy_(0, i_1, text_VK[:1])
    rows_N = torch.arange(N, device=keys.device)
    similarity_VN = (x_VD @ keys.T).masked_fill(rows_N > i_1, -math.inf)
    value_VN, index_VN = similarity_VN.sort(dim=1, descending=True, stable=True)
    value_V8, index_V8 = value_VN[:, :IMAGES], index_VN[:, :IMAGES]
    mine_N, count = similarity_VN[0], value_V8.shape[1]
    offer(near, similarity, mine_N.masked_fill(rows_N == i_1, -math.inf), i_1)
    near[:, :count].index_copy_(0, i_1, index_V8[:1])
    similarity[:, :count].index_copy_(0, i_1, value_V8[:1])

    # The copy is node N for this sample only, with the neighbours of image i; as the last node it loses ties.
    with_copy = near.clone(), similarity.clone()
    offer(*with_copy, mine_N, torch.full_like(i_1, N))
    W = x_VD.new_zeros(N + 1, N + 1)
    W[:N].scatter_add_(1, with_copy[0], power(with_copy[1]))
    W[N] = W.index_select(0, i_1)[0]
    W = W + W.T
    text = torch.cat([text_edges, text_VK[:1]])
    d, d_text = (1 / (sums.sqrt() + SMALLEST) for sums in (W.sum(1) + text.sum(1), text.sum(0)))
    W, text = d[:, None] * W * d, d[:, None] * text * d_text
    Y = torch.zeros_like(text)
    Y[:N].scatter_(1, top_label[:, None], top_value[:, None])
    for _ in range(ITERATIONS):
        Y = text + W @ Y
    top = Y[:N].max(1)

    edges_VN = torch.zeros_like(similarity_VN).scatter_(1, index_V8, power(value_V8))
    d_V = 1 / ((edges_VN.sum(1) + text_VK.sum(1)).sqrt() + SMALLEST)
    scores_VK = d_V[:, None] * (edges_VN @ (d[:N, None] * Y[:N]) + text_VK * d_text)
    scores_VK[0] = Y[N]
    return scores_VK, keys, near, similarity, text_edges, top.indices, top.values / FADE


def power(similarity: Tensor) -> Tensor:
    """similarity ** 10, 0 where there is no edge."""
    return torch.where(similarity > -math.inf, similarity**POWER, 0)


def offer(near: Tensor, similarity: Tensor, new: Tensor, node_1: Tensor) -> None:
    """Put a node in place of each row's least similar neighbour where it is more similar. In place."""
    least, slot = similarity.min(1, keepdim=True)
    better = new[:, None] > least
    near.scatter_(1, slot, torch.where(better, node_1, near.gather(1, slot)))
    similarity.scatter_(1, slot, torch.where(better, new[:, None], least))
