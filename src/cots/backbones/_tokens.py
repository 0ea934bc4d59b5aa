"""A tokenizer for models whose token table has only the rows they were trained on."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .._errors import BackboneError

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


class PrunedTokenizer:
    """Maps the ids of a full tokenizer to the rows of a pruned token table.

    `tokens`: the kept ids in ascending order; an id's position is its new id, so the end-of-text token keeps the
    highest one and pooling at the arg max still works. All other ids become `unknown`. `words`: the words seen in
    training; a word can be untrained although its pieces are known. `heads`: the last words of trained names, such as
    "penguin" but not "king" in "king penguin". A Task warns of words in neither.
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
    def from_file(cls, base: Any, file: Path) -> Self:
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            return cls(base, data["tokens"], data["unknown"], data.get("words", ()), data.get("heads", ()))
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise BackboneError(f"{file} is not a token list with keys tokens and unknown: {error!r}") from None

    def __call__(self, texts: Sequence[str] | str, context_length: int | None = None) -> Tensor:
        texts = [texts] if isinstance(texts, str) else list(texts)
        full = self.base(texts, context_length=context_length)
        new = self._table[full]
        # Id 0 is padding, which a causal tower never reads; any valid row will do.
        new[full == 0] = 0
        return new

    def untrained_words(self, texts: Sequence[str]) -> list[str]:
        """Words of `texts` not seen in training, in order of appearance."""
        found: dict[str, None] = {}
        for text in texts:
            words = WORD.findall(text.lower())
            # A name may have no word, only a sign such as an emoji.
            for word in words or text.split():
                known = word in self.words if words and self.words else self._pieces_known(word)
                if not known:
                    found[word] = None
        return list(found)

    def words_inside_names(self, names: Sequence[str]) -> list[str]:
        """Last words of `names` that were trained only inside other names, in order of appearance."""
        last = [found[-1] for name in names if (found := WORD.findall(name.lower()))] if self.heads else []
        return [word for word in dict.fromkeys(last) if word in self.words and word not in self.heads]

    def _pieces_known(self, word: str) -> bool:
        ids = torch.as_tensor(self.base.encode(word), dtype=torch.long)
        return bool((self._table[ids] != self.unknown).all())
