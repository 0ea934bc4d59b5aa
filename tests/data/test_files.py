"""Class names: ImageNet's lists, class files, and labels as lists and shards write them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import timm
from support.layouts import put, write_split, write_synsets

from cots import InputError
from cots.classes import imagenet_names, synsets
from cots.data import open_dataset


def refused(match: str, *args, **kwargs) -> None:
    with pytest.raises(InputError, match=match):
        open_dataset(*args, **kwargs)


def test_imagenet_names_belong_to_their_synsets():
    # WordNet's own words for a synset are independent of open_clip's list; they share a word nearly always, and a list
    # that is shifted by one agrees in 135 of 1000 only.
    lines = (Path(timm.__file__).parent / "data/_info/imagenet_synset_to_lemma.txt").read_text().splitlines()
    lemmas = dict(line.split("\t") for line in lines)

    def words(text: str) -> set[str]:
        return set(re.findall("[a-z]+", text.lower()))

    assert sum(bool(words(lemmas[s]) & words(name)) for s, name in imagenet_names().items()) > 950
    assert imagenet_names()["n03773504"] == imagenet_names()["n04008634"] == "missile"
    assert set(synsets("imagenet_a")) < set(synsets())
    assert set(synsets("imagenet_r")) < set(synsets())
    assert set(synsets("imagenet_a")) != set(synsets("imagenet_r"))


def test_synset_folders_get_their_names(tmp_path: Path):
    chosen = ["n03773504", "n04008634", "n01440764"]
    for synset in chosen:
        put(tmp_path / "mine" / synset / "1.jpg")
    data = open_dataset("mine", root=tmp_path)
    assert data.classes == tuple(imagenet_names()[s] for s in sorted(chosen)) == ("tench", "missile", "missile")
    assert data.names_from == "open_clip, by synset"


def test_class_names_beside_the_folders(tmp_path: Path):
    for folder in ("a", "b"):
        put(tmp_path / folder / "1.jpg")
    (tmp_path / "classes.json").write_text(json.dumps({"b": "bee", "a": "ant", "c": "unused"}))
    assert open_dataset(tmp_path).classes == ("ant", "bee")
    given = put(tmp_path / "given.txt", b"\xef\xbb\xbfapple\nberry\n")
    assert open_dataset(tmp_path, classes=given).classes == ("apple", "berry")
    refused("has 1 names for 2 class folders", tmp_path, classes=put(tmp_path / "one.txt", b"apple"))
    refused(r"no name for 1 class folders: b\.", tmp_path, classes=put(tmp_path / "o.json", b'{"a": "x"}'))


def test_a_class_file_renames_the_classes_of_a_protocol(tmp_path: Path):
    write_split(tmp_path, "eurosat")
    plain = open_dataset("eurosat", root=tmp_path)
    (tmp_path / "names.txt").write_text("\n".join(f"land_{n}" for n in range(10)))
    listed = open_dataset("eurosat", tmp_path, tmp_path / "names.txt")
    assert listed.classes == tuple(f"land {n}" for n in range(10))
    assert [s.label for s in listed.samples] == [s.label for s in plain.samples]
    assert listed.split_hash != plain.split_hash
    (tmp_path / "names.json").write_text(json.dumps({f"class_{n}": f"kind {n}" for n in reversed(range(10))}))
    assert open_dataset("eurosat", tmp_path, tmp_path / "names.json").classes == tuple(f"kind {n}" for n in range(10))


def test_coops_class_list_of_imagenet(tmp_path: Path):
    write_synsets(tmp_path, "imagenet-r")
    own = synsets("imagenet_r")
    lines = [f"{synset} the {n}" for n, synset in enumerate(synsets())]
    (tmp_path / "classnames.txt").write_text("\n".join(lines))
    data = open_dataset("R", tmp_path, tmp_path / "classnames.txt")
    assert data.classes == tuple(f"the {synsets().index(synset)}" for synset in own)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        (
            "few.txt",
            "a\nb\n",
            r"few\.txt' has 2 names for 10 classes \(class 0, class 1, class 2 and 7 more\)",
        ),
        ("many.txt", "a\n" * 11, "has 11 names for 10 classes"),
        ("gap.txt", "a\n\nb\n", "class 2 has an empty name"),
        ("none.txt", "\n", "is empty. Write one class name per line"),
        ("bad.json", "[1,", "is not valid JSON"),
        ("numbers.json", "[1, 2]", r"numbers\.json': class 1 is 1; class names must be strings"),
        ("values.json", '{"class_0": null}', "class 1 is None; class names must be strings"),
        ("none.json", "[]", "is empty. Write one class name per line"),
        ("number.json", "7", "must be a JSON list of names, or an object that maps folders"),
        ("deep.json", "[" * 100_000, "is not valid JSON"),
        ("digits.json", "[" + "9" * 5000 + "]", "is not valid JSON"),
        ("half.json", '["\\ud800"]', "is not valid Unicode"),
        ("line.txt", "a" * 2**22, r"class 1: the name 'a{60}\.\.\.' has 4194304 characters, more than 1000. Use one"),
        ("large.txt", "a" * 10_000_000, r"class file '.*large\.txt' is larger than 8 MiB. Write one class name"),
        ("lines.txt", "a\n" * 2**21, "has more than 100000 names. Split the list"),
        ("text.json", '"a"', "must be a JSON list of names"),
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


def write_csv(folder: Path, text: str, *images: str) -> Path:
    for image in images:
        put(folder / image)
    return put(folder / "list.csv", text.encode())


def test_a_list_with_numbers_needs_names(tmp_path: Path):
    file = write_csv(tmp_path, "path,label\na.jpg,2\nb.jpg,0\n", "a.jpg", "b.jpg")
    refused(r"so the classes have no names. Pass a class file with one name per line \(.*--classes\)", file)
    names = put(tmp_path / "names.txt", b"x\ny\nz")
    data = open_dataset(file, classes=names)
    assert ([s.label for s in data.samples], data.classes) == ([2, 0], ("x", "y", "z"))
    short = put(tmp_path / "short.txt", b"x\ny")
    refused(
        r"line 2: label 2 is out of range: class file '.*' has 2 names, so labels go from 0 to 1", file, None, short
    )
    digits = put(tmp_path / "digits.txt", b"0\n1\n2\n3")
    assert [s.label for s in open_dataset(file, classes=digits).samples] == [2, 0]
    backwards = put(tmp_path / "backwards.txt", b"2\n1\n0")  # a class called "2" is meant by its name
    assert [s.label for s in open_dataset(file, classes=backwards).samples] == [0, 2]


def test_a_list_and_a_class_file_of_names(tmp_path: Path):
    file = write_csv(tmp_path, "path,label\na.jpg,wn1\nb.jpg,wn2\n", "a.jpg", "b.jpg")
    keyed = put(tmp_path / "k.json", b'{"wn2": "dog", "wn1": "cat"}')
    data = open_dataset(file, classes=keyed)
    assert [data.classes[s.label] for s in data.samples] == ["cat", "dog"]
    double = put(tmp_path / "double.txt", b"wn2\nwn1\nwn1")  # the first of equal names is meant
    assert [s.label for s in open_dataset(file, classes=double).samples] == [1, 0]
    refused(r"Unknown label in CSV '.*', line 2: 'wn1'\.", file, None, put(tmp_path / "n.txt", b"wn2\nother"))


def test_lists_of_synsets_stay_apart_where_names_are_equal(tmp_path: Path):
    file = write_csv(tmp_path, "path,label\na.jpg,n04008634\nb.jpg,n03773504\n", "a.jpg", "b.jpg")
    data = open_dataset(file)
    assert (data.classes, [s.label for s in data.samples]) == (("missile", "missile"), [1, 0])
