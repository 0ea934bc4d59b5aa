"""Cached features as training batches: photos with their targets, prototypes of the 1000 ImageNet names, teachers."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from photos import there
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot
from trunk import WIDTH

FOLDS = 5


@dataclass(frozen=True)
class PhotoSet:
    """Features of one set on the device, photos in order of their labels; `targets` are label distributions of every
    view. A row F is a feature, followed by maps of the same view where stages of the trunk are trained.
    """

    views_NVF: Tensor
    described_NAF: Tensor
    labels_N: Tensor
    held_views_MVF: Tensor
    held_described_MAF: Tensor
    held_labels_M: Tensor
    targets_NVK: Tensor
    targets_described_NAK: Tensor


def maps_file(name: str, stages: int | str) -> str:
    return f"{name}-maps-{stages}.safetensors"


def probe(x: Tensor, y: Tensor, classes: int, steps: int = 400, decay: float = 3e-3) -> tuple[Tensor, Tensor]:
    """A linear classifier on features (N, F), by AdamW on random batches."""
    weight = torch.zeros(classes, x.shape[1], device=x.device, requires_grad=True)
    bias = torch.zeros(classes, device=x.device, requires_grad=True)
    optimizer = torch.optim.AdamW([{"params": [weight], "weight_decay": decay / 3e-3}, {"params": [bias]}], lr=3e-3)
    for _ in range(steps):
        pick = torch.randint(len(x), (2048,), device=x.device)
        optimizer.zero_grad()
        cross_entropy(x[pick].float() @ weight.T + bias, y[pick]).backward()
        optimizer.step()
    return weight.detach(), bias.detach()


def out_of_fold(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Label distributions of every training view from probes of the other folds, at the temperature that suits the true
    labels.
    """
    views, described, labels = tensors["views"][..., :WIDTH], tensors["described"][..., :WIDTH], tensors["labels"]
    classes, fold = int(labels.max()) + 1, torch.arange(len(labels), device=labels.device) % FOLDS
    order = torch.randperm(len(labels), device=labels.device, generator=torch.Generator(labels.device).manual_seed(0))
    fold = fold[order]
    z = torch.zeros(*views.shape[:2], classes, device=labels.device)
    z_described = torch.zeros(*described.shape[:2], classes, device=labels.device)
    mean, std = views[:, 0].float().mean(0), views[:, 0].float().std(0) + 0.05
    for k in range(FOLDS):
        inside = fold != k
        x = ((views[inside].float() - mean) / std).flatten(0, 1)
        weight, bias = probe(x, labels[inside].repeat_interleave(views.shape[1]), classes)
        z[~inside] = ((views[~inside].float() - mean) / std) @ weight.T + bias
        z_described[~inside] = ((described[~inside].float() - mean) / std) @ weight.T + bias
    flat, y = z.flatten(0, 1), labels.repeat_interleave(z.shape[1])
    best = min(torch.logspace(-0.5, 0.7, 25).tolist(), key=lambda t: cross_entropy(flat / t, y).item())
    right, sure = (z[:, 0].argmax(1) == labels).float().mean(), (z[:, 0] / best).softmax(1).amax(1).mean()
    print(f"  out-of-fold probes: weak view {right:.3f} right at {sure:.3f}, temperature {best:.2f}", flush=True)
    return (z / best).softmax(-1).half(), (z_described / best).softmax(-1).half()


def load_set(
    folder: Path, name: str, device: str, hard: float = 1.0, stages: int = 0, training: bool = True
) -> PhotoSet:
    """With stages of the trunk, held-out photos get the maps that enter them; the others too if there is `training`."""
    file = there(folder / f"{name}.safetensors", "make it with features.py, and name its folder with --features")
    tensors = {k: v.to(device) for k, v in load_file(file).items()}
    if stages:
        file = there(folder / maps_file(name, stages), f"make it with features.py --stages {stages}")
        for k, v in load_file(file).items():
            if v.shape[:2] != tensors[k].shape[:2]:
                raise SystemExit(
                    f"{file} has other views than {name}.safetensors: make both in one run of features.py."
                )
            if training or k.startswith("held_"):
                tensors[k] = torch.cat([tensors[k], v.to(device)], -1)
    order = tensors["labels"].argsort(stable=True)
    for kind in ("views", "described", "labels"):
        tensors[kind] = tensors[kind][order]
    truth = one_hot(tensors["labels"]).half()[:, None]
    targets = [truth.expand(-1, tensors[kind].shape[1], -1) for kind in ("views", "described")]
    if hard < 1:
        targets = [hard * t + (1 - hard) * q for t, q in zip(targets, out_of_fold(tensors), strict=True)]
    return PhotoSet(
        tensors["views"],
        tensors["described"],
        tensors["labels"],
        tensors["held_views"],
        tensors["held_described"],
        tensors["held_labels"],
        *targets,
    )


