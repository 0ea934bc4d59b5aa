"""Text features with a shared prefix against the full-length forward, and gradients through them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import open_clip
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.model import CLIP, CustomTextCLIP
from support import naive_adapt as naive
from support.models import CLASSES, KINDS, WordTokenizer, tiny, tiny_task

import cots
from cots.accelerate import LIMITS
from cots.prompts import CausalText, PlainText

WORD = st.sampled_from(["red", "old", "snow-white", "Bernard's", "3", "cat", "xylophone", "co2"])
NAMES = st.lists(st.lists(WORD, min_size=1, max_size=6).map(" ".join), min_size=1, max_size=6).map(tuple)
VISION = {"image_size": 32, "layers": 1, "width": 16, "patch_size": 16, "head_width": 8}


def backbone_of(model) -> cots.Backbone:
    return cots.Backbone(name="custom", model=model, tokenizer=open_clip.SimpleTokenizer(), preprocess={"size": 32})


def full_length(backbone, classes, template="a photo of a {}."):
    texts = [template.format(name.replace("_", " ")) for name in classes]
    ids = backbone.tokenizer(texts, context_length=backbone.context_length)
    return torch.nn.functional.normalize(backbone.model.encode_text(ids), dim=-1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", KINDS)
def test_features_equal_the_full_length_forward(kind, dtype, tolerance):
    task = tiny_task(kind, dtype)
    expected = full_length(task.backbone, CLASSES)
    torch.testing.assert_close(task.text_features, expected, rtol=0, atol=tolerance)
    assert isinstance(task.tower, PlainText if kind == "siglip" else CausalText)
    assert task.initial_context.shape == (4, 16)


def test_openai_sized_towers_agree_in_float32():
    """A quarter of the text tower of OpenAI's models beside a small image tower."""
    text = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 3}
    backbone = backbone_of(CLIP(512, VISION, text, quick_gelu=True))
    task = cots.Task(backbone, CLASSES)
    torch.testing.assert_close(task.text_features, full_length(backbone, CLASSES), rtol=0, atol=1e-5)


@given(NAMES, st.sampled_from(["a photo of a {}.", "{}", "a bad photo of the {}!", "itap of my {}, a type of pet."]))
@settings(max_examples=25, deadline=None)
def test_any_names_and_template_equal_the_full_length_forward(names, template):
    backbone = tiny("vit", torch.float64)
    task = cots.Task(backbone, names, template)
    torch.testing.assert_close(task.text_features, full_length(backbone, names, template), rtol=0, atol=1e-12)


