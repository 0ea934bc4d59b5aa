"""PrunedTokenizer: ids, and the words that a model was not trained on."""

from __future__ import annotations

import copy
import json

import open_clip

from cots.backbones._mini import PrunedTokenizer


def pruned(tmp_path, words=(), heads=()):
    base = copy.copy(open_clip.tokenizer._tokenizer)
    base.context_length = 20
    tokens = sorted({*base.encode("a photo of a cat dog ."), *base.all_special_ids})
    file = tmp_path / "vocabulary.json"
    data = {"tokens": tokens, "unknown": len(tokens), "words": list(words), "heads": list(heads)}
    file.write_text(json.dumps(data))
    return base, tokens, PrunedTokenizer.from_file(base, file)


def test_pruned_tokens_keep_their_meaning(tmp_path):
    base, tokens, tokenizer = pruned(tmp_path)
    full, new = base(["a photo of a cat."])[0], tokenizer(["a photo of a cat."])[0]
    length = int(full.argmax()) + 1
    assert [tokens[i] for i in new[:length]] == full[:length].tolist()
    assert int(new.argmax()) == int(full.argmax()), "the end of the text keeps the highest id"
    assert tokenizer("a cat").shape == (1, 20)


def test_untrained_words_are_found(tmp_path):
    _, tokens, tokenizer = pruned(tmp_path)
    assert tokenizer.untrained_words(["a photo of a zebra.", "a photo of okapi cat, zebra."]) == ["zebra", "okapi"]
    assert (tokenizer(["a photo of a zebra."]) == len(tokens)).any()
    _, _, listed = pruned(tmp_path, words=["a", "photo", "of", "cat"])
    assert listed.untrained_words(["A photo of a Cat! dog"]) == ["dog"]


def test_words_that_were_only_inside_other_names_are_found(tmp_path):
    """'king' was trained in 'king penguin' alone; as the end of a name it is as good as untrained."""
    _, _, tokenizer = pruned(tmp_path, words=["king", "penguin", "man", "eater"], heads=["penguin", "eater"])
    names = ["king", "King Penguin", "a penguin king", "man-eater", "penguin man", "zebra", "..."]
    assert tokenizer.words_inside_names(names) == ["king", "man"]
    _, _, without = pruned(tmp_path, words=["king", "penguin"])
    assert without.words_inside_names(names) == []
