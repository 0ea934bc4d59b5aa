"""Second implementations of the methods beside the paper's: one sample and one view at a time, lists and dictionaries.

Written from the papers' equations, sharing no code with the package beyond the models themselves.
"""

from __future__ import annotations

import math

import torch

from support.compiler import without_compiler
from support.naive_adapt import entropy_of, select


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def mta(features, T0, scale, lambda_q=4.0, lambda_y=0.2, share=0.3):
    """One sample (V,D): zero-shot logits, the mode's logits, inlierness weights and the mean's length."""
    V = len(features)
    z = scale * features @ T0.T
    p = [row.softmax(0) for row in z]
    agree = [[float(p[v] @ p[u]) for u in range(V)] for v in range(V)]
    bandwidth = []
    for v in range(V):
        others = sorted(float((features[v] - features[u]).norm()) for u in range(V) if u != v)
        near = others[: int(share * (V - 1))]
        bandwidth.append(0.5 * sum(d * d for d in near) / len(near))

    def kernel(m, v):
        return math.exp(-float((features[v] - m) @ (features[v] - m)) / (2 * bandwidth[v]))

    y, m = [1 / V] * V, features[0]
    for _ in range(5):
        k = [kernel(m, v) for v in range(V)]
        for _ in range(5):
            scores = torch.tensor(
                [(k[v] + lambda_q * sum(agree[v][u] * y[u] for u in range(V))) / lambda_y for v in range(V)],
                dtype=features.dtype,
            )
            new = scores.softmax(0).tolist()
            moved = math.sqrt(sum((a - b) ** 2 for a, b in zip(new, y, strict=True)))
            y = new
            if moved < 1e-6:
                break
        for _ in range(5):
            w = [kernel(m, v) * y[v] for v in range(V)]
            w = [value / sum(w) for value in w]
            mean = sum(w[v] * features[v] for v in range(V))
            moved = float((mean / mean.norm() - m).norm())
            m = mean / mean.norm()
            if moved < 1e-6:
                break
    return z, scale * T0 @ m, w, float(mean.norm())


def rtpt_weights(features, neighbours=20, temperature=0.01):
    r = []
    for v, x in enumerate(features):
        cosines = sorted((float(x @ other) for u, other in enumerate(features) if u != v), reverse=True)
        near = cosines[:neighbours]
        r.append(sum(near) / len(near) / temperature)
    return torch.tensor(r, dtype=features.dtype).softmax(0)


def onzeta(stream, T0, scale, length, alpha=1.0, beta=0.4, tau=0.04, c_w=0.5, c_r=20.0):
    K, rho, proxies, out = len(T0), [0.0] * len(T0), [t.clone() for t in T0], []
    for i, features in enumerate(stream):
        b = beta * math.sqrt((i + 1) / length)
        q = v = None
        rows = []
        for n, x in enumerate(features):
            own = (scale * T0 @ x).softmax(0) * torch.tensor(rho, dtype=x.dtype).exp()
            own = own / own.sum()
            vision = torch.stack([w @ x / tau for w in proxies]).softmax(0)
            rows.append((b * vision + (1 - b) * own).log())
            if n == 0:
                q, v = own, vision
        out.append(torch.stack(rows))
        eta = 1 / math.sqrt(i + 1)
        for k in range(K):
            rho[k] = max(0.0, rho[k] - c_r * eta * (float(q[k]) - alpha / K))
            proxies[k] = unit(proxies[k] - c_w * eta / tau * (v[k] - q[k]) * features[0])
    return out


def dmn(stream, T0, scale, shots=50, b=5.5, gamma=1.0, rho=0.1):
    memory, out = {k: [] for k in range(len(T0))}, []
    for features in stream:
        z = scale * features @ T0.T
        p = z[select(z, rho)].softmax(1).mean(0)
        k, e = int(p.argmax()), float(entropy_of(p))
        slots = memory[k]
        if len(slots) < shots:
            slots.append((features[0], e))
        else:
            worst = max(range(shots), key=lambda s: slots[s][1])
            if e < slots[worst][1]:
                slots[worst] = (features[0], e)
        rows = []
        for x in features:
            scores = []
            for c in range(len(T0)):
                read = sum(math.exp(-b * (1 - float(x @ m))) * m for m in [T0[c], *(f for f, _ in memory[c])])
                scores.append(scale * x @ unit(read))
            rows.append((((scale * T0 @ x).softmax(0) + gamma * torch.stack(scores).softmax(0)) / (1 + gamma)).log())
        out.append(torch.stack(rows))
    return out, memory


def boostadapter(stream, T0, scale, positive=(2.0, 5.0), negative=(0.117, 1.0), extra=1, rho=0.1, query="weak"):
    K = len(T0)
    plus, minus, out = {k: [] for k in range(K)}, {k: [] for k in range(K)}, []
    for features in stream:
        z = scale * features @ T0.T
        chosen = select(z, rho)
        if query == "weak":
            x, score, p = features[0], z[0], z[0].softmax(0)
        else:
            x, score, p = features[chosen].mean(0), z[chosen].mean(0), z[chosen].softmax(1).mean(0)
        k, H = int(score.argmax()), float(entropy_of(p))
        plus[k] = sorted([*plus[k], (x, H)], key=lambda e: e[1])[:3]
        boosted = {c: list(entries) for c, entries in plus.items()}
        for v in chosen:
            c = int(z[v].argmax())
            entry = (features[v], float(entropy_of(z[v].softmax(0))))
            boosted[c] = sorted([*boosted[c], entry], key=lambda e: e[1])[: 3 + extra]
        if 0.2 < H / math.log2(K) < 0.5:
            minus[k] = [*minus[k], (x, ((p > 0.03) & (p < 1)).to(p.dtype))][-2:]
        adapted = z.clone()
        for v, own in enumerate(features):
            for c, entries in boosted.items():
                for f, _ in entries:
                    adapted[v, c] += positive[0] * math.exp(-positive[1] * (1 - float(own @ f)))
            for entries in minus.values():
                for f, mask in entries:
                    adapted[v] -= negative[0] * math.exp(-negative[1] * (1 - float(own @ f))) * mask
        out.append(adapted)
    return out, plus, minus


