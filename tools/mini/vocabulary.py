"""Names, synonyms, groups and captions as token tables over a pruned CLIP vocabulary."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import timm.data
import torch
import words
from open_clip.tokenizer import SimpleTokenizer
from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES
from photos import CATS, SETS
from torch import Tensor

PAD, UNKNOWN = 0, 1  # CLIP's own ids of "!" (its padding) and of the double quote, which no caption contains
IMAGENET = "imagenet"
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


@dataclass(frozen=True)
class Leaf:
    """One class of one list with the names that captions may use; the first is the benchmark's."""

    source: str
    label: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """An everyday word that stands for several leaves."""

    names: tuple[str, ...]
    members: tuple[int, ...]


def clean(name: str) -> str:
    return " ".join(name.replace("_", " ").split())


def _info(file: str) -> list[str]:
    return (Path(timm.data.__file__).parent / "_info" / file).read_text().splitlines()


def imagenet_names() -> list[list[str]]:
    """open_clip's names, then everyday synonyms and the non-Latin WordNet lemmas that belong to exactly one class."""
    lemmas = dict(line.split("\t") for line in _info("imagenet_synset_to_lemma.txt"))
    names = [[clean(n)] for n in IMAGENET_CLASSNAMES]
    for entry in words.SYNONYMS.strip().replace("\n", " ").split(";"):
        number, name = entry.strip().split(" ", 1)
        names[int(number)].append(name)
    known = {w for n in names for w in n[0].lower().split()}
    candidates = [[x.strip() for x in lemmas[s].split(",")] for s in _info("imagenet_synsets.txt")]
    owners: dict[str, set[int]] = {}
    for i, entry in enumerate(candidates):
        for x in [*entry, *names[i]]:
            owners.setdefault(x.lower(), set()).add(i)
    taken = {n.lower() for g in group_words() for n in g[0]}
    for i, entry in enumerate(candidates):
        for x in entry:
            latin = re.fullmatch(r"[A-Z][a-z]+ [a-z]+", x) and x.split()[1] not in known
            if not latin and len(owners[x.lower()]) == 1 and x.lower() not in taken | {n.lower() for n in names[i]}:
                names[i].append(clean(x))
    for n in names:
        n[:] = [x.split(" / ")[0] if k else x for k, x in enumerate(n)]
        n += [re.sub(r"\s*\(.*?\)", "", n[0])] if "(" in n[0] else []
        n += n[0].split(" / ") if " / " in n[0] else []
    return names


def group_words() -> list[tuple[list[str], str]]:
    lines = words.GROUPS.strip().replace("\n  ", " ").splitlines()
    return [([n.strip() for n in line.split(":", 1)[0].split("|")], line.split(":", 1)[1].strip()) for line in lines]


def _members(spec: str, leaves: list[Leaf]) -> tuple[int, ...]:
    """Positions of the leaves that a line of words.GROUPS names; leaves of other sets are skipped."""
    found: set[int] = set()
    animals = {clean(c) for c in words.CALTECH_ANIMALS.strip().replace("\n", ",").split(",")}
    for part in re.split(r"\s+(?=[\d]|pets:|caltech:|flowers:)", spec):
        if part[0].isdigit():
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
            continue
        source, _, chosen = part.partition(":")
        named = {clean(c) for c in chosen.split(",")}
        for i, leaf in enumerate(leaves):
            raw = leaf.names[0]
            kinds = {"*": True, "#animal": raw in animals, "#cat": raw in CATS, "#dog": raw not in CATS}
            if leaf.source == source and kinds.get(chosen, raw in named):
                found.add(i)
    return tuple(sorted(found))


class Vocabulary:
    """Names and templates of captions, for ImageNet and the given photo sets (name -> class names in label order)."""

    def __init__(self, sets: dict[str, list[str]], context_length: int = 40) -> None:
        leaves = [Leaf(IMAGENET, i, tuple(n)) for i, n in enumerate(imagenet_names())]
        for source, names in sets.items():
            leaves += [Leaf(source, i, (clean(n),)) for i, n in enumerate(names)]
        self.leaves = leaves
        groups = [Group(tuple(n), _members(spec, leaves)) for n, spec in group_words()]
        self.groups = [g for g in groups if g.members]
        self.tokenizer = SimpleTokenizer(context_length=context_length)
        self.context_length = context_length
        self.names = sorted({n for x in (*leaves, *self.groups) for n in x.names})
        self.position = {n: i for i, n in enumerate(self.names)}
        shared = [t("{}") for t in OPENAI_IMAGENET_TEMPLATES]
        neutral = words.TEMPLATES_NEUTRAL.strip().replace("\n", "|").split("|")
        kinds = [t for s in SETS for t in words.TEMPLATES_KIND[s].split("|")]
        described = [t for d in words.DESCRIPTIONS.values() for t in d.split("|")]
        self.templates = list(dict.fromkeys([words.TEMPLATE_PROTOCOL, *neutral, *shared, *kinds, *described]))
        self.neutral = [self.templates.index(t) for t in dict.fromkeys(neutral)]
        self.described = [[self.templates.index(t) for t in d.split("|")] for d in words.DESCRIPTIONS.values()]
        self.pair_templates = words.TEMPLATES_PAIR.strip().replace("\n", "|").split("|")

    @cached_property
    def words(self) -> list[str]:
        text = " ".join([*self.names, *self.templates, *self.pair_templates]).replace("{}", " ").lower()
        return sorted(set(WORD.findall(text)))

    @cached_property
    def heads(self) -> list[str]:
        """Words that end a name: the others only modify one."""
        return sorted({words[-1] for n in self.names if (words := WORD.findall(n.lower()))})

    @cached_property
    def tokens(self) -> list[int]:
        """The kept CLIP ids in ascending order, so the end token keeps the highest id."""
        spelled = self.tokenizer.encode(" ".join([*self.names, *self.templates, *self.pair_templates, *self.words]))
        used = {t for w in (*self.names, *self.words) for t in self.tokenizer.encode(w)} | set(spelled)
        for template in (*self.templates, *self.pair_templates):
            for part in template.split("{}"):
                used |= set(self.tokenizer.encode(part.strip()))
        used |= set(self.tokenizer.encode(". , - ' ( ) /"))
        return sorted(used | {PAD, UNKNOWN, self.tokenizer.sot_token_id, self.tokenizer.eot_token_id})

    def encode(self, captions: list[str]) -> Tensor:
        """Rows of new ids, padded to the context length."""
        table = torch.full((self.tokenizer.vocab_size,), UNKNOWN)
        table[torch.tensor(self.tokens)] = torch.arange(len(self.tokens))
        return table[self.tokenizer(captions, context_length=self.context_length)]

    @cached_property
    def caption_tokens(self) -> Tensor:
        """(templates, names, length): every name in every template, trimmed to the longest caption."""
        rows = torch.stack([self.encode([t.format(n) for n in self.names]) for t in self.templates])
        return rows[..., : int((rows != PAD).sum(-1).max())].to(torch.int32)

    def prompts(self, names: list[str]) -> Tensor:
        return self.encode([words.TEMPLATE_PROTOCOL.format(clean(n)) for n in names])

    def json(self) -> dict[str, object]:
        return {
            "tokens": self.tokens,
            "unknown": UNKNOWN,
            "pad": PAD,
            "words": self.words,
            "heads": self.heads,
            "groups": {n: len(g.members) for g in self.groups for n in g.names},
        }
