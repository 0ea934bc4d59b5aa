"""Train the text tower and the projection of `mini` on cached features.

    python train.py --data DATA --features FEATURES --out CHECKPOINT.safetensors --seed 0

A run is seeded: the same command draws the same batches (on a GPU up to rounding).

The loss has seven terms. Photos are matched with the names of their set (own) and with the names of all sets, some of
them replaced by groups such as "dog" (joint). The trunk's softmax is the target over the 1000 ImageNet names, for
photos (real), for prototypes (names) and for prototypes with groups (groups). Captions describe how a photo was changed
(context) or name two things (pairs). A penalty holds alpha, the mean cosine between the names of a list, at ALPHA.
"""

import argparse
import math
import random
import time
from pathlib import Path

import torch
from bank import Bank
from lists import Lists
from photos import SETS, class_names, require
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, one_hot
from tower import build, encode_tokens, fit_scale, project
from vocabulary import IMAGENET, PAD, UNKNOWN, Vocabulary

ALPHA = 0.75
WEIGHTS = {
    "own": 1.0, "joint": 0.5, "real": 0.5, "names": 1.0, "groups": 0.5, "context": 0.5, "pairs": 0.3, "alpha": 30.0,
}  # fmt: skip
MOVES = 8  # how often a run adjusts the gains