@without_compiler()
def dpe(stream, T0, scale, positive=(6.0, 5.0), lr=6e-4, weight=0.5, rho=0.1, query="weak"):
    """Gradients by autograd, the step by torch.optim."""
    K, text, moves, cache, out = len(T0), T0.clone(), 0, {}, []
    a, b = positive
    for features in stream:
        L = scale * features @ unit(text).T
        rows = [0] if query == "weak" else select(L, rho)
        f, c = features[rows].mean(0), int(L[rows].mean(0).argmax())
        e = float(entropy_of(L[rows].softmax(1).mean(0))) / math.log2(K)
        entries = cache.setdefault(c, [])
        if len(entries) < 3:
            entries.append((f, e))
        elif e < entries[-1][1]:
            entries[-1] = (f, e)
        entries.sort(key=lambda entry: entry[1])
        present = sorted(cache)
        means = torch.stack([sum(f for f, _ in cache[j]) / len(cache[j]) for j in present])
        R, S = torch.nn.Parameter(torch.zeros_like(text)), torch.nn.Parameter(torch.zeros_like(means))
        optimiser = torch.optim.AdamW([R, S], lr=lr, eps=1e-3, weight_decay=0.1)

        def logits(x, T, P, present=present):
            z = scale * T @ x
            bonus = a * (-b * (1 - P @ x)).exp()
            return z + torch.zeros_like(z).index_add(0, torch.tensor(present), bonus)

        T, P = unit(text + R), unit(means + S)
        align = torch.nn.functional.cross_entropy(P @ T[present].T / 0.01, torch.arange(len(present)))
        (entropy_of(logits(f, T, P).softmax(0)) + weight * align).backward()
        optimiser.step()
        with torch.no_grad():
            T, P = unit(text + R), unit(means + S)
            out.append(torch.stack([logits(x, T, P) for x in features]))
            if float(entropy_of(out[-1][0].softmax(0))) / math.log2(K) < 0.1:
                moves += 1
                text = text * moves / (moves + 1) + T / (moves + 1)
    return out, text, moves


def ecalp(stream, T0):
    """Scores (V,K) of every sample, from the whole graph, built anew for each sample."""
    K, w, xs, labels, out = len(T0), unit(T0.var(0)), [], [], []

    def similarity(older, newer):
        return float(unit(w * older) @ newer)

    def nearest(values, count):
        return sorted(range(len(values)), key=lambda j: -values[j])[:count]

    def normalised(rows):
        return 1 / (rows.sqrt() + 1e-6)

    for features in stream:
        xs.append(features[0])
        nodes = [*xs, features[0]]
        M = len(nodes)
        W = torch.zeros(K + M, K + M, dtype=T0.dtype)
        for i in range(M):
            row = [similarity(nodes[min(i, j)], nodes[max(i, j)]) for j in range(M)]
            for j in nearest(row, 8):
                W[K + i, K + j] = row[j] ** 10
            row = (T0 @ nodes[i]).tolist()
            for j in nearest(row, 3):
                W[K + i, j] = row[j] ** 10
        W = W + W.T
        d = normalised(W.sum(1))
        S = d[:, None] * W * d
        Y = torch.cat([torch.eye(K, dtype=T0.dtype), torch.zeros(M, K, dtype=T0.dtype)])
        for i, (k, value) in enumerate(labels):
            Y[K + i, k] = value
        for _ in range(3):
            Y = torch.cat([Y[:K], S[K:] @ Y])
        labels = [(int(row.argmax()), float(row.max()) / 5) for row in Y[K:-1]]
        rows = [Y[-1]]
        for x in features[1:]:
            images, texts = [similarity(node, x) for node in xs], (T0 @ x).tolist()
            edges = {K + j: images[j] ** 10 for j in nearest(images, 8)}
            edges |= {j: texts[j] ** 10 for j in nearest(texts, 3)}
            own = 1 / (math.sqrt(sum(edges.values())) + 1e-6)
            rows.append(sum(own * weight * d[j] * Y[j] for j, weight in edges.items()))
        out.append(torch.stack(rows))
    return out


@without_compiler()
def sts(features, T0, scale, steps=1, lr=5e-3, rho=0.1, directions=0):
    """One sample (V,D): its logits under the shifted texts, by autograd and torch.optim."""
    _, values, rows = torch.linalg.svd(T0)
    if directions == 0:
        beta = min(T0.shape) / max(T0.shape)
        omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
        ordered = sorted(values.tolist())
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        directions = sum(value >= omega * middle for value in ordered)
    chosen = features[select(scale * features @ T0.T, rho)]
    gamma = torch.nn.Parameter(torch.zeros(directions, dtype=T0.dtype))
    optimiser = torch.optim.AdamW([gamma], lr=lr, eps=1e-8, weight_decay=0.01)

    def texts():
        shift = sum((g * row for g, row in zip(gamma, rows, strict=False)), torch.zeros(T0.shape[1], dtype=T0.dtype))
        return torch.stack([unit(t + shift) for t in T0])

    for _ in range(steps):
        optimiser.zero_grad()
        entropy_of((scale * chosen @ texts().T).softmax(1).mean(0)).backward()
        optimiser.step()
    return (scale * features @ texts().T).detach(), texts().detach()
