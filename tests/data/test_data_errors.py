"""Data that is not where or what it should be: each error names the thing, what was found and the remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.layouts import FOLDERS, put, write_aircraft, write_split, write_synsets

from cots import InputError
from cots.data import available, open_dataset


def refused(match: str, *args, **kwargs) -> None:
    with pytest.raises(InputError, match=match):
        open_dataset(*args, **kwargs)


# ------------------------------------------------------------------------------------------------- where things lie


def test_missing_split_file(tmp_path: Path):
    write_split(tmp_path, "pets").unlink()
    (tmp_path / "oxford_pets" / "annotations").mkdir()
    refused(
        r"OxfordPets: the split file split_zhou_OxfordPets\.json is missing; '.*oxford_pets' holds annotations/, "
        r"images/\. Put split_zhou_OxfordPets\.json there \(https://",
        "pets",
        root=tmp_path,
    )


def test_missing_images(tmp_path: Path):
    (tmp_path / "dtd" / "pictures").mkdir(parents=True)
    refused(r"DTD: its images are expected in '.*dtd/images', but '.*dtd' holds pictures/\.", "dtd", root=tmp_path)
    split = write_split(tmp_path, "dtd")
    for image in (tmp_path / "dtd" / "images").rglob("*.jpg"):
        image.unlink()
    assert split.exists()
    refused(r"DTD: none of \d images tried was found; the first is '.*c0/0\.jpg'.*Unpack", "dtd", root=tmp_path)


def test_wrong_data_folder(tmp_path: Path):
    write_split(tmp_path, "pets")
    refused(
        r"DTD is expected in '.*/dtd', which does not exist; the data folder '.*' holds oxford_pets/\. The data "
        r"folder is the one that holds dtd/",
        "dtd",
        root=tmp_path,
    )
    refused(
        rf"is the dataset's own folder; give the folder above it as the data folder: '{tmp_path}'",
        "pets",
        root=tmp_path / "oxford_pets",
    )
    (tmp_path / "Caltech101").mkdir()
    refused(r"Rename Caltech101/ to caltech-101/, or link to it\.", "caltech", root=tmp_path)
    refused(r"data folder '.*/nowhere' does not exist\. '.*' holds Caltech101/, ox", "pets", root=tmp_path / "nowhere")
    refused("is a file; give the folder that holds it", "pets", root=put(tmp_path / "a.txt"))
    with pytest.raises(InputError, match="does not exist"):
        available(tmp_path / "nowhere")


def test_a_protocol_needs_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path / "pets" / "cat" / "1.jpg")
    monkeypatch.chdir(tmp_path)
    refused(r"'pets' is the protocol OxfordPets: give root, the folder that holds oxford_pets/\..*'\./pets'", "pets")
    assert open_dataset("./pets").protocol is None


def test_unknown_dataset(tmp_path: Path):
    refused(r"Unknown dataset 'flwers'\. Did you mean 'flowers'\?", "flwers", root=tmp_path)
    refused(r"dataset '.*/photos/x' does not exist: '.*' holds nothing\. Give a protocol", str(tmp_path / "photos/x"))
    refused("the dataset's name is empty", "")
    refused("is a file of a kind that cannot be read: give a folder with", put(tmp_path / "a.parquet"))


# ------------------------------------------------------------------------------------------------------ split files


def rewrite(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"test": None}, "has no list 'test' of"),
        ({"test": []}, "has no list 'test' of"),
        ({"test": [["a.jpg", 10, "x"]]}, r"'test', entry 0 \(a\.jpg\): label 10 is out of range; 10 classes .* 0 to 9"),
        ({"test": [["a.jpg", -1, "x"]]}, "label -1 is out of range"),
        ({"test": [["a.jpg", "1", "x"]]}, r"'test', entry 0 is \[\"a\.jpg\", \"1\", \"x\"\], not \[path, label"),
        ({"test": [["a.jpg", 1]]}, r"entry 0 is .*, not \[path, label, class name\]"),
        ({"test": [["a.jpg", 1, " "]]}, "entry 0 is"),
        ({"test": [["a.jpg", 1, "class_2"]]}, "label 1 is 'class 2' here but 'class 1' before"),
        ({"train": {}, "test": [["a.jpg", 2, "x"]]}, "labels up to 2 but none for 0, 1: labels must be 0, 1, 2"),
        ({"train": {"a": 1}}, "'train' is not a list of"),
    ],
)
def test_bad_split_files(changes: dict, match: str, tmp_path: Path):
    file = write_split(tmp_path, "eurosat")
    rewrite(file, **changes)
    refused(match, "eurosat", root=tmp_path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe{}", b"[]", b"null"])
def test_unreadable_split_files(content: bytes, tmp_path: Path):
    write_split(tmp_path, "eurosat").write_bytes(content)
    refused(r"split file '.*split_zhou_EuroSAT\.json' (cannot be read|has no list)", "eurosat", root=tmp_path)


def test_names_come_from_every_part_of_the_split(tmp_path: Path):
    file = write_split(tmp_path, "eurosat")
    rewrite(file, test=[["c0/0.jpg", 0, "class_0"]])
    data = open_dataset("eurosat", root=tmp_path)
    assert (len(data), len(data.classes)) == (1, 10)


def test_bad_aircraft_lists(tmp_path: Path):
    write_aircraft(tmp_path)
    folder = tmp_path / "fgvc_aircraft"
    test = folder / "images_variant_test.txt"
    test.write_text(test.read_text() + "0000001 Zeppelin\n")
    refused(r"images_variant_test\.txt', line 101: 'Zeppelin' is not one of the 100 names", "aircraft", root=tmp_path)
    test.write_text("\n")
    refused("lists no image", "aircraft", root=tmp_path)
    (folder / "variants.txt").unlink()
    refused(
        r"Aircraft: variants\.txt is missing; '.*' holds images/, images_variant_test\.txt", "A I R craft", tmp_path
    )


# ------------------------------------------------------------------------------------------------- synset folders


def test_bad_synset_folders(tmp_path: Path):
    write_synsets(tmp_path, "imagenet-a")
    images = tmp_path / FOLDERS["imagenet-a"]
    (images / "n01440764").mkdir()  # tench: in ImageNet, but not in ImageNet-A
    refused(
        r"ImageNet-A: the folders in '.*imagenet-a' must be its classes \(200 synsets.*holds n01440764", "A", tmp_path
    )
    flat = tmp_path / FOLDERS["imagenet"]
    put(flat / "ILSVRC2012_val_00000001.JPEG")
    refused("ILSVRC2012_val_00000001.JPEG. Sort the validation images into one folder a synset", "I", tmp_path)
    (tmp_path / FOLDERS["imagenet-v2"] / "1000").mkdir(parents=True)
    refused(r"must be its classes \(numbers 0 to 999\), but it holds 1000", "V", tmp_path)
    (tmp_path / FOLDERS["imagenet-r"] / "n01443537").mkdir(parents=True)
    refused("the class folders in '.*' hold no image", "R", tmp_path)


# ------------------------------------------------------------------------------------------------------ class files


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        (
            "few.txt",
            "a\nb\n",
            r"few\.txt' has too few names: 2 for 10 classes \(class 0, class 1, class 2 and 7 more\)",
        ),
        ("many.txt", "a\n" * 11, "has too many names: 11 for 10 classes"),
        ("gap.txt", "a\n\nb\n", "class 1 has an empty name; an empty line would shift"),
        ("none.txt", "\n", "is empty: give one class name a line"),
        ("bad.json", "[1,", "is not valid JSON"),
        ("numbers.json", "[1, 2]", "must hold a JSON list of names, or an object folder -> name"),
        ("text.json", '"a"', "must hold a JSON list of names"),
        ("part.json", '{"class_0": "a"}', r"has no name for 9 classes: class 1, .* and 3 more\. Add them"),
        ("latin.txt", b"caf\xe9", "must be UTF-8 text"),
    ],
)
def test_bad_class_files(name: str, content: str | bytes, match: str, tmp_path: Path):
    write_split(tmp_path, "eurosat")
    file = put(tmp_path / name, content.encode() if isinstance(content, str) else content)
    refused(match, "eurosat", tmp_path, file)


def test_missing_class_file(tmp_path: Path):
    write_split(tmp_path, "eurosat")
    refused(r"class file '.*no\.txt' does not exist", "eurosat", tmp_path, tmp_path / "no.txt")