class Bank:
    """Draws batches. `hard` is the share of the true label in a view's target; the rest comes from the out-of-fold
    probes. `stages` of the trunk are trained; without `training` there is only what measuring reads.
    """

    def __init__(
        self, folder: Path, names: list[str], device: str, hard: float = 1.0, stages: int = 0, training: bool = True
    ) -> None:
        sets = [load_set(folder, n, device, hard, stages, training) for n in names]
        self.device, self.stages = device, stages
        self.views, self.described = (torch.cat([getattr(s, k) for s in sets]) for k in ("views_NVF", "described_NAF"))
        sizes = [len(s.labels_N) for s in sets]
        tables = zip(sets, self.views.split(sizes), self.described.split(sizes), strict=True)
        self.sets = {n: replace(s, views_NVF=v, described_NAF=d) for n, (s, v, d) in zip(names, tables, strict=True)}
        del sets
        head = load_file(folder / "classifier.safetensors", device=device)
        self.weight, self.bias = head["weight"], head["bias"]
        residuals, means = [], []
        for s in self.sets.values():
            x = s.views_NVF[..., :WIDTH].float()
            classes = int(s.labels_N.max()) + 1
            mean_KF = torch.stack([x[s.labels_N == k].mean((0, 1)) for k in range(classes)])
            residuals.append((x[:, :8] - mean_KF[s.labels_N][:, None]).flatten(0, 1))
            means.append(mean_KF.mean(0))
        self.residuals, self.mean = torch.cat(residuals), torch.stack(means).mean(0)
        centred = self.weight - self.weight.mean(0)
        covariance = self.residuals.T @ self.residuals / len(self.residuals)
        # Under the classifier's own model (classes that share a covariance) a class mean lies along covariance @ row.
        self.directions = torch.stack([normalize(centred @ covariance, dim=-1), normalize(centred, dim=-1)])

    def with_set(self, folder: Path, name: str) -> Self:
        """The same bank with one more set to measure on; prototypes stay those of the sets that were trained on."""
        other = copy.copy(self)
        other.sets = self.sets | {name: load_set(folder, name, self.device, stages=self.stages, training=False)}
        return other

    def logits(self, features: Tensor) -> Tensor:
        """What the trunk's own classifier says of features."""
        return features @ self.weight.T + self.bias

    def teacher(self, rows: Tensor) -> Tensor:
        """The softmax of the trunk as it was, whatever is trained of it."""
        return self.logits(rows[..., :WIDTH].float()).softmax(-1)

    def prototypes(self, labels: Tensor, residuals: bool = True) -> Tensor:
        """Features that the trunk would give a photo of these ImageNet classes: mean + direction of the class +
        residual of a real photo.
        """
        n = len(labels)
        share = torch.rand(n, 1, device=self.device)
        direction = share * self.directions[0, labels] + (1 - share) * self.directions[1, labels]
        size = torch.empty(n, 1, device=self.device).uniform_(5, 14)
        if not residuals:
            return (self.mean + size * normalize(direction, dim=-1)).relu()
        noise = torch.empty(n, 1, device=self.device).uniform_(0.3, 1.0)
        residual = self.residuals[torch.randint(len(self.residuals), (n,), device=self.device)]
        return (self.mean + size * normalize(direction, dim=-1) + noise * residual).relu()

    def photos(self, name: str, n: int, described: float = 0.2) -> tuple[Tensor, Tensor]:
        """Rows of random photos of one set (a share of them changed as captions describe) and their targets."""
        s = self.sets[name]
        i = torch.randint(len(s.labels_N), (n,), device=self.device)
        v = torch.randint(s.views_NVF.shape[1], (n,), device=self.device)
        v = v.where(torch.rand(n, device=self.device) > 0.2, 0)
        a = torch.randint(s.described_NAF.shape[1], (n,), device=self.device)
        changed = (torch.rand(n, device=self.device) < described)[:, None]
        x = torch.where(changed, s.described_NAF[i, a], s.views_NVF[i, v]).float()
        q = torch.where(changed, s.targets_described_NAK[i, a], s.targets_NVK[i, v]).float()
        return x, q / q.sum(-1, keepdim=True)

    @cached_property
    def by_class(self) -> tuple[Tensor, Tensor]:
        """Where each class of each set starts in the tables, and how many photos it has."""
        counts = torch.cat([torch.bincount(s.labels_N) for s in self.sets.values()])
        return counts.cumsum(0) - counts, counts

    def photo_of(self, classes: Tensor, how: Tensor | None = None) -> Tensor:
        """A random view of a random photo of each class (numbered through the sets), or that photo changed in the given
        way.
        """
        starts, counts = self.by_class
        i = starts[classes] + (torch.rand(len(classes), device=self.device) * counts[classes]).long()
        if how is not None:
            return self.described[i, how].float()
        return self.views[i, torch.randint(self.views.shape[1], (len(i),), device=self.device)].float()
