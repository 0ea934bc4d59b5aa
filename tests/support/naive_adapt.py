"""Second implementation of every adapter: one sample at a time, full-length text, autograd, torch.optim.

Written from the equations, sharing no code with the package beyond the models themselves.
"""

from __future__ import annotations

import copy
import math

import torch

from support.compiler import without_compiler


def prompt_ids(backbone, classes, template="a photo of a {}."):
    texts = [template.format(name.replace("_", " ")) for name in classes]
    return backbone.tokenizer(texts, context_length=backbone.context_length)


def initial_context(backbone, words=4):
    ids = prompt_ids(backbone, ["x"])[0]
    tower = getattr(backbone.model, "text", backbone.model)
    first = 0 if hasattr(backbone.model, "text") else 1
    return tower.token_embedding.weight[ids[first : first + words]].detach().clone()


def text_features(backbone, ids, context):
    """The whole padded sequence of every class through every layer."""
    model = backbone.model
    siglip = hasattr(model, "text")
    tower = model.text if siglip else model
    first = 0 if siglip else 1
    x = tower.token_embedding(ids)
    x = torch.cat([x[:, :first], context.expand(len(ids), -1, -1), x[:, first + len(context) :]], dim=1)
    x = x + tower.positional_embedding
    x = tower.transformer(x, attn_mask=tower.attn_mask)
    x = tower.ln_final(x)
    if siglip:
        x = tower.text_projection(x[:, -1])
    else:
        x = x[torch.arange(len(ids)), ids.argmax(dim=1)] @ tower.text_projection
    return x / x.norm(dim=1, keepdim=True)


def entropy_of(p):
    return -(p * p.log()).sum()


def select(logits, rho):
    entropies = torch.stack([entropy_of(row.softmax(0)) for row in logits])
    return torch.argsort(entropies)[: max(1, int(len(logits) * rho))]


def mean_entropy(logits):
    return entropy_of(logits.softmax(dim=1).mean(dim=0))


def dispersion(T):
    centre = sum(T) / len(T)
    return -sum((t - centre).norm() for t in T) / len(T)


def orthogonality(T):
    return sum(torch.sqrt(sum((t @ u) ** 2 for u in T)) - 1 for t in T) / len(T)


def angles(T):
    total = 0
    for i, t in enumerate(T):
        total = total + torch.stack([torch.acos((t @ u).clamp(-0.999, 0.999)) for j, u in enumerate(T) if j != i]).min()
    return -total / len(T)


def soc_term(T):
    s = torch.stack([T[i] @ T[j] for i in range(len(T)) for j in range(i)])
    s = (s - s.min()) / (s.max() - s.min())
    delta = torch.quantile(s.detach(), 0.2)
    return torch.nn.functional.huber_loss(s, torch.zeros_like(s), delta=float(delta))


def soc_of_the_paper(T, delta):
    total, pairs = 0, 0
    for i in range(len(T)):
        for j in range(i + 1, len(T)):
            s = T[i] @ T[j]
            pairs += 1
            total = total + (s**2 / 2 if s.abs() <= delta else delta * (s.abs() - delta / 2))
    return total / pairs


def divergence_from_uniform(T):
    total = 0
    for t in T:
        q = t.exp() / t.exp().sum()
        total = total + sum(value * (value * len(t)).log() for value in q)
    return total / len(T)


def spread(T):
    total = 0
    for t in T:
        q = t**2 / (t**2).sum()
        total = total + entropy_of(q)
    return -total / len(T)


def rescaled(z, low, high):
    return (z - z.min()) / (z.max() - z.min()) * (high - low) + low


