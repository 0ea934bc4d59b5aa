"""A tokenizer for models that ship only the token rows they were trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._errors import BackboneError

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


class PrunedTokenizer:
    """Maps the ids of a full tokenizer onto the kept rows of a pruned token table.

    `tokens` lists the kept ids in ascending order; an id's place in that list is its new id, so the end-of-text token
    keeps the highest one and pooling at the arg max still works. Any other id becomes `unknown`. `words` are the words
    that were seen in training: a word can be untrained although its pieces are known. `heads` are those that a trained
    name ended in: "penguin" is one, "king" in "king penguin" is none. A Task warns of words that are in neither.
    """

    def __init__(
        self, base: Any, tokens: Sequence[int], unknown: int, words: Sequence[str] = (), heads: Sequence[str] = ()
    ) -> None:
        self.base = base
        self.context_length = base.context_length
        self.unknown = unknown
        self.words, self.heads = frozenset(words), frozenset(heads)
        table = torch.full((base.vocab_size,), unknown, dtype=torch.long)
        table[torch.as_tensor(tokens, dtype=torch.long)] = torch.arange(len(tokens))
        self._table = table

    @classmethod
    def from_file(cls, base: Any, file: Path) -> PrunedTokenizer:
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            return cls(base, data["tokens"], data["unknown"], data.get("words", ()), data.get("heads", ()))
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise BackboneError(f"{file} is no token list (keys tokens and unknown): {error!r}") from None

    def __call__(self, texts: Sequence[str] | str, context_length: int | None = None) -> Tensor:
        texts = [texts] if isinstance(texts, str) else list(texts)
        full = self.base(texts, context_length=context_length)
        new = self._table[full]
        # Id 0 pads. Positions after the end of the text never matter to a causal tower, so any valid row will do.
        new[full == 0] = 0
        return new

    def untrained_words(self, texts: Sequence[str]) -> list[str]:
        """The words of `texts` that were not seen in training, in order of appearance."""
        found: dict[str, None] = {}
        for text in texts:
            words = WORD.findall(text.lower())
            # A name without any word, such as a picture sign, is all that its class has.
            for word in words or text.split():
                known = word in self.words if words and self.words else self._pieces_known(word)
                if not known:
                    found[word] = None
        return list(found)

    def words_inside_names(self, names: Sequence[str]) -> list[str]:
        """Last words of `names` that were trained, but only inside other names, in order of appearance."""
        last = [found[-1] for name in names if (found := WORD.findall(name.lower()))] if self.heads else []
        return [word for word in dict.fromkeys(last) if word in self.words and word not in self.heads]

    def _pieces_known(self, word: str) -> bool:
        ids = torch.as_tensor(self.base.encode(word), dtype=torch.long)
        return bool((self._table[ids] != self.unknown).all())
