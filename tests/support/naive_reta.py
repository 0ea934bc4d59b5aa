"""Second implementation of ReTA: lists and dictionaries, gradients by autograd, the step by torch.optim."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy

from support.compiler import without_compiler
from support.naive_adapt import entropy_of, select
from support.naive_toolbox import unit


def nested(sentences):
    """The three texts (3,D) of a class from the features of its sentences, a list."""
    total = [sum(float(a @ b) for j, b in enumerate(sentences) if j != i) for i, a in enumerate(sentences)]
    order = sorted(range(len(sentences)), key=lambda i: total[i])
    texts = []
    for share in (1, 2, 3):
        some = [sentences[i] for i in order[: share * len(sentences) // 3]]
        texts.append(unit(sum(some) / len(some)))
    return torch.stack(texts)


def votes_of(x, T, V):
    """The class that each of the three texts votes for, in the subspace whose directions are the rows of V."""
    seen = sum((x @ v) * v for v in V)
    return [max(range(len(T)), key=lambda k, r=r: float(seen @ T[k, r])) for r in range(3)]


def doubt_of(votes, y):
    """(3 / c) g"""
    counts = [votes.count(vote) for vote in votes]
    commonest = votes[counts.index(max(counts))]
    return 3 / max(counts) * (1 if commonest == y else 2)


def gaussian_logits(x, T, y, scale):
    """s x . mu_k + s^2/2 times the variance of x . (t_y - t_k) over the three texts, with their number plus one."""
    mu = T.mean(1)
    c = T - mu[:, None]
    rows = []
    for k in range(len(T)):
        variance = sum((x**2 * (c[y, r] - c[k, r]) ** 2).sum() for r in range(3)) / 4
        rows.append(scale * x @ mu[k] + scale**2 / 2 * variance)
    return torch.stack(rows)


@without_compiler()
def reta(
    stream, texts, scale, positive=(6.0, 5.0), lambda_=0.5, reliability=1.0, lr=6e-4, weight=0.5, zeta=0.05,
    rho=0.1, query="weak", moving=False,
):  # fmt: skip
    """texts (K,3,D) at the start. moving: the directions follow the texts."""
    K, G, moves, cache, out, doubts = len(texts), texts.clone(), 0, {}, [], []
    a, b = positive
    V = torch.linalg.svd(texts[:, 2], full_matrices=False)[2][:64]
    for features in stream:
        T = unit(G)
        if moving:
            V = torch.linalg.svd(T[:, 2], full_matrices=False)[2][:64]
        L = scale * features @ T[:, 2].T
        rows = [0] if query == "weak" else select(L, rho)
        f, y = features[rows].mean(0), int(L[rows].mean(0).argmax())
        h = float(entropy_of(L[rows].softmax(1).mean(0))) / math.log2(K)
        doubts.append(doubt_of(votes_of(f, T, V), y))
        w = reliability * math.log(doubts[-1])
        entries = cache.setdefault(y, [])
        if len(entries) < 3:
            entries.append((f, h * (1 + w)))
        elif h * (1 + w) < entries[-1][1]:
            entries[-1] = (f, h * (1 + w))
        entries.sort(key=lambda entry: entry[1])
        present = sorted(cache)
        P = torch.stack([unit(sum(f for f, _ in cache[j]) / len(cache[j])) for j in present])

        def scores(x, text, present=present, P=P):
            z = scale * text @ x
            return z + torch.zeros_like(z).index_add(0, torch.tensor(present), a * (-b * (1 - P @ x)).exp())

        R = torch.nn.Parameter(torch.zeros_like(G))
        optimiser = torch.optim.AdamW([R], lr=lr, eps=1e-3, weight_decay=0.1)
        T = unit(G + R)
        aligned = T.mean(1) if reliability < 0.5 else T[:, 2]
        loss = entropy_of(scores(f, T[:, 2]).softmax(0))
        loss = loss + weight * cross_entropy(P @ aligned[present].T / 0.01, torch.arange(len(present)))
        if w == 0:
            z = torch.stack([gaussian_logits(x, T, y, scale) for x in features])
            chosen = select(z.detach(), rho)
            loss = loss + zeta * sum(-z[v].log_softmax(0)[y] for v in chosen) / len(chosen)
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            T = unit(G + R)
            z = torch.stack([scores(x, T.mean(1)) for x in features])
            m = z[select(z, rho)].softmax(1).mean(0)
            first = [scores(x, T[:, 2]).softmax(0) for x in features]
            out.append(torch.stack([(lambda_ * p + (1 - lambda_) * m).log() for p in first]))
            if float(entropy_of(first[0])) / math.log2(K) < 0.1:
                moves += 1
                G = G * moves / (moves + 1) + T / (moves + 1)
    return out, G, moves, cache, doubts
