"""Datasets of Hugging Face: what `datasets` writes, in folders and from a stand-in for the hub, and damaged files."""

from __future__ import annotations

import json
import pickle
import socket

import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from support.layouts import jpeg
from support.runs import config, figures
from typer.testing import CliRunner

from cots import InputError, bench, read_image
from cots.cli import app
from cots.data import _cells, _fetch, open_dataset, validate

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = ["tabby cat", "dog", "sports_car"]
IMAGE = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
FEATURES = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}


@pytest.fixture(autouse=True)
def nothing_kept():
    yield
    _cells.batches.cache_clear()
    _cells._images.cache_clear()


def table(labels, images=None, features=FEATURES, label="label", image="image"):
    """A table as `datasets` makes it: the types of its columns are JSON in the metadata of the schema."""
    images = [jpeg(10 * i) for i in range(len(labels))] if images is None else images
    if image == "image":
        images = arrow.array([{"bytes": data, "path": None} for data in images], IMAGE)
    made = arrow.table({image: images, label: labels})
    if features is None:
        return made
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def write(file, *args, rows=2, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table(*args, **options), file, row_group_size=rows)
    return file


@pytest.fixture
def folder(tmp_path):
    """Two splits, one of them in two files."""
    write(tmp_path / "cats" / "data" / "train-00000-of-00001.parquet", [0, 1])
    write(tmp_path / "cats" / "data" / "test-00000-of-00002.parquet", [2, 0, 1])
    write(tmp_path / "cats" / "data" / "test-00001-of-00002.parquet", [1, 1], [jpeg(200), b"no image"])
    return tmp_path / "cats"


def refused(match, *args, **options):
    with pytest.raises(InputError, match=match):
        open_dataset(*args, **options)


def test_images_labels_and_names_of_the_test_split(folder):
    data = open_dataset(f"hf:{folder}")
    assert data.classes == ("tabby cat", "dog", "sports car")
    assert [(s.id, s.label) for s in data.samples] == [(f"test/{i}", label) for i, label in enumerate([2, 0, 1, 1, 1])]
    assert [data.read(i) for i in (4, 0, 2, 3, 1)] == [b"no image", jpeg(0), jpeg(20), jpeg(200), jpeg(10)]
    assert (data.name, data.names_from) == ("cats-test", "the column 'label'")
    assert pickle.loads(pickle.dumps(data)) == data
    other = open_dataset("hf:cats:train", root=folder.parent)
    assert [s.id for s in other.samples] == ["train/0", "train/1"]


def test_a_run_keeps_going_after_a_broken_image_and_equals_one_of_files(folder, tmp_path):
    data = open_dataset(f"hf:{folder}")
    run = bench.run(config(data, tmp_path / "x", methods=["tpt+cots", "tda"], views=3))
    records = run.records("cats-test", "tpt+cots", 0)
    assert (len(records), list(records.errors)) == (4, ["test/4"])
    assert "no image" not in records.errors["test/4"]
    again = bench.run(
        config(open_dataset(f"hf:{folder}"), tmp_path / "y", methods=["tpt+cots", "tda"], views=3, workers=2)
    )
    assert figures(again) == figures(run)
    report = validate(data, per_class=None)
    assert (report.decoded, report.broken, report.ok) == (4, ("test/4",), False)


def test_the_command_line_names_it_as_any_dataset(folder):
    result = CliRunner().invoke(app, ["validate", f"hf:{folder}:train"])
    assert result.exit_code == 0, result.output
    assert "1 of 3 classes have no images: sports car" in result.output
    assert "decoded  2 without an error" in result.output
    assert "names from the column 'label'" in result.output


def test_splits_and_configs_as_the_hub_names_them(tmp_path):
    for name in ("plain/test-00000-of-00001-0123456789abcdef", "small/validation/0000", "small/test/0000", "x/part_0"):
        write(tmp_path / f"{name}.parquet", [0, 1, 2])
    for spec, name in (
        ("plain/test", "plain-test"), ("small/test", "small-test"), ("validation", "small-validation"), ("x", "x"),
    ):  # fmt: skip
        data = open_dataset(f"hf:{tmp_path}:{spec}")
        assert data.name == f"{tmp_path.name}-{name}"
        assert data.samples[2].id == f"{name.rpartition('-')[2]}/2"
    refused(r"has several splits \(plain/test, small/test, small/validation, x\)\. Choose one", f"hf:{tmp_path}")
    refused(r"Unknown split .*'valdation'\. Did you mean 'small/validation'", f"hf:{tmp_path}:valdation")


