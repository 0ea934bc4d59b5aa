"""TPT + CoTS as in published code: one sample at a time, full-length text, autograd, 50 Adam steps in Python.

Half-precision autocast on a GPU as in the published programs, float32 on a CPU. It shares only the model with the
package, so it is a baseline for speed and a reference for numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Naive:
    """TPT and CoTS, one sample at a time."""

    def __init__(self, backbone, classes: Sequence[str], half: bool) -> None:
        self.backbone, self.model = backbone, backbone.model
        self.device = backbone.device
        self.half = half
        texts = [f"a photo of a {name.replace('_', ' ')}." for name in classes]
        self.ids = backbone.tokenizer(texts, context_length=backbone.context_length).to(self.device)
        with torch.no_grad():
            self.words = self.model.token_embedding(self.ids)
        self.start = self.words[0, 1:5].clone()
        self.scale = self.model.logit_scale.exp().item()

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.float16, enabled=self.half)

    def images(self, pixels_VCHW: Tensor) -> Tensor:
        with torch.no_grad(), self.autocast():
            features = self.model.encode_image(pixels_VCHW)
            return features / features.norm(dim=-1, keepdim=True)

    def text(self, context_MW: Tensor) -> Tensor:
        model, K = self.model, len(self.ids)
        prompts = torch.cat([self.words[:, :1], context_MW.expand(K, -1, -1), self.words[:, 5:]], dim=1)
        x = prompts + model.positional_embedding
        x = model.transformer(x, attn_mask=model.attn_mask)
        x = model.ln_final(x)
        x = x[torch.arange(K, device=x.device), self.ids.argmax(dim=-1)] @ model.text_projection
        return x / x.norm(dim=-1, keepdim=True)

    def tune(self, features_VD: Tensor) -> tuple[Tensor, Tensor]:
        """Zero-shot and adapted logits (V,K) of one sample."""
        context = torch.nn.Parameter(self.start.clone())
        optimiser = torch.optim.AdamW([context], lr=5e-3)
        scaler = torch.amp.GradScaler(self.device.type, init_scale=1000, enabled=self.half)
        with self.autocast():
            logits = self.scale * features_VD @ self.text(context).t()
            zero_shot = logits.detach()
            probabilities = logits.softmax(dim=1)
            entropy = -(probabilities * torch.log(probabilities + 1e-12)).sum(dim=1)
            chosen = torch.argsort(entropy)[: int(len(logits) * 0.1)]
            logs = logits[chosen].float().log_softmax(dim=1)
            mean = logs.logsumexp(dim=0) - torch.log(torch.tensor(float(len(chosen))))
            loss = -(mean * mean.exp()).sum()
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        with torch.no_grad(), self.autocast():
            return zero_shot, self.scale * features_VD @ self.text(context).t()

    def temperature(self, zero_shot_VK: Tensor, adapted_VK: Tensor) -> Tensor:
        """CoTS's tau by 50 steps of torch's Adam."""
        z, a = zero_shot_VK.float(), adapted_VK.float()
        strong = a[1:]
        entropy = -(strong.softmax(dim=1) * strong.log_softmax(dim=1)).sum(dim=1)
        chosen = 1 + torch.argsort(entropy)[: int(len(strong) * 0.1)]
        target = z[chosen].softmax(dim=1).max(dim=1).values
        theta = torch.zeros((), device=a.device, requires_grad=True)
        optimiser = torch.optim.Adam([theta], lr=0.1)
        for _ in range(50):
            optimiser.zero_grad()
            confidence = (a[chosen] / theta.exp()).softmax(dim=1).max(dim=1).values
            ((confidence - target) ** 2).mean().backward()
            optimiser.step()
        return theta.detach().exp()

    def cots(self, features_VD: Tensor) -> Tensor:
        """Calibrated probabilities (K,) of one sample from its view features."""
        zero_shot, adapted = self.tune(features_VD)
        return (adapted[0].float() / self.temperature(zero_shot, adapted)).softmax(dim=0)
