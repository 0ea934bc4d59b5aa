"""Which names form which list, and random covers of a list's classes by everyday groups ("dog" for 118 breeds)."""

import random

import torch
from torch import Tensor
from vocabulary import IMAGENET, Vocabulary


class Lists:
    """Which rows of the encoded names (leaves, then groups) form which list, and random covers of leaves by disjoint
    groups.
    """

    def __init__(self, vocabulary: Vocabulary, sets: list[str], device: str) -> None:
        self.vocabulary, self.device = vocabulary, device
        self.count = len(vocabulary.leaves)
        rows = {
            name: [i for i, leaf in enumerate(vocabulary.leaves) if leaf.source == name] for name in (IMAGENET, *sets)
        }
        self.rows = {name: torch.tensor(r, device=device) for name, r in rows.items()}
        self.first = {name: r[0] for name, r in rows.items()}
        self.members = torch.zeros(self.count, len(vocabulary.groups), device=device)
        for g, group in enumerate(vocabulary.groups):
            self.members[list(group.members), g] = 1
        self.covers = [sum(1 << i for i in group.members) for group in vocabulary.groups]
        names = [leaf.names[0].lower().replace("lilly", "lily") for leaf in vocabulary.leaves]
        self.hidden = {}
        for name in sets:
            mine = {names[i] for i in rows[name]}
            wrong = [
                leaf.source not in sets or (leaf.source != name and names[i] in mine)
                for i, leaf in enumerate(vocabulary.leaves)
            ]
            self.hidden[name] = torch.tensor(wrong, device=device)
        self.hidden[IMAGENET] = torch.tensor([leaf.source != IMAGENET for leaf in vocabulary.leaves], device=device)
        self.photographed = torch.cat([self.rows[s] for s in sets])
        self.photo_class = torch.zeros(self.count, dtype=torch.long, device=device)
        self.photo_class[self.photographed] = torch.arange(len(self.photographed), device=device)
        self.names = [self._positions(x.names) for x in (*vocabulary.leaves, *vocabulary.groups)]
        self.everything = torch.arange(len(self.names), device=device)
        longest = max(len(n) for n in self.names)
        self.choices = torch.tensor([n + n[:1] * (longest - len(n)) for n in self.names], device=device)
        self.sizes = torch.tensor([len(n) for n in self.names], device=device)

    def _positions(self, names: tuple[str, ...]) -> list[int]:
        return [self.vocabulary.position[n] for n in names]

    def spread(self, target: Tensor, name: str) -> Tensor:
        """Targets over one list as targets over all leaves."""
        first = self.first[name]
        return torch.nn.functional.pad(target, (first, self.count - first - target.shape[1]))

    def draw_names(self, rows: Tensor, main: float = 0.6) -> Tensor:
        """A position in the name table for each row: the first name, or any of its names."""
        pick = (torch.rand(len(rows), device=self.device) * self.sizes[rows]).long()
        pick[torch.rand(len(rows), device=self.device) < main] = 0
        return self.choices[rows, pick]

    def cover(self, keep: float = 0.5) -> Tensor:
        """A random set of disjoint groups, as a mask."""
        taken, chosen = 0, torch.zeros(len(self.covers), dtype=torch.bool)
        for g in random.sample(range(len(self.covers)), len(self.covers)):
            if random.random() < keep and not self.covers[g] & taken:
                taken, chosen[g] = taken | self.covers[g], True
        return chosen

    def covered(self, logits: Tensor, target: Tensor, chosen: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and targets over leaves and groups, where chosen groups replace their members and hidden leaves take
        no part.
        """
        gone = (self.members @ chosen.float() > 0) | hidden
        target = torch.cat([target.masked_fill(gone, 0), (target @ self.members) * chosen], -1)
        return logits.masked_fill(torch.cat([gone, ~chosen]), float("-inf")), target
