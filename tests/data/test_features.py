"""View features of one's own in place of images: the same figures as from the images, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import tiny
from support.runs import COLUMNS, config, figures, photos

import cots
from cots import bench
from cots.data import open_dataset, validate

METHODS = ("zeroshot", "tpt+cots", "tps", "tda+ecots")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on photos, and its view features with everything that a file may have."""
    root = tmp_path_factory.mktemp("features")
    data = photos(root / "photos", 5)
    run = bench.run(config(data, root / "run", methods=METHODS))
    task = cots.Task(tiny("vit"), data.classes)
    arrays = {
        "features": load_file(root / "run/features/photos/seed0/00000.safetensors")["features"],
        "labels": torch.tensor([sample.label for sample in data.samples]),
        "text_features": task.text_features,
        "logit_scale": torch.tensor(task.logit_scale),
    }
    texts = {"ids": [sample.id for sample in data.samples], "classes": list(data.classes)}
    return run, arrays, texts


def write(file, arrays, texts):
    if file.suffix == ".npz":
        numeric = {name: value.numpy() for name, value in arrays.items()}
        np.savez(file, **numeric, **{name: np.array(value) for name, value in texts.items()})
    else:
        save_file(arrays, file, {name: json.dumps(value) for name, value in texts.items()})
    return file


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_features_give_the_records_of_their_images(made, ending, tmp_path):
    run, arrays, texts = made
    file = write(tmp_path / f"photos{ending}", without(arrays, "text_features", "logit_scale"), texts)
    options = {"methods": METHODS, "views": None, "augmix": None}
    again = bench.run(config(file, tmp_path / "run", **options))
    assert figures(again) == figures(run)
    assert not (tmp_path / "run/features").exists()
    assert again.manifest.datasets[0].views == 6
    changed = arrays | {"features": arrays["features"].flip(1)}
    write(file, without(changed, "text_features", "logit_scale"), texts)
    with pytest.raises(cots.InputError, match=r"other settings: features of photos: [0-9a-f]{12}\.\.\., now"):
        bench.run(config(file, tmp_path / "run", **options))


def test_text_features_stand_in_for_a_model(made, tmp_path):
    run, arrays, texts = made
    file = write(tmp_path / "photos.npz", arrays, texts)
    options = {"methods": without(dict.fromkeys(METHODS), "tpt+cots"), "views": None, "augmix": None}
    options |= {"model": "mini", "device": "cpu"}
    again = bench.run(config(file, tmp_path / "run", **options))
    assert again.manifest.model.name == "photos"
    for method in ("zeroshot", "tda+ecots"):  # the step of tps turns rounding into other signs
        found, expected = (r.records("photos", method, 0) for r in (again, run))
        assert found.ids == expected.ids
        for name in COLUMNS:
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-6)
    with pytest.raises(cots.InputError, match="photos has text features only, so no prompt can be tuned"):
        bench.plan(config(file, tmp_path / "x", **{**options, "methods": ["tpt"]}))
    for change, message in (
        ({"model": tiny("vit"), "device": None}, "in place of a model; omit model"),
        ({"template": "a {}"}, "template='a {}' has no effect"),
        ({"views": 4}, "views=4 has no effect with the view features of photos"),
        ({"seeds": (0, 1)}, "no effect with the view features"),
        ({"methods": ["ttl"]}, "ttl needs images"),
        ({"datasets": [file, file]}, "run it separately"),
    ):
        with pytest.raises(cots.InputError, match=message):
            bench.plan(config(file, tmp_path / "x", **{**options, **change}))


def test_names_may_come_from_a_file_and_ids_are_numbers_by_default(made, tmp_path):
    _, arrays, texts = made
    (tmp_path / "names.txt").write_text("\n".join(texts["classes"]))
    file = write(tmp_path / "photos.npz", arrays, {})
    with pytest.raises(cots.InputError, match=r"has no class names\. Add classes to it, or pass --classes"):
        open_dataset(file)
    found = open_dataset(file, classes=tmp_path / "names.txt")
    assert found.classes == tuple(texts["classes"])
    assert [sample.id for sample in found.samples[:3]] == ["0", "1", "2"]
    assert validate(found).ok
    with pytest.raises(cots.InputError, match="has view features instead of images"):
        found.read(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": None}, "has no array 'features'"),
        ({"labels": None}, "has no array 'labels'"),
        ({"features": torch.zeros(3, 4)}, r"must be floats \(N,V,D\).*not torch.float32 \(3, 4\)"),
        ({"features": torch.ones(15, 6, 12)}, "features must be L2-normalised, but row 0 has a vector of length 3.464"),
        ({"features": torch.full((15, 6, 12), torch.nan)}, r"features\[0:15\] has 1080 value\(s\) that are not finite"),
        ({"labels": torch.full((15,), 3)}, r"labels must be whole numbers in 0..2"),
        ({"labels": torch.zeros(4)}, "4 labels for 15 samples"),
        ({"logit_scale": None}, "needs both text_features and logit_scale"),
        ({"text_features": torch.ones(3, 5)}, r"text_features in .* must be \(3, 12\)"),
        ({"logit_scale": torch.tensor(-1.0)}, "logit_scale in .* must be one positive number"),
        ({"labls": torch.zeros(15)}, "Unknown array in .* 'labls'. Did you mean 'labels'"),
        ({"ids": ["a"] * 15}, "has the id 'a' twice"),
        ({"ids": ["a"]}, "1 ids for 15 samples"),
    ],
)
def test_what_cannot_be_used_is_refused(made, change, message, tmp_path):
    _, arrays, texts = made
    texts = texts | {name: value for name, value in change.items() if name == "ids"}
    arrays = {k: v for k, v in (arrays | change).items() if v is not None and k != "ids"}
    with pytest.raises(cots.InputError, match=message):
        open_dataset(write(tmp_path / "photos.npz", arrays, texts))
