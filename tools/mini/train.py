"""Train the text tower and the projection of `mini`, and if wanted the trunk's last stages, on cached features.

    python train.py --data DATA --features FEATURES --out CHECKPOINT.safetensors --seed 0 [--leave-out flowers]

A run ends after --steps and is seeded: the same command draws the same batches (on a GPU up to its rounding).

Seven terms: photos over their own class names; photos over all names, with groups ("dog") in place of some; photos over
the 1000 ImageNet names, prototypes over them, and prototypes over those with groups, against the trunk's softmax;
captions that describe the view; captions of two things against mixed features. Beside them a penalty holds alpha, the
mean cosine between the names of a list, at its target: without it alpha falls (docs/mini-recipe.md says how far, and
that prompt tuning acts all the same).

With --trunk-stages the trunk's last stages are trained too, on cached maps, and an eighth term holds what its own
classifier says of the photos; prototypes stay features of the trunk as it was.
"""

import argparse
import math
import random
import time
from dataclasses import dataclass
from typing import Self

import torch
from bank import Bank
from lists import Lists
from options import MOVES, parse
from photos import SETS, class_names, there
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, one_hot
from tower import build, encode_tokens, fit_scale, project, see
from trunk import PREFIX, TRUNK, Tail, said
from vocabulary import IMAGENET, PAD, UNKNOWN, Vocabulary


