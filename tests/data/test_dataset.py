"""Dataset: its hash, its evenly spaced samples, its way to a worker, and every kind of fault that validate finds."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from support.layouts import FOLDERS, jpeg, put, write_split, write_synsets, write_tar

from cots import InputError
from cots.adapters import ADAPTERS
from cots.classes import synsets
from cots.data import PROTOCOLS, Dataset, Sample, ValidationReport, open_dataset, validate


def dataset(pairs: list[tuple[str, int]], classes: tuple[str, ...] = ("a", "b")) -> Dataset:
    return Dataset(name="x", title="x", classes=classes, samples=[Sample(i, label, f"/{i}") for i, label in pairs])


def test_the_split_hash_holds_order_ids_labels_and_names(tmp_path: Path):
    base = dataset([("1", 0), ("2", 1)])
    others = [
        dataset([("2", 1), ("1", 0)]),
        dataset([("1", 1), ("2", 1)]),
        dataset([("1", 0), ("3", 1)]),
        dataset([("1", 0), ("2", 1)], ("b", "a")),
        dataset([("1", 0), ("2", 1)], ("a", "b", "c")),
        dataset([("1", 0)]),
    ]
    assert len({d.split_hash for d in [base, *others]}) == 7
    for place in ("here", "there"):  # a copy elsewhere is the same test
        put(tmp_path / place / "mine" / "cat" / "1.jpg")
    hashes = {open_dataset(tmp_path / place / "mine").split_hash for place in ("here", "there")}
    assert len(hashes) == 1
    assert len(base.split_hash) == 64
    assert dataset([("\udcff.jpg", 0)]).split_hash  # a file name that is not UTF-8


def test_spread_samples():
    data = dataset([(str(n), n // 10 % 2) for n in range(20)])
    assert data.spread(2) == (0, 10)
    assert data.spread(50) == tuple(range(20))
    for count in range(1, 21):
        chosen = data.spread(count)
        assert len(set(chosen)) == count
        assert list(chosen) == sorted(chosen)
    assert data.class_counts == (10, 10)
    with pytest.raises(InputError, match="count must be a whole number >= 1"):
        data.spread(0)


def test_a_dataset_can_travel_to_a_worker(tmp_path: Path):
    write_split(tmp_path, "eurosat")
    data = open_dataset("eurosat", root=tmp_path)
    there = pickle.loads(pickle.dumps(data))
    assert there.samples == data.samples
    assert there.split_hash == data.split_hash
    assert there.read(3) == data.read(3)


def test_weights_are_settings_of_the_adapters():
    for protocol in PROTOCOLS.values():
        for adapter in ADAPTERS:
            ADAPTERS.check_settings(adapter, protocol.settings(adapter))
            if protocol.column == "fine-grained" and protocol.settings(adapter).keys() == {"weight"}:
                # Outside a protocol the fine-grained column is the default.
                assert protocol.settings(adapter) == {"weight": ADAPTERS.settings(adapter)["weight"]}
    variant = PROTOCOLS["imagenet-r"]
    assert [variant.settings(a)["weight"] for a in ("ctpt", "otpt", "atpt", "soc", "penalty")] == [20, 18, 60, 14, 10]
    assert variant.settings("tpt") == {}
    betas = {p.name: p.settings("onzeta").get("beta") for p in PROTOCOLS.values()}
    assert {name for name, beta in betas.items() if beta == 0.8} == {n for n in PROTOCOLS if n.startswith("imagenet")}
    assert (set(betas.values()), ADAPTERS.settings("onzeta")["beta"]) == ({0.8, None}, 0.4)


def severities(report: ValidationReport) -> list[str]:
    return [problem.severity for problem in report.problems]


def own(tmp_path: Path, **files: bytes) -> Path:
    for name, data in files.items():
        put(tmp_path / "mine" / name.split("_")[0] / f"{name}.jpg", data)
    return tmp_path / "mine"


def test_a_complete_copy_is_as_expected(tmp_path: Path):
    write_split(tmp_path, "eurosat")
    data = open_dataset("eurosat", root=tmp_path)
    report = validate(replace(data, protocol=replace(PROTOCOLS["eurosat"], test_size=20)))
    assert report.ok
    assert report.problems == ()
    assert report.decoded == 10
    assert report.text().startswith("EuroSAT (eurosat): as expected\n")
    assert "images   20, 2 per class" in report.text()
    assert data.split_hash in report.text()


def test_a_cut_test_set_is_a_warning(tmp_path: Path):
    write_split(tmp_path, "pets")
    report = validate(open_dataset("pets", root=tmp_path))
    assert report.ok
    assert severities(report) == ["warning"]
    assert report.problems[0].text == "74 test images where the protocol has 3669."
    assert "split_zhou_OxfordPets.json" in report.problems[0].remedy
    assert "images   74 (expected 3669), 2 per class" in report.text()


def test_another_class_list_is_an_error(tmp_path: Path):
    write_split(tmp_path, "pets", classes=36)
    report = validate(open_dataset("pets", root=tmp_path))
    assert not report.ok
    assert report.problems[0].text == "36 classes where the protocol has 37."


def test_missing_class_folders(tmp_path: Path):
    write_synsets(tmp_path, "imagenet-a", classes=200)
    images = tmp_path / FOLDERS["imagenet-a"]
    for synset in synsets("imagenet_a")[:2]:
        (images / synset / "x.JPEG").unlink()
        (images / synset).rmdir()
    report = validate(open_dataset("A", root=tmp_path), per_class=0)
    assert not report.ok
    assert report.problems[0].text == "2 of 200 classes have no images: stingray, goldfinch."
    assert "0 to 1 per class" in report.text()


def test_missing_empty_and_broken_files(tmp_path: Path):
    write_split(tmp_path, "eurosat")
    images = tmp_path / "eurosat" / "2750"
    (images / "c3" / "0.jpg").unlink()
    put(images / "c4" / "0.jpg", b"")
    put(images / "c5" / "0.jpg", jpeg()[:200])
    put(images / "c6" / "0.jpg", b"text")
    report = validate(open_dataset("eurosat", root=tmp_path))
    assert not report.ok
    assert report.missing == ("c3/0.jpg",)
    assert report.broken == ("c4/0.jpg", "c5/0.jpg", "c6/0.jpg")
    # Classes 3 and 4 were tried again with their second image, so that each class has one that was looked at.
    assert report.decoded == 8
    text = report.text()
    assert "1 files are missing: c3/0.jpg." in text
    assert "3 images cannot be decoded: c4/0.jpg, c5/0.jpg, c6/0.jpg." in text
    assert "c4/0.jpg: the file is empty (0 bytes)" in text


def test_how_many_images_are_decoded(tmp_path: Path):
    folder = own(tmp_path, a_1=jpeg(), a_2=b"text", b_1=jpeg())
    data = open_dataset(folder)
    assert validate(data).ok
    assert validate(data, per_class=0).decoded == 0
    every = validate(data, per_class=None)
    assert every.broken == ("a/a_2.jpg",)
    assert every.decoded == 2
    assert "not an image in a supported format" in every.problems[0].remedy
    with pytest.raises(InputError, match="per_class must be a whole number >= 0"):
        validate(data, per_class=-1)


def test_own_data_without_fault(tmp_path: Path):
    report = validate(open_dataset(own(tmp_path, a_1=jpeg(), b_1=jpeg(), b_2=jpeg())))
    assert report.ok
    assert report.text().splitlines()[0] == "mine (mine): no problems found"
    assert "images   3, 1 to 2 per class" in report.text()


def test_an_image_listed_twice(tmp_path: Path):
    put(tmp_path / "a.jpg")
    file = put(tmp_path / "list.csv", b"path,label\na.jpg,cat\n./a.jpg,dog\n")
    report = validate(open_dataset(file))
    assert not report.ok
    assert report.problems[0].text == "1 ids occur more than once: a.jpg."


def test_labels_outside_and_classes_without_images(tmp_path: Path):
    image = str(put(tmp_path / "a.jpg"))
    data = Dataset(name="x", title="X", classes=("a", "b"), samples=[Sample("1", 2, image), Sample("2", 0, image)])
    report = validate(data)
    assert [(p.severity, p.text) for p in report.problems] == [
        ("warning", "1 of 2 classes have no images: b."),
        ("error", "1 labels are out of range: 1 (label 2)."),
    ]
    assert "X (x): 1 error, 1 warning" in report.text()


def test_names_used_twice(tmp_path: Path):
    for synset in ("n03773504", "n04008634"):
        put(tmp_path / "shots" / synset / "1.jpg")
    report = validate(open_dataset(tmp_path / "shots"))
    assert report.ok
    assert report.notes == ("1 class names are used twice: missile (as in the published list).",)
    names = put(tmp_path / "names.txt", b"gun\ngun")
    assert "make them distinct" in validate(open_dataset(tmp_path / "shots", classes=names)).text()


def test_broken_images_inside_shards(tmp_path: Path):
    members = {"1.jpg": jpeg(), "1.cls": b"cat", "2.jpg": b"text", "2.cls": b"dog"}
    report = validate(open_dataset(write_tar(tmp_path / "a.tar", members)))
    assert (report.decoded, report.broken, report.missing) == (1, ("2",), ())
    assert not report.ok


def test_progress_is_reported(tmp_path: Path):
    image = str(put(tmp_path / "a.jpg"))
    data = Dataset(name="x", title="x", classes=("a",), samples=[Sample(str(n), 0, image) for n in range(600)])
    calls: list[tuple[int, int]] = []
    validate(data, progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == (0, 600)
    assert calls[-1] == (600, 600)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert len(calls) > 2


def test_odd_but_good_images_count_as_good(tmp_path: Path):
    folder = tmp_path / "odd"
    for name, mode in (("cmyk", "CMYK"), ("grey", "L"), ("palette", "P"), ("alpha", "RGBA")):
        (folder / name).mkdir(parents=True)
        Image.new(mode, (5, 4)).save(folder / name / ("x.jpg" if mode == "CMYK" else "x.png"))
    report = validate(open_dataset(folder))
    assert report.ok
    assert report.decoded == 4