def loss(method, weight, z, T, weak):
    """z: logits of the selected views; weak: view 0's zero-shot logits, a constant."""
    H = mean_entropy(z)
    if method == "tpt":
        return H
    if method == "rtpt":
        return sum(entropy_of(row.softmax(0)) for row in z) / len(z)
    if method == "ctpt":
        return H + weight * dispersion(T)
    if method == "otpt":
        return H + weight * orthogonality(T)
    if method == "atpt":
        return H + weight * angles(T)
    if method == "soc":
        R = soc_term(T)
        return H + weight * (H.detach() / R.detach()) * R
    if method == "soc, paper":
        lambda_, delta = weight
        return H + lambda_ * soc_of_the_paper(T, delta)
    if method == "dtpt":
        return H + weight * spread(T)
    if method == "dtpt, softmax":
        return loss("rtpt", None, z, T, weak) + weight * divergence_from_uniform(T)
    if method == "penalty":
        outside = [(v - weak.max()).clamp_min(0) + (weak.min() - v).clamp_min(0) for v in z.flatten()]
        return H + weight * sum(outside) / len(outside)
    if method == "zsnorm":
        return mean_entropy(torch.stack([rescaled(row, weak.min(), weak.max()) for row in z]))
    raise KeyError(method)


@without_compiler()
def tune(method, features, backbone, classes, context=None, weight=None, steps=1, lr=5e-3, rho=0.1):
    """One sample (V,D): zero-shot logits, adapted logits, and the gradient of every step."""
    ids = prompt_ids(backbone, classes)
    scale = backbone.model.logit_scale.exp()
    context = initial_context(backbone) if context is None else context
    start = context
    context = torch.nn.Parameter(context.clone())
    optimiser = torch.optim.AdamW([context], lr=lr)
    with torch.no_grad():
        zero_shot = scale * features @ text_features(backbone, ids, start).T
    chosen = select(zero_shot, rho)
    gradients = []
    for _ in range(steps):
        optimiser.zero_grad()
        T = text_features(backbone, ids, context)
        loss(method, weight, scale * features[chosen] @ T.T, T, zero_shot[0]).backward()
        gradients.append(context.grad.clone())
        optimiser.step()
    with torch.no_grad():
        adapted = scale * features @ text_features(backbone, ids, context).T
    return zero_shot, adapted, gradients


@without_compiler()
def tps(features, T0, scale, steps=1, lr=5e-3, rho=0.1, reselect=True):
    shift = torch.nn.Parameter(torch.zeros_like(T0))
    optimiser = torch.optim.AdamW([shift], lr=lr)

    def logits(x):
        T = T0 + shift
        return scale * x @ (T / T.norm(dim=1, keepdim=True)).T

    with torch.no_grad():
        zero_shot = scale * features @ T0.T
    chosen = select(zero_shot, rho)
    for _ in range(steps):
        optimiser.zero_grad()
        if reselect:
            with torch.no_grad():
                chosen = select(logits(features), rho)
        mean_entropy(logits(features[chosen])).backward()
        optimiser.step()
    with torch.no_grad():
        return zero_shot, logits(features)


def tda(stream, T0, scale, positive=(2.0, 5.0), negative=(0.117, 1.0), tuned=None):
    """Caches as dictionaries of sorted lists, one sample after the other; `tuned`: logits of samples' own prompts."""
    K = len(T0)
    plus, minus, out = {}, {}, []

    def keep(cache, k, item, size):
        entries = cache.setdefault(k, [])
        if len(entries) < size:
            entries.append(item)
        elif item[1] < entries[-1][1]:
            entries[-1] = item
        entries.sort(key=lambda entry: entry[1])

    for i, features in enumerate(stream):
        zero_shot = scale * features @ T0.T
        z = zero_shot if tuned is None else tuned[i]
        p = z[0].softmax(0)
        H = float(entropy_of(p))
        k = int(p.argmax())
        keep(plus, k, (features[0], H), 3)
        if 0.2 < H / math.log2(K) < 0.5:
            keep(minus, k, (features[0], H, ((p > 0.03) & (p < 1.0)).to(p.dtype)), 2)
        adapted = z.clone()
        for v, x in enumerate(features):
            for cls, entries in plus.items():
                for feature, _ in entries:
                    adapted[v, cls] += positive[0] * math.exp(-positive[1] * (1 - float(x @ feature)))
            for entries in minus.values():
                for feature, _, mask in entries:
                    adapted[v] -= negative[0] * math.exp(-negative[1] * (1 - float(x @ feature))) * mask
        out.append((zero_shot, adapted))
    return out


