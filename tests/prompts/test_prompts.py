"""Text features with a shared prefix against the full-length forward, gradients too; templates, CoOp, bad names."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import open_clip
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.model import CLIP, CustomTextCLIP
from safetensors.torch import save_file
from support import naive_adapt as naive
from support.models import CLASSES, KINDS, WordTokenizer, tiny, tiny_task

import cots
from cots.prompts import duplicate_classes
from cots.prompts._causal import CausalText
from cots.prompts._plain import PlainText

WORD = st.sampled_from(["red", "old", "snow-white", "Bernard's", "3", "cat", "xylophone", "co2"])
WORDS = st.lists(WORD, min_size=1, max_size=6)
NAMES = st.lists(WORDS.map(" ".join), min_size=1, max_size=6).map(tuple)


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
    for arch in ("ViT-B-32-quickgelu", "RN50-quickgelu"):
        backbone = cots.load(f"random:{arch}")
        task = cots.Task(backbone, CLASSES)
        torch.testing.assert_close(task.text_features, full_length(backbone, CLASSES), rtol=0, atol=1e-5)


@given(NAMES, st.sampled_from(["a photo of a {}.", "{}", "a bad photo of the {}!", "itap of my {}, a type of pet."]))
@settings(max_examples=40, deadline=None)
def test_any_names_and_template_equal_the_full_length_forward(names, template):
    backbone = tiny("vit", torch.float64)
    task = cots.Task(backbone, names, template)
    torch.testing.assert_close(task.text_features, full_length(backbone, names, template), rtol=0, atol=1e-12)


@given(NAMES, st.integers(0, 5))
@settings(max_examples=20, deadline=None)
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
    gradient = torch.autograd.grad(features, leaf, cotangent)[0]
    ids = naive.prompt_ids(task.backbone, CLASSES)
    for b in range(3):
        own = contexts[b].clone().requires_grad_()
        expected = naive.text_features(task.backbone, ids, own)
        torch.testing.assert_close(features[b], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient[b], torch.autograd.grad(expected, own, cotangent[b])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("kind", KINDS)
def test_pull_back_is_the_gradient_at_the_initial_context(kind, dtype, tolerance):
    task = tiny_task(kind, dtype)
    cotangent = torch.randn(4, len(CLASSES), 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    pulled = task.pull_back(cotangent)
    ids = naive.prompt_ids(task.backbone, CLASSES)
    context = naive.initial_context(task.backbone).requires_grad_()
    features = naive.text_features(task.backbone, ids, context)
    for b in range(4):
        expected = torch.autograd.grad(features, context, cotangent[b], retain_graph=True)[0]
        torch.testing.assert_close(pulled[b], expected, rtol=0, atol=tolerance * float(expected.abs().max()))


def test_only_the_name_the_stop_and_the_end_run_for_each_class():
    task = tiny_task("vit", classes=("cat", "golden retriever"))
    assert task.tower.tokens_per_sample == 5 + 3 + 4  # SOS + 4 context; cat . EOT; golden retriever . EOT


def causal_custom_text():
    """A causal tower inside CustomTextCLIP that pools at an explicit end token, with layer scale."""
    text = {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2, "pool_type": "eos",
            "eos_id": 49407, "ls_init_value": 0.5}  # fmt: skip
    vision = {"image_size": 32, "layers": 1, "width": 16, "patch_size": 16, "head_width": 8}
    torch.manual_seed(0)
    return CustomTextCLIP(12, vision, text)


def coca_like_text():
    """A class token is appended and pooled: not the shape the packed path knows."""
    text = {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2, "embed_cls": True}
    vision = {"image_size": 32, "layers": 1, "width": 16, "patch_size": 16, "head_width": 8}
    torch.manual_seed(0)
    return CustomTextCLIP(12, vision, text)


@pytest.mark.parametrize(("build", "tower"), [(causal_custom_text, CausalText), (coca_like_text, PlainText)])
def test_other_text_towers(build, tower):
    backbone = cots.Backbone(
        name="custom", model=build().double(), tokenizer=open_clip.SimpleTokenizer(), preprocess={"size": 32}
    )
    task = cots.Task(backbone, CLASSES)
    assert isinstance(task.tower, tower)
    torch.testing.assert_close(task.text_features, full_length(backbone, CLASSES), rtol=0, atol=1e-10)
    views = torch.nn.functional.normalize(torch.randn(2, 10, 12, dtype=torch.float64), dim=-1)
    assert bool(cots.adapt("tpt", views, task).logits.isfinite().all())


def test_tasks_of_one_model_do_not_meet_in_two_threads(monkeypatch):
    """One begins its forward pass while the other is in the middle of its own, and ends after it."""
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


def test_alpha_is_the_mean_off_diagonal_cosine():
    task = tiny_task("vit", torch.float64)
    T = task.text_features
    pairs = [float(T[i] @ T[j]) for i in range(5) for j in range(5) if i != j]
    assert task.alpha == pytest.approx(sum(pairs) / 20, abs=1e-12)
    assert tiny_task("vit", classes=("cat",)).alpha == 1.0
    assert tiny_task("vit", classes=("cat", "cat")).alpha == pytest.approx(1.0, abs=1e-6)


@given(NAMES)
@settings(max_examples=20, deadline=None)
def test_alpha_lies_between_minus_one_and_one(names):
    assert -1 <= cots.Task(tiny("vit"), names).alpha <= 1


@pytest.mark.parametrize("kind", ["vit", "siglip"])
@pytest.mark.parametrize("form", ["tensor", "pth", "safetensors"])
def test_coop_checkpoints_replace_the_context_everywhere(kind, form, tmp_path):
    backbone = tiny(kind, torch.float64)
    ctx = 0.1 * torch.randn(6, 16, generator=torch.Generator().manual_seed(3))
    source = ctx
    if form == "pth":
        source = tmp_path / "model.pth.tar-50"
        torch.save({"state_dict": {"ctx": ctx, "token_prefix": torch.zeros(1)}, "epoch": 50}, source)
    elif form == "safetensors":
        source = tmp_path / "ctx.safetensors"
        save_file({"ctx": ctx}, source)
    task = cots.Task(backbone, CLASSES, context=source)
    ids = naive.prompt_ids(backbone, CLASSES, "X X X X X X {}.")
    T = naive.text_features(backbone, ids, ctx.double())
    torch.testing.assert_close(task.text_features, T, rtol=0, atol=1e-12)
    assert task.alpha == pytest.approx(float((T @ T.T).sum() - 5) / 20, abs=1e-10)
    views = torch.nn.functional.normalize(torch.randn(1, 20, 12, dtype=torch.float64), dim=-1)
    adapted = cots.adapt("tpt", views, task)
    context = torch.nn.Parameter(ctx.double().clone())
    optimiser = torch.optim.AdamW([context], lr=5e-3)
    zero_shot = backbone.logit_scale * views[0] @ T.T
    z = backbone.logit_scale * views[0, naive.select(zero_shot, 0.1)] @ naive.text_features(backbone, ids, context).T
    naive.mean_entropy(z).backward()
    optimiser.step()
    expected = backbone.logit_scale * views[0] @ naive.text_features(backbone, ids, context.detach()).T
    torch.testing.assert_close(adapted.logits[0], expected, rtol=0, atol=1e-8)


class Evil:
    def __reduce__(self):
        return print, ("executed",)


def test_bad_coop_files_are_named(tmp_path, capsys):
    backbone = tiny("vit")
    cases = {
        "missing.pth": (None, "does not exist"),
        "evil.pth": ({"state_dict": Evil()}, "cannot be read safely"),
        "none.pth": ({"state_dict": {"other": torch.zeros(2)}}, "holds no tensor 'ctx'"),
        "csc.pth": ({"ctx": torch.zeros(5, 4, 16)}, "one context per class"),
        "wide.pth": ({"ctx": torch.zeros(4, 512)}, "512 wide, but tiny-vit's text tower is 16 wide"),
        "nan.pth": ({"ctx": torch.full((4, 16), float("nan"))}, "context holds 64 value"),
    }
    for name, (content, message) in cases.items():
        if content is not None:
            torch.save(content, tmp_path / name)
        with pytest.raises(cots.InputError, match=message):
            cots.Task(backbone, CLASSES, context=tmp_path / name)
    (tmp_path / "broken.safetensors").write_bytes(b"123")
    with pytest.raises(cots.InputError, match="cannot be read safely"):
        cots.Task(backbone, CLASSES, context=tmp_path / "broken.safetensors")
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("classes", "template", "message"),
    [
        ([], "a photo of a {}.", "classes is empty"),
        ("cat", "a photo of a {}.", r"not the one string 'cat'. Write \['cat'\]"),
        (["cat", "  _ "], "a photo of a {}.", "class 1 has an empty name"),
        (["cat", 3], "a photo of a {}.", "class 1 is 3; class names must be strings"),
        (["cat"], "a photo.", "must hold {} exactly once"),
        (["cat"], "{} and {}", "must hold {} exactly once"),
        (["cat"], "a {name} {}", "must hold {} exactly once"),
        (["cat", "very " * 80 + "long"], "a photo of a {}.", r"class 1 \('very .* needs 8\d tokens .* takes 77"),
        (["cat", "dog"], "a photo of a#{}", "ok"),
    ],
)  # fmt: skip
def test_bad_names_and_templates_are_named(classes, template, message):
    if message == "ok":  # a space is put before the name, so nothing can melt into it
        assert cots.Task(tiny("vit"), classes, template).text_features.shape == (2, 12)
        return
    with pytest.raises(cots.InputError, match=message):
        cots.Task(tiny("vit"), classes, template)


def test_over_long_names_are_found_for_other_tokenizers_too():
    with pytest.raises(cots.InputError, match="needs 21 tokens or more, but tiny-siglip takes 16"):
        cots.Task(tiny("siglip"), ["cat", " ".join(["word"] * 16)])


def test_words_that_melt_into_a_name_are_refused():
    class Melting(WordTokenizer):
        def __call__(self, texts, context_length=None):
            return super().__call__([t.replace("of a dog", "ofadog") for t in texts], context_length)

    backbone = dataclasses.replace(tiny("siglip"), tokenizer=Melting())
    with pytest.raises(cots.InputError, match="melt into the name 'dog'"):
        cots.Task(backbone, ["cat", "dog"])


def test_underscores_and_spaces_are_cleaned():
    assert cots.Task(tiny("vit"), ["golden_retriever ", " tabby  cat"]).classes == ("golden retriever", "tabby cat")
    assert "2 classes" in repr(cots.Task(tiny("vit"), ["a", "b"]))


def test_half_precision_weights_are_refused():
    model = CLIP(12, {"image_size": 32, "layers": 1, "width": 16, "patch_size": 16, "head_width": 8},
                 {"context_length": 20, "width": 16, "heads": 2, "layers": 1})  # fmt: skip
    with pytest.raises(cots.InputError, match=r"half precision .* Call model.float\(\)"):
        cots.Backbone(name="half", model=model.half(), tokenizer=WordTokenizer(), preprocess={"size": 32})


def test_names_that_differ_in_capitals_are_one_class_unless_the_tokenizer_tells_them_apart():
    backbone = tiny("vit")
    assert duplicate_classes(backbone, ["cat", "dog", "catfish"]) is None
    assert duplicate_classes(backbone, ["cat", "dog", "Cat"]) == (0, 2)
    exact = SimpleNamespace(tokenize=lambda names: torch.tensor([[sum(map(ord, n))] for n in names]))
    assert duplicate_classes(exact, ["Polish", "polish"]) is None
    assert duplicate_classes(exact, ["Polish", "polish", "dog", "polish"]) == (1, 3)