def alpha_of(text: Tensor) -> Tensor:
    """Mean off-diagonal cosine of normalised text features."""
    n = len(text)
    return (text.sum(0).square().sum() - n) / (n * (n - 1))


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over the last dimension; classes with logit -inf must have target zero."""
    return -(target * log_softmax(logits, -1).masked_fill(logits == float("-inf"), 0)).sum(-1).mean()


@dataclass(frozen=True)
class Material:
    """What runs learn from: the same for every seed."""

    sets: list[str]
    vocabulary: Vocabulary
    captions: Tensor
    bank: Bank
    lists: Lists

    @classmethod
    def load(cls, args: argparse.Namespace) -> Self:
        torch.manual_seed(0)
        sets = [s for s in SETS if s != args.leave_out]
        vocabulary = Vocabulary({s: class_names(args.data, s) for s in SETS})
        file = there(args.features / "captions.safetensors", "make it with features.py")
        captions = load_file(file, device=args.device)["tokens"]
        bank = Bank(args.features, sets, args.device, args.hard, args.trunk_stages)
        return cls(sets, vocabulary, captions, bank, Lists(vocabulary, sets, args.device))


class Trainer:
    """One model, the material it learns from, and the terms of its loss.

    A step waits for the device once, to read back four lengths of captions; several runs can share a card.
    """

    def __init__(self, args: argparse.Namespace, material: Material) -> None:
        self.args, self.device = args, args.device
        self.sets, self.vocabulary, self.captions = material.sets, material.vocabulary, material.captions
        self.bank, self.lists = material.bank, material.lists
        torch.manual_seed(args.seed)
        random.seed(args.seed)
        model = build(len(self.vocabulary.tokens))
        with torch.no_grad():
            rows = self.bank.weight - self.bank.weight.mean(0)
            model.visual.head.proj.weight.copy_(
                torch.linalg.svd(rows, full_matrices=False)[2][: model.visual.head.proj.out_features]
            )
            model.logit_scale.fill_(4.0)
        model.visual.trunk = self._tail(model.visual.trunk) if args.trunk_stages else nn.Identity()
        self.model = model.to(args.device)
        self.pair_scale = nn.Parameter(torch.tensor(3.0, device=args.device))
        self.pairs = self._pair_pool(args.pairs)
        self.gain = dict.fromkeys((IMAGENET, *self.sets), 1.0)
        self.neutral = torch.tensor(self.vocabulary.neutral, device=args.device)
        ways, longest = self.vocabulary.described, max(len(w) for w in self.vocabulary.described)
        self.ways = torch.tensor([w + w[:1] * (longest - len(w)) for w in ways], device=args.device)
        self.way_sizes = torch.tensor([len(w) for w in ways], device=args.device)
        self.covers = torch.stack([self.lists.cover() for _ in range(args.steps)]).to(args.device)

    def _tail(self, trunk: nn.Module) -> Tail:
        tail = Tail(trunk, self.args.trunk_stages)
        file = there(self.args.features / TRUNK, f"make it with features.py --stages {self.args.trunk_stages}")
        found = load_file(file)
        tail.load_state_dict({k: found[k] for k in tail.state_dict()})
        return tail

    def _pair_pool(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """n captions of two things, and the leaves that they name."""
        leaves = [i for i, leaf in enumerate(self.vocabulary.leaves) if leaf.source in (IMAGENET, *self.sets)]
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
        """A feature for each leaf: a prototype where the class is ImageNet's, else a view of a photo of that class."""
        named, photographed = (
            self.prototypes(rows.clamp(max=999)),
            self.see(self.bank.photo_of(self.lists.photo_class[rows])),
        )
        return torch.where((rows < 1000)[:, None], named, photographed)

    def see(self, rows: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
            return see(self.model, rows)

    def prototypes(self, labels: Tensor) -> Tensor:
        return self.bank.prototypes(labels, residuals=self.args.residuals)

    def draw_templates(self, n: int) -> Tensor:
        """The protocol's template for all, one random template for all, or neutral templates one by one."""
        u = float(torch.rand(()))
        if u < 0.4:
            return torch.zeros(n, dtype=torch.long, device=self.device)
        if u < 0.7:
            return torch.randint(len(self.vocabulary.templates), (1,), device=self.device).expand(n)
        return self.neutral[torch.randint(len(self.neutral), (n,), device=self.device)]

    def blur_tokens(self, tokens: Tensor, share: float = 0.002) -> Tensor:
        """Now and then an unknown token, so that its row means "something"."""
        inner = (tokens > UNKNOWN) & (tokens < len(self.vocabulary.tokens) - 2)
        return tokens.masked_fill(inner & (torch.rand(tokens.shape, device=self.device) < share), UNKNOWN)

    def text(self, tokens: Tensor) -> Tensor:
        """Features of captions, in parts of similar length: most have 9 tokens, the longest 23."""
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
        """Every feature must find its caption among all, and every caption its feature."""
        logits = self.pair_scale.exp().clamp(max=100) * project(self.model, features) @ text.T
        order = torch.arange(len(logits), device=self.device)
        return (cross_entropy(logits, order) + cross_entropy(logits.T, order)) / 2

    def terms(self, step: int) -> dict[str, Tensor]:
        lists, bank, args = self.lists, self.bank, self.args
        names = lists.draw_names(lists.everything)
        tokens = self.blur_tokens(self.captions[self.draw_templates(len(names)), names])
        matched = {}
        if args.context_weight:
            matched["context"] = self.context_batch()
        if args.pairs_weight:
            matched["pairs"] = self.pair_batch()
        batches = [tokens, *(t for _, t in matched.values())]
        text, *captions = self.text(torch.cat(batches)).split([len(t) for t in batches])
        terms = {k: self.matched(x, t) for (k, (x, _)), t in zip(matched.items(), captions, strict=True)}
        scale, chosen = self.model.logit_scale.exp().clamp(max=100), self.covers[step]
        own, joint, distilled, kept = [], [], [], []
        for name in self.sets:
            rows, q = bank.photos(name, args.batch)
            x, teacher = self.see(rows), bank.teacher(rows)
            cosines = project(self.model, x) @ text.T
            logits = scale * self.gain[name] * cosines
            own.append(soft_cross_entropy(logits[:, lists.rows[name]], q))
            joint.append(soft_cross_entropy(*lists.covered(logits, lists.spread(q, name), chosen, lists.hidden[name])))
            distilled.append(soft_cross_entropy(scale * cosines[:, lists.rows[IMAGENET]], teacher))
            if args.trunk_stages:
                kept.append(soft_cross_entropy(bank.logits(x), teacher))
        labels = torch.randint(1000, (args.prototypes,), device=self.device)
        x = self.prototypes(labels)
        q = bank.teacher(x) if args.teacher else one_hot(labels, 1000).float()
        logits = scale * self.gain[IMAGENET] * project(self.model, x) @ text.T
        terms["own"], terms["joint"] = torch.stack(own).mean(), torch.stack(joint).mean()
        if args.teacher:
            terms["real"] = torch.stack(distilled).mean()
        if kept:
            terms["keep"] = torch.stack(kept).mean()
        terms["names"] = soft_cross_entropy(logits[:, lists.rows[IMAGENET]], q)
        terms["groups"] = soft_cross_entropy(
            *lists.covered(logits, lists.spread(q, IMAGENET), chosen, lists.hidden[IMAGENET])
        )
        alphas = torch.stack([alpha_of(text[rows]) for rows in lists.rows.values()])
        terms["alpha"] = (alphas - args.alpha).square().mean()
        return terms

    def context_batch(self, leaves: int = 20) -> tuple[Tensor, Tensor]:
        """Some classes, each viewed in every way, with captions that say how."""
        ways, photographed = self.ways, self.lists.photographed
        drawn = photographed[torch.randperm(len(photographed), device=self.device)[:leaves]]
        rows = drawn.repeat_interleave(len(ways))
        how = torch.arange(len(ways), device=self.device).repeat(len(drawn))
        pick = (torch.rand(len(ways), device=self.device) * self.way_sizes).long()
        templates = ways.gather(1, pick[:, None])[how, 0]
        x = self.see(self.bank.photo_of(self.lists.photo_class[rows], how))
        return x, self.captions[templates, self.lists.choices[rows, 0]]

    def pair_batch(self, n: int = 96) -> tuple[Tensor, Tensor]:
        """Captions of two things with the mean of their features (pooling is linear), and of each of the two alone."""
        tokens, first, second = self.pairs
        pick = torch.randint(len(tokens), (n,), device=self.device)
        a, b = first[pick], second[pick]
        x_a, x_b = self.leaf_features(a), self.leaf_features(b)
        single = self.captions[0, self.lists.choices[torch.cat([a, b]), 0]]
        return torch.cat([(x_a + x_b) / 2, x_a, x_b]), torch.cat([tokens[pick], single])

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        """Held-out negative log-likelihood of each list at the one best scale; and gains, so that all lists come to
        want the same scale.
        """
        text = self.text(self.captions[0, self.lists.choices[:, 0]])
        x = self.bank.prototypes(torch.randint(1000, (2000,), device=self.device))
        images, targets = [project(self.model, x)], [self.bank.teacher(x)]
        for s in self.bank.sets.values():
            images.append(project(self.model, self.see(s.held_views_MVF[:, 0])))
            targets.append(s.held_labels_M)
        texts = [text[rows] for rows in self.lists.rows.values()]
        common = fit_scale(images, texts, targets)
        result = {"scale": common}
        for name, v, t, y in zip(self.lists.rows, images, texts, targets, strict=True):
            own = fit_scale([v], [t], [y])
            if self.args.gains:
                self.gain[name] = min(max(self.gain[name] * (common / own) ** 0.5, 0.5), 2.0)
            result[name], result[f"{name} scale"] = cross_entropy(common * v @ t.T, y).item(), own
        return result

    def train(self) -> None:
        args, start = self.args, time.time()
        args.out.parent.mkdir(parents=True, exist_ok=True)  # not after hours that would be lost
        every = args.report or max(args.steps // MOVES, 1)
        weights = {"own": 1.0, "joint": 0.5, "real": 0.5, "names": 1.0, "groups": 0.5}
        weights |= {"alpha": args.alpha_weight, "context": args.context_weight, "pairs": args.pairs_weight}
        weights |= {"keep": args.keep_weight}
        trunk = list(self.model.visual.trunk.parameters())
        parameters = [p for n, p in self.model.named_parameters() if p.requires_grad and not n.startswith(PREFIX)]
        decayed = [p for p in parameters if p.ndim > 1]
        plain = [p for p in parameters if p.ndim <= 1] + [self.pair_scale]
        groups = [
            {"params": decayed, "weight_decay": args.decay, "peak": args.lr},
            {"params": plain, "weight_decay": 0.0, "peak": args.lr},
            {"params": trunk, "weight_decay": 0.0, "peak": args.trunk_lr},
        ]
        optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=args.lr, betas=(0.9, 0.98), fused=True)
        for step in range(args.steps):
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * min((step + 1) / 300, 0.5 + 0.5 * math.cos(step / args.steps * math.pi))
            terms = self.terms(step)
            loss = sum(weights[k] * v for k, v in terms.items())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for part in (parameters, trunk):
                nn.utils.clip_grad_norm_(part, 1.0)
            optimizer.step()
            if step % every == every - 1:
                self.report(step + 1, time.time() - start, terms)
        tensors = {k: v.contiguous() for k, v in self.model.state_dict().items()}
        save_file(tensors, args.out, metadata=said(self.model.visual.trunk))

    def report(self, step: int, seconds: float, terms: dict[str, Tensor]) -> None:
        shown = " ".join(f"{k} {v.item():.3f}" for k, v in terms.items())
        held = " ".join(f"{k} {v:.3f}" for k, v in self.held_out().items())
        print(f"{self.args.out.stem} {step:6d} {seconds:5.0f}s {shown} | held out: {held}", flush=True)


def main() -> None:
    args = parse()
    Trainer(args, Material.load(args)).train()


if __name__ == "__main__":
    main()