def alpha_of(text: Tensor) -> Tensor:
    """Mean off-diagonal cosine of normalised text features."""
    n = len(text)
    return (text.sum(0).square().sum() - n) / (n * (n - 1))


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over the last dimension; classes with logit -inf must have target zero."""
    return -(target * log_softmax(logits, -1).masked_fill(logits == float("-inf"), 0)).sum(-1).mean()


class Trainer:
    """One model, its data and the terms of its loss."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device, self.sets = args, args.device, list(SETS)
        self.vocabulary = Vocabulary({s: class_names(args.data, s) for s in SETS})
        file = require(args.features / "captions.safetensors", "make it with features.py")
        self.captions = load_file(file, device=args.device)["tokens"]
        self.bank = Bank(args.features, self.sets, args.device)
        self.lists = Lists(self.vocabulary, self.sets, args.device)
        torch.manual_seed(args.seed)
        random.seed(args.seed)
        model = build(len(self.vocabulary.tokens))
        with torch.no_grad():
            rows = self.bank.weight - self.bank.weight.mean(0)
            projection = model.visual.head.proj
            projection.weight.copy_(torch.linalg.svd(rows, full_matrices=False)[2][: projection.out_features])
            model.logit_scale.fill_(4.0)
        self.model = model.to(args.device)
        self.pair_scale = nn.Parameter(torch.tensor(3.0, device=args.device))
        self.pairs = self._pair_pool(args.pairs)
        self.gain = dict.fromkeys((IMAGENET, *self.sets), 1.0)
        self.neutral = torch.tensor(self.vocabulary.neutral, device=args.device)
        ways, longest = self.vocabulary.described, max(len(w) for w in self.vocabulary.described)
        self.ways = torch.tensor([w + w[:1] * (longest - len(w)) for w in ways], device=args.device)
        self.way_sizes = torch.tensor([len(w) for w in ways], device=args.device)
        self.covers = torch.stack([self.lists.cover() for _ in range(args.steps)]).to(args.device)

    def _pair_pool(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """n captions of two things and the leaves they name."""
        leaves = list(range(len(self.vocabulary.leaves)))
        photographed = [i for i in leaves if self.vocabulary.leaves[i].source != IMAGENET]
        pools, rng = (photographed, leaves), random.Random(self.args.seed)
        rows = [(rng.choice(pools[k % 2]), rng.choice(leaves)) for k in range(n)]
        templates = self.vocabulary.pair_templates
        text = [
            templates[k % len(templates)].format(*(self.vocabulary.leaves[i].names[0] for i in pair))
            for k, pair in enumerate(rows)
        ]
        tokens = self.vocabulary.encode(text)
        length = self.captions.shape[-1]
        short = (tokens != PAD).sum(1) <= length
        first, second = torch.tensor(rows)[short].T.to(self.device)
        return tokens[short, :length].to(self.device, self.captions.dtype), first, second

    def leaf_features(self, rows: Tensor) -> Tensor:
        """A feature per leaf: a prototype for ImageNet's classes, a view of a photo for the others."""
        named = self.bank.prototypes(rows.clamp(max=999))
        photographed = self.bank.photo_of(self.lists.photo_class[rows])
        return torch.where((rows < 1000)[:, None], named, photographed)

    def draw_templates(self, n: int) -> Tensor:
        """The protocol's template for all, one random template for all, or a neutral template each."""
        u = float(torch.rand(()))
        if u < 0.4:
            return torch.zeros(n, dtype=torch.long, device=self.device)
        if u < 0.7:
            return torch.randint(len(self.vocabulary.templates), (1,), device=self.device).expand(n)
        return self.neutral[torch.randint(len(self.neutral), (n,), device=self.device)]

    def blur_tokens(self, tokens: Tensor, share: float = 0.002) -> Tensor:
        """Replace a few tokens by the unknown token, so that its embedding is trained too."""
        inner = (tokens > UNKNOWN) & (tokens < len(self.vocabulary.tokens) - 2)
        return tokens.masked_fill(inner & (torch.rand(tokens.shape, device=self.device) < share), UNKNOWN)

    def text(self, tokens: Tensor) -> Tensor:
        """Features of captions, in groups of similar length: most have 9 tokens, the longest 23."""
        lengths = (tokens != PAD).sum(1)
        order = lengths.argsort()
        cuts = [int(share * len(tokens)) for share in (0.5, 0.8, 0.95, 1)]
        longest = lengths[order[[c - 1 for c in cuts]]].tolist()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
            parts = [
                encode_tokens(self.model, tokens[order[low:high], :length])
                for low, high, length in zip([0, *cuts], cuts, longest, strict=False)
            ]
        return torch.cat(parts)[order.argsort()]

    def matched(self, features: Tensor, text: Tensor) -> Tensor:
        """Symmetric contrastive loss: each feature against all captions and each caption against all features."""
        logits = self.pair_scale.exp().clamp(max=100) * project(self.model, features) @ text.T
        order = torch.arange(len(logits), device=self.device)
        return (cross_entropy(logits, order) + cross_entropy(logits.T, order)) / 2

    def terms(self, step: int) -> dict[str, Tensor]:
        lists, bank, args = self.lists, self.bank, self.args
        names = lists.draw_names(lists.everything)
        tokens = self.blur_tokens(self.captions[self.draw_templates(len(names)), names])
        matched = {"context": self.context_batch(), "pairs": self.pair_batch()}
        batches = [tokens, *(t for _, t in matched.values())]
        text, *captions = self.text(torch.cat(batches)).split([len(t) for t in batches])
        terms = {k: self.matched(x, t) for (k, (x, _)), t in zip(matched.items(), captions, strict=True)}
        scale, chosen = self.model.logit_scale.exp().clamp(max=100), self.covers[step]
        own, joint, real = [], [], []
        for name in self.sets:
            x, y = bank.photos(name, args.batch)
            cosines = project(self.model, x) @ text.T
            logits = scale * self.gain[name] * cosines
            q = one_hot(y, len(lists.rows[name])).float()
            own.append(soft_cross_entropy(logits[:, lists.rows[name]], q))
            joint.append(soft_cross_entropy(*lists.covered(logits, lists.spread(q, name), chosen, lists.hidden[name])))
            real.append(soft_cross_entropy(scale * cosines[:, lists.rows[IMAGENET]], bank.teacher(x)))
        x = bank.prototypes(torch.randint(1000, (args.prototypes,), device=self.device))
        q = bank.teacher(x)
        logits = scale * self.gain[IMAGENET] * project(self.model, x) @ text.T
        spread = lists.spread(q, IMAGENET)
        alphas = torch.stack([alpha_of(text[rows]) for rows in lists.rows.values()])
        return terms | {
            "own": torch.stack(own).mean(),
            "joint": torch.stack(joint).mean(),
            "real": torch.stack(real).mean(),
            "names": soft_cross_entropy(logits[:, lists.rows[IMAGENET]], q),
            "groups": soft_cross_entropy(*lists.covered(logits, spread, chosen, lists.hidden[IMAGENET])),
            "alpha": (alphas - ALPHA).square().mean(),
        }

    def context_batch(self, leaves: int = 20) -> tuple[Tensor, Tensor]:
        """Some classes, each changed in every way, with captions that describe the change."""
        ways, photographed = self.ways, self.lists.photographed
        drawn = photographed[torch.randperm(len(photographed), device=self.device)[:leaves]]
        rows = drawn.repeat_interleave(len(ways))
        how = torch.arange(len(ways), device=self.device).repeat(len(drawn))
        pick = (torch.rand(len(ways), device=self.device) * self.way_sizes).long()
        templates = ways.gather(1, pick[:, None])[how, 0]
        x = self.bank.photo_of(self.lists.photo_class[rows], how)
        return x, self.captions[templates, self.lists.choices[rows, 0]]

    def pair_batch(self, n: int = 96) -> tuple[Tensor, Tensor]:
        """Captions of two things with the mean of their features (pooling is linear), and of each thing alone."""
        tokens, first, second = self.pairs
        pick = torch.randint(len(tokens), (n,), device=self.device)
        a, b = first[pick], second[pick]
        x_a, x_b = self.leaf_features(a), self.leaf_features(b)
        single = self.captions[0, self.lists.choices[torch.cat([a, b]), 0]]
        return torch.cat([(x_a + x_b) / 2, x_a, x_b]), torch.cat([tokens[pick], single])

    @torch.no_grad()
    def adjust_gains(self) -> dict[str, float]:
        """Move the gain of each list so that all lists come to want one logit scale; return the held-out NLLs."""
        text = self.text(self.captions[0, self.lists.choices[:, 0]])
        x = self.bank.prototypes(torch.randint(1000, (2000,), device=self.device))
        images, targets = [project(self.model, x)], [self.bank.teacher(x)]
        for s in self.bank.sets.values():
            images.append(project(self.model, s.held_MF))
            targets.append(s.held_labels_M)
        texts = [text[rows] for rows in self.lists.rows.values()]
        common = fit_scale(images, texts, targets)
        result = {"scale": common}
        for name, v, t, y in zip(self.lists.rows, images, texts, targets, strict=True):
            own = fit_scale([v], [t], [y])
            self.gain[name] = min(max(self.gain[name] * (common / own) ** 0.5, 0.5), 2.0)
            result[name], result[f"{name} scale"] = cross_entropy(common * v @ t.T, y).item(), own
        return result

    def train(self) -> None:
        args, start = self.args, time.time()
        args.out.parent.mkdir(parents=True, exist_ok=True)
        every = max(args.steps // MOVES, 1)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": args.decay},
            {"params": [p for p in parameters if p.ndim <= 1] + [self.pair_scale], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=True)
        for step in range(args.steps):
            for group in optimizer.param_groups:
                group["lr"] = args.lr * min((step + 1) / 300, 0.5 + 0.5 * math.cos(step / args.steps * math.pi))
            terms = self.terms(step)
            loss = sum(WEIGHTS[k] * v for k, v in terms.items())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if step % every == every - 1:
                shown = " ".join(f"{k} {v.item():.3f}" for k, v in terms.items())
                held = " ".join(f"{k} {v:.3f}" for k, v in self.adjust_gains().items())
                print(f"step {step + 1} {time.time() - start:.0f}s {shown} | held out: {held}", flush=True)
        tensors = {k: v.contiguous() for k, v in self.model.state_dict().items()}
        save_file(tensors, args.out, metadata={"format": "pt"})


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a run; the defaults are the shipped model's recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder in the benchmark's layout")
    parser.add_argument("--features", type=Path, required=True, help="folder written by features.py")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=256, help="photos per set and step")
    parser.add_argument("--prototypes", type=int, default=1024, help="prototypes per step")
    parser.add_argument("--pairs", type=int, default=20000, help="captions of two things to draw from")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    Trainer(parse()).train()
