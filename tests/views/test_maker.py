"""make_views, ViewMaker and in_threads: the same views whoever makes them, in whatever order."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from support.images import grain, photo

from cots._errors import InputError
from cots.photos import in_threads
from cots.views import ViewMaker, ViewSettings, choose_renderer, make_views


@pytest.mark.parametrize("augmix", [False, True])
def test_prefix_and_repeatability_of_the_pixels(augmix: bool):
    image = photo()
    many = make_views(image, ViewSettings(n=16, size=64, augmix=augmix), seed=9)
    few = make_views(image, ViewSettings(n=5, size=64, augmix=augmix), seed=9)
    assert torch.equal(few, many[:5])
    other = make_views(image, ViewSettings(n=16, size=64, augmix=augmix), seed=10)
    assert torch.equal(many[0], other[0])
    assert all(not torch.equal(many[i], other[i]) for i in range(1, 16))
    assert all(not torch.equal(many[i], many[j]) for i in range(16) for j in range(i))


def test_no_global_generator_is_read_or_advanced():
    def states():
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002
        return random.getstate(), (kind, bytes(np.asarray(keys)), *rest), torch.get_rng_state().tolist()

    image, settings_ = photo(60, 80), ViewSettings(n=8, size=32, augmix=True)
    before = states()
    first = make_views(image, settings_, seed=1)
    assert states() == before
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert torch.equal(make_views(image, settings_, seed=1), first)


def test_make_views_takes_what_read_image_takes(tmp_path):
    photo(40, 50).save(tmp_path / "x.png")
    settings_ = ViewSettings(n=3, size=16)
    expected = make_views(photo(40, 50), settings_, seed=0)
    for source in (tmp_path / "x.png", (tmp_path / "x.png").read_bytes(), np.asarray(photo(40, 50))):
        assert torch.equal(make_views(source, settings_, seed=0), expected)
    with pytest.raises(InputError, match=r"nothing\.png': cannot be opened"):
        make_views(tmp_path / "nothing.png", settings_, seed=0)


def test_a_view_maker_makes_the_views_of_a_batch():
    settings = ViewSettings(n=4, size=32, augmix=True)
    images = [grain(40, 50), grain(60, 30)]
    maker = pickle.loads(pickle.dumps(ViewMaker(settings, torch.device("cpu"))))
    assert maker.renderer == "pil"
    made = maker.render([pickle.loads(pickle.dumps(maker.prepare(image, seed))) for seed, image in enumerate(images)])
    for seed, (image, got) in enumerate(zip(images, made, strict=True)):
        assert torch.equal(got, make_views(image, settings, seed))


def test_which_renderer(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [choose_renderer(name, cpu) for name in ("auto", "pil")] == ["pil", "pil"]
    with pytest.raises(InputError, match=r"Unknown renderer 'gpuu'\. Did you mean 'gpu'"):
        choose_renderer("gpuu", cpu)
    with pytest.raises(InputError, match=r"renderer='gpu' needs an NVIDIA GPU.*not 'cpu'\. Use 'pil'"):
        choose_renderer("gpu", cpu)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for runs_kernels, chosen in ((True, "gpu"), (False, "pil")):
        monkeypatch.setattr("cots.fast.available", lambda device, runs=runs_kernels: runs)
        assert [choose_renderer(name, gpu) for name in ("auto", "pil")] == [chosen, "pil"]


def test_the_renderer_of_a_gpu_on_another_machine_is_chosen_without_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert choose_renderer("auto", torch.device("cuda")) == "gpu"


def test_threads_keep_the_order_and_errors_keep_their_place():
    def work(number: int) -> int:
        if number == 30:
            raise ValueError("thirty")
        return number * number

    results = in_threads(work, range(40), threads=4)
    assert [next(results) for _ in range(30)] == [n * n for n in range(30)]
    with pytest.raises(ValueError, match="thirty"):
        next(results)


@pytest.mark.parametrize(("ahead", "most"), [(0, 4), (32, 32)])
def test_threads_run_ahead_of_their_consumer_but_not_far(ahead, most):
    taken = []
    results = in_threads(lambda number: number, (taken.append(n) or n for n in range(1000)), threads=2, ahead=ahead)
    next(results)
    results.close()
    assert len(taken) == 1 + most


@pytest.mark.parametrize("augmix", [False, True])
def test_views_do_not_depend_on_the_threads_that_draw_them(augmix):
    image, settings_ = photo(40, 50), ViewSettings(n=9, size=32, augmix=augmix)
    one, three = (ViewMaker(settings_, torch.device("cpu"), threads=threads) for threads in (1, 3))
    assert torch.equal(one.prepare(image, 4), three.prepare(image, 4))
    assert torch.equal(one.render([one.prepare(image, 4)])[0], make_views(image, settings_, 4))