def test_save_to_disk_without_its_caches(tmp_path):
    for split, labels in (("train", [[0], [1, 2, 1]]), ("test", [[0, 1]])):
        (tmp_path / split).mkdir()
        listed = []
        for i, part in enumerate(labels):
            listed.append({"filename": f"data-{i:05d}-of-{len(labels):05d}.arrow"})
            made = table(part, features=FEATURES)
            with arrow.ipc.new_stream(tmp_path / split / listed[-1]["filename"], made.schema) as stream:
                for batch in made.to_batches(max_chunksize=2):
                    stream.write_batch(batch)
        (tmp_path / split / "cache-0123.arrow").write_bytes(b"of another map")
        (tmp_path / split / "state.json").write_text(json.dumps({"_data_files": listed}))
    data = open_dataset(f"hf:{tmp_path}:train")
    assert [(s.id, s.label) for s in data.samples] == [("train/0", 0), ("train/1", 1), ("train/2", 2), ("train/3", 1)]
    assert [data.read(i) for i in (3, 0, 1)] == [jpeg(20), jpeg(0), jpeg(0)]
    alone = open_dataset(f"hf:{tmp_path / 'test'}")
    assert ([s.id for s in alone.samples], alone.name) == (["row/0", "row/1"], f"{tmp_path.name}-test")


def test_columns_without_types_and_classes_of_the_caller(tmp_path):
    plain = write(tmp_path / "a" / "all.parquet", ["dog", "a_cat", "dog"], features=None)
    assert open_dataset(f"hf:{plain}").classes == ("a cat", "dog")
    raw = write(tmp_path / "b" / "all.parquet", [1, 0], [jpeg(1), jpeg(2)], features=None, image="jpg", label="target")
    assert [open_dataset(f"hf:{raw}", classes=["x", "y"]).samples[i].label for i in (0, 1)] == [1, 0]
    refused("the labels are numbers, so the classes have no names", f"hf:{raw}")
    named = write(tmp_path / "c" / "all.parquet", [0, 2])
    renamed = open_dataset(f"hf:{named}", classes=["kitten", "puppy", "racer"])
    assert (renamed.classes, renamed.names_from) == (("kitten", "puppy", "racer"), "the caller")
    refused("2 names for 3 classes of the dataset", f"hf:{named}", classes=["x", "y"])


def test_a_label_column_can_be_chosen(tmp_path):
    fine = {
        "image": {"_type": "Image"},
        "coarse": FEATURES["label"],
        "fine": {"names": ["p", "q"], "_type": "ClassLabel"},
    }
    made = table([0, 2], features=None).rename_columns(["image", "coarse"]).append_column("fine", [[1, 1]])
    metadata = {"huggingface": json.dumps({"info": {"features": fine}})}
    parquet.write_table(made.replace_schema_metadata(metadata), tmp_path / "test.parquet")
    refused("several columns of labels: coarse, fine. Choose one", f"hf:{tmp_path}")
    data = open_dataset(f"hf:{tmp_path}:test:fine")
    assert (data.classes, [s.label for s in data.samples]) == (("p", "q"), [1, 1])
    refused("Unknown column .* 'finer'. Did you mean 'fine'", f"hf:{tmp_path}:test:finer")