class LoRALinear(torch.nn.Module):
    """Packed q,k,v projection with additive low-rank branches on q and v."""

    def __init__(self, weight, bias, A, scale):
        super().__init__()
        self.weight, self.bias, self.scale = weight, bias, scale
        self.A = torch.nn.ParameterList([torch.nn.Parameter(a.clone()) for a in A])
        self.B = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros_like(a.T)) for a in A])

    def forward(self, x):
        q, k, v = torch.nn.functional.linear(x, self.weight, self.bias).chunk(3, dim=-1)
        q = q + self.scale * (x @ self.A[0].T) @ self.B[0].T
        v = v + self.scale * (x @ self.A[1].T) @ self.B[1].T
        return q, k, v


def vit_features(visual, pixels, lora):
    """open_clip's ViT written out, with a LoRA layer for each of the last blocks (or none)."""
    x = visual.conv1(pixels).flatten(2).transpose(1, 2)
    cls = visual.class_embedding.expand(len(x), 1, -1)
    x = torch.cat([cls, x], dim=1) + visual.positional_embedding
    x = visual.ln_pre(x)
    blocks = visual.transformer.resblocks
    for i, block in enumerate(blocks):
        y = block.ln_1(x)
        layer = lora.get(i)
        if layer is None:
            q, k, v = torch.nn.functional.linear(y, block.attn.in_proj_weight, block.attn.in_proj_bias).chunk(3, -1)
        else:
            q, k, v = layer(y)
        heads = [t.unflatten(-1, (block.attn.num_heads, -1)).transpose(1, 2) for t in (q, k, v)]
        weights = (heads[0] @ heads[1].mT / math.sqrt(heads[0].shape[-1])).softmax(-1)
        x = x + block.attn.out_proj((weights @ heads[2]).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.ln_2(x))
    x = visual.ln_post(x)[:, 0] @ visual.proj
    return x / x.norm(dim=1, keepdim=True)


class LoRAPacked(LoRALinear):
    """The same for timm, whose blocks take q, k and v in one tensor."""

    def forward(self, x):
        return torch.cat(super().forward(x), dim=-1)


@without_compiler()
def ttl(pixels, backbone, T0, A, steps=1, lr=5e-3, scale_lora=2.0):
    """A: (blocks, 2, r, W), the matrices drawn for the run."""
    scale = backbone.model.logit_scale.exp()
    visual = copy.deepcopy(backbone.model.visual)
    lora = {}
    if hasattr(visual, "trunk"):
        blocks = visual.trunk.blocks
        for i, pair in enumerate(A, start=len(blocks) - len(A)):
            qkv = blocks[i].attn.qkv
            lora[i] = blocks[i].attn.qkv = LoRAPacked(qkv.weight, qkv.bias, pair, scale_lora)

        def features(lora):
            x = visual(pixels)
            return x / x.norm(dim=1, keepdim=True)

    else:
        blocks = visual.transformer.resblocks
        for i, pair in enumerate(A, start=len(blocks) - len(A)):
            attn = blocks[i].attn
            lora[i] = LoRALinear(attn.in_proj_weight, attn.in_proj_bias, pair, scale_lora)

        def features(lora):
            return vit_features(visual, pixels, lora)

    optimiser = torch.optim.AdamW([p for layer in lora.values() for p in (*layer.A, *layer.B)], lr=lr)
    with torch.no_grad():
        zero_shot = scale * features({}) @ T0.T
    for _ in range(steps):
        optimiser.zero_grad()
        z = scale * features(lora) @ T0.T
        total = 0
        for row in z:
            H = entropy_of(row.softmax(0))
            total = total + math.exp(0.4 - H.item()) * H
        (total / len(z)).backward()
        optimiser.step()
    with torch.no_grad():
        return zero_shot, scale * features(lora) @ T0.T
