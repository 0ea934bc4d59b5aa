"""GPU results agree with the CPU's. One file, so that one command checks a GPU machine; skipped without CUDA."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.logits import needed
from support.models import CLASSES, KINDS, NEEDS, random_views, tiny, tiny_task

import cots
from cots.accelerate import Plain, accelerator, using
from cots.adaptation import Pipeline
from cots.adapters import ADAPTERS
from cots.adapters.ecalp import SCALE
from cots.bench import TimedPipeline
from cots.calibrators import CALIBRATORS
from cots.fast import kernels
from cots.methods import parse_method, predictions_of

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

OF_FEATURES = [info.name for info in ADAPTERS.infos() if info.takes == "features" and "(" not in info.name]


def on_gpu(kind: str, dtype: torch.dtype, method: str = "") -> cots.Task:
    backbone = tiny(kind, dtype)
    moved = dataclasses.replace(backbone, model=copy.deepcopy(backbone.model).cuda())
    return cots.Task(moved, CLASSES, **NEEDS.get(method, {}))


def random_unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, device="cuda"), dim=-1)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", OF_FEATURES)
def test_adapters_agree_with_the_cpu(method, kind, steps):
    here, there = tiny_task(kind, torch.float64, method=method), on_gpu(kind, torch.float64, method)
    views = random_views(here)
    possible = {"steps": steps, "length": len(views)}
    settings = {name: value for name, value in possible.items() if name in ADAPTERS.settings(method)}
    ours = cots.adapt(method, views.cuda(), there, **settings)
    assert ours.logits.is_cuda
    expected = cots.adapt(method, views, here, **settings)
    scale = SCALE if method == "ecalp" else 1.0  # its logits are that many times its scores
    torch.testing.assert_close(ours.logits.cpu(), expected.logits, rtol=0, atol=1e-8 * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_penalty_does_not_move_a_weak_view_within_its_own_bounds(kind):
    task = on_gpu(kind, torch.float32)
    weak = random_views(tiny_task(kind, torch.float32), samples=9)[:, :1].cuda()
    penalised, plain = cots.adapt("penalty", weak, task, weight=1e3), cots.adapt("tpt", weak, task)
    torch.testing.assert_close(penalised.logits, plain.logits, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_ttl_agrees_with_the_cpu(kind):
    here, there = tiny_task(kind, torch.float64), on_gpu(kind, torch.float64)
    pixels = torch.randn(2, 4, 3, *here.backbone.image_size, dtype=torch.float64)
    ours = cots.adapt("ttl", pixels.cuda(), there, steps=2)
    expected = cots.adapt("ttl", pixels, here, steps=2)
    torch.testing.assert_close(ours.logits.cpu(), expected.logits, rtol=0, atol=1e-7)


WITH_SOLVER = [(name, solver) for name in ("cots", "ecots") for solver in ("adam", "exact")]
WITHOUT_SOLVER = [(name, None) for name in CALIBRATORS if name not in ("cots", "ecots")]


@pytest.mark.parametrize(("method", "solver"), WITH_SOLVER + WITHOUT_SOLVER)
def test_calibrators_agree_with_the_cpu(method, solver):
    generator = torch.Generator().manual_seed(0)
    zero_shot = 5 * torch.randn(6, 64, 40, generator=generator, dtype=torch.float64)
    adapted = 1.5 * zero_shot + 0.2 * torch.randn(6, 64, 40, generator=generator, dtype=torch.float64)
    given = {"method": method, "alpha": 0.7, **needed(method, 6, 40)}
    if solver is not None:
        given["solver"] = solver
    ours = cots.calibrate(adapted.cuda(), zero_shot.cuda(), **given)
    expected = cots.calibrate(adapted, zero_shot, **given)
    assert ours.probabilities.is_cuda
    torch.testing.assert_close(ours.probabilities.cpu(), expected.probabilities, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.tau.cpu(), expected.tau, rtol=1e-8, atol=0)
    assert torch.equal(ours.views.cpu(), expected.views)


def test_openai_sized_towers_agree_in_float32():
    backbone = cots.load("random:ViT-B-16-quickgelu", device="cuda")
    assert backbone.device.type == "cuda"
    task = cots.Task(backbone, CLASSES)
    full = backbone.model.encode_text(backbone.tokenize([f"a photo of a {n}." for n in task.classes]), normalize=True)
    torch.testing.assert_close(task.text_features, full, rtol=0, atol=1e-5)
    pixels = torch.randn(4, 3, 224, 224)
    low = dataclasses.replace(backbone, precision="bfloat16").encode_images(pixels)
    torch.testing.assert_close(low, backbone.encode_images(pixels), rtol=0, atol=2e-2)


def half_on_gpu(classes=CLASSES) -> tuple[cots.Task, cots.Task]:
    """A ViT-B/32-sized model, in float32 and in half precision."""
    torch.manual_seed(0)
    exact = cots.load("random:ViT-B-32-quickgelu", device="cuda")
    half = dataclasses.replace(exact, precision="bfloat16")
    return cots.Task(exact, classes), cots.Task(half, classes)


def test_half_precision_agrees():
    exact, half = half_on_gpu()
    pixels = torch.randn(4, 3, 224, 224, device="cuda")
    assert half.tower.half is not half.tower.blocks
    error = (half.backbone.encode_images(pixels) - exact.backbone.encode_images(pixels)).norm(dim=-1)
    assert 0 < error.max() < 1e-2
    own = exact.backbone.forward_images(pixels)
    torch.testing.assert_close(exact.backbone.encode_images(pixels), own, rtol=0, atol=1e-4)
    assert torch.equal(half.text_features, exact.text_features)
    contexts = exact.initial_context + 0.005 * torch.randn(3, 4, 512, device="cuda").sign()
    error = (half.tuned_features(contexts) - exact.tuned_features(contexts)).norm(dim=-1)
    assert 0 < error.max() < 5e-3


def test_kernels_agree_with_plain_torch(monkeypatch):
    _, half = half_on_gpu([f"{'very ' * (i % 7)}large number {i}" for i in range(150)])
    pixels = torch.randn(24, 3, 224, 224, device="cuda")
    contexts = half.initial_context + 0.005 * torch.randn(3, 4, 512, device="cuda").sign()
    logits = 5 * torch.randn(2, 40, 64, 150, device="cuda")
    results = {}
    for on in (True, False):
        monkeypatch.setattr("cots.fast.kernels.available", lambda device, on=on: on)
        tau = cots.calibrate(logits[0] * 1.7, logits[1] * 0.1 + logits[0]).tau
        results[on] = half.backbone.encode_images(pixels), half.tuned_features(contexts), tau
    torch.testing.assert_close(results[True][0], results[False][0], rtol=0, atol=5e-3)
    torch.testing.assert_close(results[True][1], results[False][1], rtol=0, atol=1e-3)
    torch.testing.assert_close(results[True][2], results[False][2], rtol=1e-3, atol=0)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("shape", [(5, 300, 768, 3072), (1, 1031, 72, 520)])
def test_products_with_the_activation_agree(shape, quick):
    """Rounded once, so not less exact than the product alone; every value is written."""
    B, N, W, U = shape
    x, weight = (torch.randn(*size, device="cuda").bfloat16() for size in ((B, N, W), (U, W)))
    weight /= W**0.5
    with torch.no_grad():
        if not kernels.multiplies(x, weight):
            pytest.skip("needs a Hopper GPU and Triton 3.4")
    for bias in (None, torch.randn(U, device="cuda").bfloat16()):
        with torch.no_grad():
            found = kernels.linear_activate(x, weight, bias, quick)
        u = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        expected = u * torch.sigmoid(1.702 * u) if quick else torch.nn.functional.gelu(u)
        assert found.isfinite().all()
        assert (found - expected).norm() < 2.5e-3 * expected.norm()


@pytest.mark.parametrize("quick", [True, False])
def test_products_of_large_values_end_in_zero_or_in_themselves(quick):
    """The short tanh is exactly one there: what it were off by would be multiplied by the value."""
    x, weight = torch.zeros(1, 1024, 64, device="cuda").bfloat16(), torch.zeros(256, 64, device="cuda").bfloat16()
    weight[:5, 0] = torch.tensor([-50.0, -20.0, -10.0, 10.0, 50.0])
    x[..., 0] = 1
    with torch.no_grad():
        if not kernels.multiplies(x, weight):
            pytest.skip("needs a Hopper GPU and Triton 3.4")
        found = kernels.linear_activate(x, weight, None, quick)
    expected = weight[:, 0].clamp(min=0).expand_as(found)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_views_as_needed_agree_with_the_cpu_and_without_the_guest():
    """The same photos stop after the same rounds, in batches that regroup."""
    photos = sorted((Path(cots.__file__).parents[2] / "examples" / "photos").glob("*.jpg"))
    images = [Image.open(file).convert("RGB") for file in photos]
    images += [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for image in images]
    names, found = ["tabby cat", "golden retriever", "espresso", "sports car"], {}
    for device, guest in (("cpu", accelerator()), ("cuda", Plain()), ("cuda", accelerator())):
        with using(guest):
            backbone = cots.load("mini", device=device)
            classifier = cots.Classifier(backbone, names, "tpt+ecots", views="auto", batch_size=4)
            found[device, type(guest)] = classifier(images)
            (alone,) = classifier(images[:1])
            assert alone.views_used == found[device, type(guest)][0].views_used
    expected, *others = found.values()
    assert len({one.views_used for one in expected}) > 1
    for predictions in others:
        for one, same in zip(predictions, expected, strict=True):
            assert (one.label, one.views_used) == (same.label, same.views_used)
            assert one.confidence == pytest.approx(same.confidence, abs=1e-3)


def test_jacobian_agrees_with_gradients_one_by_one():
    task, _ = half_on_gpu()
    cotangent = torch.randn(5, len(CLASSES), 512, device="cuda")
    one_by_one = task.pull_back(cotangent)
    task.expect(1023)
    assert not task.tower.linear
    task.expect(1024)
    assert task.tower.linear
    assert ((task.pull_back(cotangent) - one_by_one).norm() / one_by_one.norm()) < 1e-5


def test_gradients_in_half_precision_agree():
    exact, half = half_on_gpu([f"{'very ' * (i % 7)}large number {i}" for i in range(150)])
    cotangent = 1e-6 * torch.randn(5, *exact.text_features.shape, device="cuda")
    expected = exact.pull_back(cotangent)
    for linear in (False, True):
        if linear:
            half.expect(1024)
            assert half.tower.linear
        found = half.pull_back(cotangent)
        assert 0 < (found - expected).norm() < 5e-3 * expected.norm()


def test_replayed_graphs_change_nothing():
    """The first calls run kernel by kernel, the later ones as a recorded graph."""
    _, task = half_on_gpu()
    features, others = (random_unit(2, 64, 512) for _ in range(2))
    for adapter in (name for name in OF_FEATURES if not ADAPTERS.info(name).online):
        own = cots.Task(task.backbone, CLASSES, **NEEDS[adapter]) if adapter in NEEDS else task
        adapted = [cots.adapt(adapter, x, own) for x in (features, features, features, others, features)]
        for one in (adapted[2], adapted[4]):
            assert torch.equal(one.logits, adapted[0].logits)
            assert torch.equal(one.zero_shot_logits, adapted[0].zero_shot_logits)
    adapted = cots.adapt("tpt", features, task)
    assert adapted.tuned_text is not None
    texts = {"text_features": task.text_features, "tuned_features": adapted.tuned_text()}
    for calibrator in CALIBRATORS:
        settings = {"alpha": 0.7, **(texts if calibrator == "dac" else needed(calibrator, 2, 5))}
        first, *_, last = (
            cots.calibrate(adapted.logits, adapted.zero_shot_logits, method=calibrator, **settings) for _ in range(5)
        )
        for name in ("probabilities", "prediction", "confidence", "tau", "views"):
            assert torch.equal(getattr(last, name), getattr(first, name))
        assert last.alpha == first.alpha
    for count in (64, 256):
        pixels = torch.randn(count, 3, 224, 224, device="cuda")
        first, *_, last = (task.backbone.encode_images(pixels) for _ in range(4))
        assert torch.equal(first, last)
    timed = TimedPipeline(task, ["tpt+cots"])
    (expected,), ((method, found),) = Pipeline(task, ["tpt+cots"]).run(features).values(), timed.run(features).items()
    assert timed.milliseconds[method] > 0
    assert torch.equal(found.calibrated.probabilities, expected.calibrated.probabilities)
    marked = TimedPipeline(task, ["tpt+cots", "ctpt"], waits=False)
    marked.run(features)
    assert all(0 < milliseconds < 1000 for milliseconds in marked.mean_milliseconds.values())


def test_bad_input_is_refused_whatever_was_recorded():
    """Public functions check what they are given, predictions what reaches the host."""
    _, task = half_on_gpu()
    good = random_unit(1, 64, 512)
    pipeline = Pipeline(task, ["tpt+cots"])
    for _ in range(4):
        pipeline.run(good)
        cots.adapt("tpt", good, task)
    spoilt = good.index_fill(1, torch.tensor([3], device="cuda"), torch.nan)
    for bad in (good * 2, spoilt):
        with pytest.raises(cots.InputError, match="features"):
            cots.adapt("tpt", bad, task)
    (outcome,) = pipeline.run(spoilt).values()
    with pytest.raises(cots.InputError, match="not finite"):
        predictions_of(outcome, task, pipeline.methods[0], torch.ones(1, device="cuda"), 0.5)()
    logits = 5 * torch.randn(1, 8, 4, device="cuda")
    for _ in range(4):
        cots.calibrate(logits, logits)
    with pytest.raises(cots.InputError, match="not finite"):
        cots.calibrate(logits / 0, logits)
    with pytest.warns(UserWarning, match="sum to one"):
        cots.calibrate(logits.softmax(-1), logits.softmax(-1))


def test_what_cannot_be_recorded_is_called_as_it_is():
    run = accelerator().compiled(lambda x: (x * float(x.sum()),))
    x = torch.ones(4, device="cuda")
    for _ in range(5):
        assert torch.equal(run(x)[0], 4 * x)
    assert torch.randn(4, device="cuda").isfinite().all(), "the random numbers still work"


def test_recordings_from_inference_mode_serve_outside_it():
    logits = 5 * torch.randn(2, 9, 6, device="cuda")
    with torch.inference_mode():
        for _ in range(4):
            cots.calibrate(logits * 1.5, logits)
    expected = cots.calibrate(logits.cpu() * 1.5, logits.cpu())
    found = cots.calibrate(logits * 1.5, logits)
    torch.testing.assert_close(found.probabilities.cpu(), expected.probabilities, rtol=0, atol=1e-3)


def test_a_task_in_use_earns_its_jacobian(monkeypatch):
    monkeypatch.setattr("cots.fast.text_tower.LINEARISE_FROM", 8)
    _, task = half_on_gpu()
    features = random_unit(4, 64, 512)
    before = cots.adapt("tpt", features, task).logits.softmax(-1)
    assert not task.tower.linear
    cots.adapt("tpt", features, task)
    assert task.tower.linear
    after = cots.adapt("tpt", features, task).logits.softmax(-1)
    torch.testing.assert_close(after, before, rtol=0, atol=5e-3)


def test_less_memory_means_smaller_chunks_and_the_same_results(monkeypatch):
    task, _ = half_on_gpu()
    views = torch.nn.functional.normalize(torch.randn(9, 16, 512, device="cuda"), dim=-1)
    whole = cots.adapt("tpt", views, task).logits
    again = cots.Task(task.backbone, CLASSES)
    monkeypatch.setattr("cots.fast.memory.FULL_MEMORY", 2**50)
    torch.testing.assert_close(cots.adapt("tpt", views, again).logits, whole, rtol=0, atol=2e-3)


def test_the_server_agrees_with_the_classifier():
    """Views made in several threads give the classifier's predictions."""
    pytest.importorskip("fastapi")
    from cots.serve import ServeSettings
    from cots.serve._predict import Predictor
    from cots.serve._requests import PredictFields, PredictRequest

    def photo(seed: int) -> bytes:
        noise = np.random.default_rng(seed).integers(0, 256, (30 + seed, 40, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((200, 150 + seed)).save(file, "PNG")
        return file.getvalue()

    backbone = on_gpu("vit", torch.float32).backbone
    photos = [photo(i) for i in range(8)]
    handler = Predictor(backbone, ServeSettings(views=16), 2**30)
    fields = PredictFields(classes=tuple(CLASSES), methods=(parse_method("tpt+ecots"),), thumbnails=True)
    requests = [PredictRequest(image=photo, fields=fields) for photo in photos]
    answers = [json.loads(answer.to_json()) for answer in handler(requests)]
    expected = cots.Classifier(backbone, CLASSES, "tpt+ecots", views=16)(photos)
    for answer, prediction in zip(answers, expected, strict=True):
        (result,) = answer["results"]
        assert result["label"] == prediction.label
        assert result["confidence"] == pytest.approx(prediction.confidence, abs=1e-4)
        assert len(answer["thumbnails"]) == 1 + len(prediction.views)


def test_the_demo_agrees_with_the_cpu():
    from cots import demo

    photos = [s.take(range(8)) for s in demo.read_photos()]
    here, there = (demo.run_demo(photos=photos, backbone=cots.load("mini", device=d)) for d in ("cpu", "cuda"))
    for row, same in zip(here.rows, there.rows, strict=True):
        assert same["nll"] == pytest.approx(row["nll"], abs=0.01)
        assert same["mean_confidence"] == pytest.approx(row["mean_confidence"], abs=0.5)


def test_batch_size_does_not_change_predictions():
    """Images are encoded a few at a time and adapted together; an unreadable one does not affect the others."""
    backbone = on_gpu("vit", torch.float32).backbone
    noise = np.random.default_rng(0)
    images = [noise.integers(0, 256, (40 + i, 60 - i, 3), dtype=np.uint8) for i in range(11)]
    alone = [cots.Classifier(backbone, CLASSES, views=8, batch_size=1)(image) for image in images]
    for batch_size in (2, 5, 64):
        classifier = cots.Classifier(backbone, CLASSES, views=8, batch_size=batch_size)
        together = classifier([*images[:3], b"no image", *images[3:]])
        assert together.pop(3).error
        for one, same in zip(alone, together, strict=True):
            assert one.label == same.label
            np.testing.assert_allclose(one.probabilities, same.probabilities, rtol=0, atol=1e-4)
