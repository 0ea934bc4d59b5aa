"""Second implementation of FPP: full-length prompts, both terms by autograd, torch.optim and its schedule."""

from __future__ import annotations

import torch

from support.compiler import without_compiler
from support.naive_adapt import initial_context, prompt_ids


def features(backbone, ids, context, noise=None):
    """Text features of whole prompts, with noise (L, W) added to the embeddings before the positions."""
    model = backbone.model
    siglip = hasattr(model, "text")
    tower = model.text if siglip else model
    first = 0 if siglip else 1
    x = tower.token_embedding(ids)
    x = torch.cat([x[:, :first], context.expand(len(ids), -1, -1), x[:, first + len(context) :]], dim=1)
    if noise is not None:
        x = x + noise
    x = tower.ln_final(tower.transformer(x + tower.positional_embedding, attn_mask=tower.attn_mask))
    if siglip:
        x = tower.text_projection(x[:, -1])
    else:
        x = x[torch.arange(len(ids)), ids.argmax(dim=1)] @ tower.text_projection
    return x / x.norm(dim=1, keepdim=True)


@without_compiler()
def flat_context(backbone, classes, steps, weight, deviations, seed=0, start="random"):
    """The learned context; `deviations` of the noise on the context and elsewhere."""
    ids, words = prompt_ids(backbone, classes), initial_context(backbone)
    L, W, M = ids.shape[1], words.shape[1], len(words)
    first = 0 if hasattr(backbone.model, "text") else 1
    generator = torch.Generator().manual_seed(seed)
    target = features(backbone, ids, words).detach()
    context = words.clone()
    if start == "random":
        context = deviations[1] * torch.randn(M, W, generator=generator).to(words.dtype)
    context = torch.nn.Parameter(context)
    optimiser = torch.optim.AdamW([context], lr=0.01, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=1e-4)
    for _ in range(steps):
        drawn = torch.randn(4, L, W, generator=generator).to(words.dtype)
        for position in range(L):
            drawn[:, position] *= deviations[0 if first <= position < first + M else 1]
        with torch.no_grad():
            noisy = [features(backbone, ids, context, noise) for noise in drawn]
        clean = features(backbone, ids, context)
        apart = ((clean - target) ** 2).sum(1).mean()
        flat = sum((clean * one).sum(1).mean() for one in noisy) / len(noisy)
        optimiser.zero_grad()
        (apart - weight * flat).backward()
        optimiser.step()
        schedule.step()
    return context.detach()