@given(NAMES, st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_a_class_never_depends_on_the_others_or_on_padding(names, pick):
    backbone = tiny("vit", torch.float64)
    together = cots.Task(backbone, names).text_features
    k = pick % len(names)
    alone = cots.Task(backbone, [names[k]]).text_features[0]
    torch.testing.assert_close(together[k], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_gradients_under_other_contexts(kind):
    task = tiny_task(kind, torch.float64)
    generator = torch.Generator().manual_seed(0)
    contexts = task.initial_context + 0.05 * torch.randn(3, 4, 16, generator=generator, dtype=torch.float64)
    cotangent = torch.randn(3, len(CLASSES), 12, generator=generator, dtype=torch.float64)
    leaf = contexts.clone().requires_grad_()
    features = task.features_under(leaf)
    gradient = torch.autograd.grad((features * cotangent).sum(), leaf)[0]
    ids = naive.prompt_ids(task.backbone, CLASSES)
    for b in range(3):
        own = contexts[b].clone().requires_grad_()
        expected = naive.text_features(task.backbone, ids, own)
        torch.testing.assert_close(features[b], expected, rtol=0, atol=1e-12)
        by_hand = torch.autograd.grad((expected * cotangent[b]).sum(), own)[0]
        torch.testing.assert_close(gradient[b], by_hand, rtol=0, atol=1e-10)


def test_only_the_name_the_stop_and_the_end_run_for_each_class():
    task = tiny_task("vit", classes=("cat", "golden retriever"))
    assert task.tower.tokens_per_sample == 5 + 3 + 4  # SOS + 4 context; cat . EOT; golden retriever . EOT


def causal_custom_text():
    """A causal tower inside CustomTextCLIP that pools at an explicit end token, with layer scale."""
    text = {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2, "pool_type": "eos",
            "eos_id": 49407, "ls_init_value": 0.5}  # fmt: skip
    torch.manual_seed(0)
    return CustomTextCLIP(12, VISION, text)


def coca_like_text():
    """A class token is appended and pooled, which the packed forward does not reproduce."""
    text = {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2, "embed_cls": True}
    torch.manual_seed(0)
    return CustomTextCLIP(12, VISION, text)


@pytest.mark.parametrize(("build", "tower"), [(causal_custom_text, CausalText), (coca_like_text, PlainText)])
def test_other_text_towers(build, tower):
    backbone = backbone_of(build().double())
    task = cots.Task(backbone, CLASSES)
    assert isinstance(task.tower, tower)
    torch.testing.assert_close(task.text_features, full_length(backbone, CLASSES), rtol=0, atol=1e-10)
    views = torch.nn.functional.normalize(torch.randn(2, 10, 12, dtype=torch.float64), dim=-1)
    assert bool(cots.adapt("tpt", views, task).logits.isfinite().all())


def test_texts_padded_per_batch_take_the_models_own_forward():
    """`model.traits` of open_clip from version 4 on."""
    backbone = backbone_of(causal_custom_text())
    assert CausalText.supports(backbone)
    backbone.model.traits = SimpleNamespace(variable_text=True)
    assert not CausalText.supports(backbone)


class InnerTransformer(torch.nn.Module):
    """A tower of another library: its token embedding can only be asked for."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(512, 16)
        self.mix = torch.nn.Linear(16, 16)

    def get_input_embeddings(self):
        return self.words

    def forward(self, ids):
        return torch.tanh(self.mix(self.words(ids))).cumsum(1)


class OtherTower(torch.nn.Module):
    """As open_clip wraps it: `text.transformer`, pooled at the first end token, which is not the largest id."""

    def __init__(self):
        super().__init__()
        self.transformer, self.projection = InnerTransformer(), torch.nn.Linear(16, 12)

    def forward(self, ids):
        first = (ids == 1).int().argmax(1)
        return self.projection(self.transformer(ids)[torch.arange(len(ids)), first])


class OtherModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.visual = OtherTower(), CLIP(12, VISION, {"context_length": 16, "vocab_size": 512, "width": 16,
                                                                 "heads": 2, "layers": 1}).visual  # fmt: skip
        self.logit_scale = torch.nn.Parameter(torch.tensor(3.0))

    def encode_image(self, pixels):
        return self.visual(pixels)

    def encode_text(self, ids):
        return self.text(ids)


def words_backbone(model):
    return cots.Backbone(name="custom", model=model, tokenizer=WordTokenizer(), preprocess={"size": 32})


def test_a_tower_that_only_has_get_input_embeddings():
    torch.manual_seed(0)
    backbone = words_backbone(OtherModel().double())
    task = cots.Task(backbone, CLASSES)
    assert isinstance(task.tower, PlainText)
    words = backbone.model.text.transformer.words
    ids = backbone.tokenizer(["a photo of a car."])
    torch.testing.assert_close(task.initial_context, words(ids)[0, :4])
    torch.testing.assert_close(task.text_features, full_length(backbone, CLASSES), rtol=0, atol=1e-12)
    moved = task.initial_context + 0.1
    ids = backbone.tokenizer([f"a photo of a {name}.".replace("_", " ") for name in CLASSES])
    with torch.no_grad():
        embedded = words(ids)
        embedded[:, :4] = moved
        mixed = torch.tanh(backbone.model.text.transformer.mix(embedded)).cumsum(1)
        pooled = torch.stack([mixed[k, int((row == 1).nonzero()[0])] for k, row in enumerate(ids)])
        expected = torch.nn.functional.normalize(backbone.model.text.projection(pooled), dim=-1)
    torch.testing.assert_close(task.features_under(moved[None])[0], expected, rtol=0, atol=1e-12)


def test_a_tower_without_a_token_embedding_is_refused():
    model = OtherModel()
    del InnerTransformer.get_input_embeddings
    try:
        with pytest.raises(cots.InputError, match="no token embedding that cots recognises"):
            cots.Task(words_backbone(model), CLASSES)
    finally:
        InnerTransformer.get_input_embeddings = lambda self: self.words


def test_an_end_token_that_is_not_the_largest_id():
    """A causal tower that pools at token 1, where every word has a larger id."""
    text = {"context_length": 16, "vocab_size": 512, "width": 16, "heads": 2, "layers": 2, "pool_type": "eos",
            "eos_id": 1}  # fmt: skip
    torch.manual_seed(0)
    backbone = words_backbone(CustomTextCLIP(12, VISION, text).double())
    ids = backbone.tokenizer([f"a photo of a {name}.".replace("_", " ") for name in CLASSES])
    assert bool((ids.argmax(1) != (ids == 1).int().argmax(1)).all())
    task = cots.Task(backbone, CLASSES)
    assert isinstance(task.tower, CausalText)
    torch.testing.assert_close(task.text_features, full_length(backbone, CLASSES), rtol=0, atol=1e-10)


def test_tasks_of_one_model_are_independent_across_threads(monkeypatch):
    """One starts its forward pass while the other is in the middle of its own, and finishes after it."""
    backbone = tiny("siglip", torch.float64)
    contexts = torch.randn(2, 1, 4, 16, dtype=torch.float64)
    tasks = [cots.Task(backbone, CLASSES), cots.Task(backbone, CLASSES)]
    expected = [task.features_under(c) for task, c in zip(tasks, contexts, strict=True)]
    encode, main, begun, ended = backbone.model.encode_text, threading.get_ident(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        others = []

        def in_turn(ids):
            if threading.get_ident() != main:
                begun.set()
                assert ended.wait(60)
                return encode(ids)
            others.append(pool.submit(tasks[1].features_under, contexts[1]))
            assert begun.wait(60)
            try:
                return encode(ids)
            finally:
                ended.set()

        monkeypatch.setattr(backbone.model, "encode_text", in_turn)
        found = [tasks[0].features_under(contexts[0]), others[0].result()]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_prompts_run_a_few_at_a_time(monkeypatch):
    expected = tiny_task("siglip", torch.float64).text_features
    monkeypatch.setitem(LIMITS, "prompts", 2)
    task = cots.Task(tiny("siglip", torch.float64), CLASSES)
    prompts = []
    encode_text = task.tower.model.encode_text
    monkeypatch.setattr(task.tower.model, "encode_text", lambda ids: prompts.append(len(ids)) or encode_text(ids))
    torch.testing.assert_close(task.text_features, expected, rtol=0, atol=1e-12)
    assert prompts == [2, 2, 1]