@pytest.mark.parametrize(
    ("labels", "options", "match"),
    [
        ([0, -1], {}, r"samples without a label \(-1\)"),
        ([0, 3], {}, "label 3, but 3 classes"),
        ([], {}, "has no rows"),
        (["x", None], {"features": None}, "the label is empty"),
        ([1, 2], {"features": None, "label": "note"}, "no column of labels"),
        ([1, 2], {"features": None, "image": "photo", "images": ["a.jpg", "b.jpg"]}, "no column of images"),
        ([1, 2], {"features": {**FEATURES, "label": {"names": ["x", ""], "_type": "ClassLabel"}}}, "empty name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(labels, options, match, tmp_path):
    images = options.pop("images", None)
    refused(match, f"hf:{write(tmp_path / 'x' / 'test.parquet', labels, images, **options)}")


def test_places_and_packages_that_do_not_exist(tmp_path, folder, monkeypatch):
    refused("must be hf:FOLDER or hf:ORG/NAME", "hf:")
    refused("must be hf:FOLDER or hf:ORG/NAME", f"hf:{folder}:a:b:c")
    (tmp_path / "empty").mkdir()
    refused("no Parquet files, nor Arrow files", f"hf:{tmp_path / 'empty'}")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(Exception, match=r"need pyarrow: .* --extra parquet"):
        open_dataset(f"hf:{folder}")


def test_damage_is_an_error_of_the_sample_or_of_the_file(folder):
    """Any bytes: an InputError, and what can still be read is read."""
    data = open_dataset(f"hf:{folder}")
    file = folder / "data" / "test-00000-of-00002.parquet"
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    failures = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 8):
            damaged[place] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        _cells._images.cache_clear()
        for read in (lambda: open_dataset(f"hf:{folder}"), lambda: [read_image(data.read(i)) for i in range(3)]):
            try:
                read()
            except InputError:
                failures += 1
    assert failures > 20
    file.unlink()
    _cells._images.cache_clear()
    with pytest.raises(InputError, match=r"row 1 of group 0 .* cannot be read"):
        data.read(1)
    assert data.read(3) == jpeg(200)


def test_images_that_are_only_named_are_refused(tmp_path):
    (tmp_path / "1.jpg").write_bytes(jpeg())
    images = arrow.array([{"bytes": None, "path": str(tmp_path / "1.jpg")}], IMAGE)
    parquet.write_table(arrow.table({"image": images, "label": ["x"]}), tmp_path / "test.parquet")
    with pytest.raises(InputError, match="no bytes of an image"):
        open_dataset(f"hf:{tmp_path}").read(0)


def test_a_row_group_that_would_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("cots.data._tables._GROUP_BYTES", 3000)
    write(tmp_path / "test.parquet", [0] * 8, rows=2)
    assert len(open_dataset(f"hf:{tmp_path}")) == 8
    write(
        tmp_path / "test.parquet",
        [0] * 8,
        [bytes(1000)] * 8,
        rows=8,
    )
    refused("row group with .* MiB of images. Write it again", f"hf:{tmp_path}")


class Hub:
    """A stand-in for the hub with the files of a folder, and for the part of its client that is used."""

    def __init__(self, folder, revision=None):
        self.folder, self.revision, self.fetched = folder, revision, []

    def list_repo_files(self, name, *, repo_type, revision):
        assert repo_type == "dataset"
        if name != "org/cats":
            raise RepositoryNotFoundError(
                "401 Client Error", response=type("Response", (), {"headers": {}, "request": None})()
            )
        files = [file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*.parquet")]
        return ["README.md", "script.py", *(files if revision == self.revision else [])]

    def download(self, name, file, *, repo_type, revision):
        assert (name, repo_type, revision) == ("org/cats", "dataset", self.revision)
        self.fetched.append(file)
        return str(self.folder / file)


@pytest.fixture(params=[None, "refs/convert/parquet"])
def hub(request, folder, monkeypatch):
    hub = Hub(folder, request.param)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place: ["found"])
    monkeypatch.setattr(_fetch, "HfApi", lambda: hub)
    monkeypatch.setattr(_fetch, "hf_hub_download", hub.download)
    return hub


def test_only_the_chosen_files_are_downloaded(hub, folder):
    data = open_dataset("hf:org/cats:test")
    assert hub.fetched == [f"data/test-0000{i}-of-00002.parquet" for i in (0, 1)]
    local = open_dataset(f"hf:{folder}:test")
    assert data.split_hash == local.split_hash
    assert (data.name, data.where) == ("cats-test", "hf:org/cats")
    refused(r"org/dogs could not be downloaded \(401 Client Error.*\)\. Check its name", "hf:org/dogs:test")


def test_offline_what_was_downloaded_before(folder, monkeypatch):
    def cached(name, *, repo_type, local_files_only):
        assert (repo_type, local_files_only) == ("dataset", True)
        if name != "org/cats":
            raise LocalEntryNotFoundError("no")
        return str(folder)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(_fetch, "snapshot_download", cached)
    assert len(open_dataset("hf:org/cats")) == 5
    refused(r"org/dogs is no folder here, .* run hf download org/dogs --repo-type dataset", "hf:org/dogs")


def test_files_of_the_package_itself(tmp_path):
    """The oracle: `datasets` writes and reads the same rows (CI installs it)."""
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    rows = {"image": [{"bytes": jpeg(i), "path": f"{i}.jpg"} for i in range(7)], "label": [i % 3 for i in range(7)]}
    made = datasets.Dataset.from_dict(rows, features=kinds)
    made.to_parquet(tmp_path / "flat" / "test-00000-of-00001.parquet", batch_size=3)
    datasets.DatasetDict({"test": made, "train": made}).save_to_disk(
        tmp_path / "disk", num_shards={"test": 2, "train": 1}
    )
    for folder in ("flat", "disk"):
        ours = open_dataset(f"hf:{tmp_path / folder}")
        assert ours.classes == ("tabby cat", "dog", "sports car")
        assert [s.label for s in ours.samples] == made["label"][:]
        for index, theirs in enumerate(made.select_columns("image")):
            assert np.array_equal(np.asarray(read_image(ours.read(index))), np.asarray(theirs["image"].convert("RGB")))
