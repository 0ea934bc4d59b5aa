"""Cached features as training batches: photos with labels, prototypes of the 1000 ImageNet names, the teacher."""

from dataclasses import dataclass
from pathlib import Path

import torch
from photos import require
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True)
class PhotoSet:
    """Features of one set on the device; training photos are sorted by label."""

    views_NVF: Tensor
    described_NAF: Tensor
    labels_N: Tensor
    held_MF: Tensor
    held_labels_M: Tensor


def load_set(folder: Path, name: str, device: str) -> PhotoSet:
    file = require(folder / f"{name}.safetensors", "make it with features.py and pass its folder as --features")
    tensors = load_file(file, device=device)
    order = tensors["labels"].argsort(stable=True)
    training = (tensors[kind][order] for kind in ("views", "described", "labels"))
    return PhotoSet(*training, tensors["held"].float(), tensors["held_labels"])


class Bank:
    """Draws training batches from the cached features of some sets."""

    def __init__(self, folder: Path, names: list[str], device: str) -> None:
        self.device = device
        self.sets = {name: load_set(folder, name, device) for name in names}
        sets = self.sets.values()
        self.views, self.described = (torch.cat([getattr(s, k) for s in sets]) for k in ("views_NVF", "described_NAF"))
        counts = torch.cat([torch.bincount(s.labels_N) for s in sets])
        self.starts, self.counts = counts.cumsum(0) - counts, counts  # per class, in the joined tables
        head = load_file(folder / "classifier.safetensors", device=device)
        self.weight, self.bias = head["weight"], head["bias"]
        residuals, means = [], []
        for s in sets:
            x = s.views_NVF.float()
            classes = int(s.labels_N.max()) + 1
            mean_KF = torch.stack([x[s.labels_N == k].mean((0, 1)) for k in range(classes)])
            residuals.append((x[:, :8] - mean_KF[s.labels_N][:, None]).flatten(0, 1))
            means.append(mean_KF.mean(0))
        self.residuals, self.mean = torch.cat(residuals), torch.stack(means).mean(0)
        centred = self.weight - self.weight.mean(0)
        covariance = self.residuals.T @ self.residuals / len(self.residuals)
        # With a covariance shared by all classes, as the classifier assumes, a class mean lies along covariance @ row.
        self.directions = torch.stack([normalize(centred @ covariance, dim=-1), normalize(centred, dim=-1)])

    def teacher(self, features: Tensor) -> Tensor:
        """The trunk's own softmax over the 1000 ImageNet classes."""
        return (features @ self.weight.T + self.bias).softmax(-1)

    def prototypes(self, labels: Tensor) -> Tensor:
        """Plausible trunk features of ImageNet classes: mean + class direction + residual of a real photo."""
        n = len(labels)
        share = torch.rand(n, 1, device=self.device)
        direction = share * self.directions[0, labels] + (1 - share) * self.directions[1, labels]
        size = torch.empty(n, 1, device=self.device).uniform_(5, 14)
        noise = torch.empty(n, 1, device=self.device).uniform_(0.3, 1.0)
        residual = self.residuals[torch.randint(len(self.residuals), (n,), device=self.device)]
        return (self.mean + size * normalize(direction, dim=-1) + noise * residual).relu()

    def photos(self, name: str, n: int, described: float = 0.2) -> tuple[Tensor, Tensor]:
        """Features and labels of n random photos of one set; a share of the features are described views."""
        s = self.sets[name]
        i = torch.randint(len(s.labels_N), (n,), device=self.device)
        v = torch.randint(s.views_NVF.shape[1], (n,), device=self.device)
        v = v.where(torch.rand(n, device=self.device) > 0.2, 0)
        a = torch.randint(s.described_NAF.shape[1], (n,), device=self.device)
        changed = (torch.rand(n, device=self.device) < described)[:, None]
        return torch.where(changed, s.described_NAF[i, a], s.views_NVF[i, v]).float(), s.labels_N[i]

    def photo_of(self, classes: Tensor, how: Tensor | None = None) -> Tensor:
        """A random view, or the view described by `how`, of a random photo of each class (numbered across sets)."""
        i = self.starts[classes] + (torch.rand(len(classes), device=self.device) * self.counts[classes]).long()
        if how is not None:
            return self.described[i, how].float()
        return self.views[i, torch.randint(self.views.shape[1], (len(i),), device=self.device)].float()
