"""The fifteen protocols: their facts, their names, and each opened from a generated copy of its layout."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torchvision
from support.layouts import FOLDERS, SPLITS, put, write_aircraft, write_split, write_synsets

from cots import InputError, read_image
from cots.classes import imagenet_names, synsets
from cots.data import PROTOCOLS, Protocol, available, find_protocol, open_dataset
from cots.prompts import DEFAULT_TEMPLATE

# name, classes, test images, short id of published code, TDA's (alpha, beta): copied from the literature's lists.
FACTS = """
imagenet 1000 50000 I 2 5
dtd 47 1692 DTD 2 3
flowers 102 2463 Flower102 1 5
food 101 30300 Food101 1 1
sun 397 19850 SUN397 2 3
aircraft 100 3333 Aircraft 2 2
pets 37 3669 Pets 2 7
caltech 100 2465 Caltech101 5 5
ucf 101 3783 UCF101 3 8
eurosat 10 8100 eurosat 4 8
cars 196 8041 Cars 1 7
imagenet-a 200 7500 A 2 5
imagenet-v2 1000 10000 V 1 8
imagenet-r 200 30000 R 1 8
imagenet-sketch 1000 50889 K 2.363 7.45
"""


def refused(match: str, *args, **kwargs) -> None:
    with pytest.raises(InputError, match=match):
        open_dataset(*args, **kwargs)


def test_fifteen_protocols_with_the_published_facts():
    rows = [line.split() for line in FACTS.strip().splitlines()]
    assert list(PROTOCOLS) == [row[0] for row in rows]
    for name, classes, size, short, alpha, beta in rows:
        protocol = PROTOCOLS[name]
        assert (protocol.name, protocol.classes, protocol.test_size) == (name, int(classes), int(size))
        assert protocol.aliases[0] == short
        assert find_protocol(short) is protocol
        assert protocol.settings("tda") == {"positive": (float(alpha), float(beta))}
        assert protocol.settings("tda(soc)") == protocol.settings("tda") | protocol.settings("soc")
        assert protocol.views == 64
        assert protocol.template == DEFAULT_TEMPLATE


def test_the_authors_layout(tmp_path):
    """few-shot-datasets/NAME, with sorted_split_zhou_*.json at the top of the data folder."""
    split = write_split(tmp_path, "flowers", classes=3)
    expected = open_dataset("flowers", tmp_path)
    (tmp_path / "few-shot-datasets").mkdir()
    split.rename(tmp_path / f"sorted_{split.name}")
    (tmp_path / "oxford_flowers").rename(tmp_path / "few-shot-datasets" / "Flower102")
    found = open_dataset("flowers", tmp_path)
    assert (found.split_hash, found.classes) == (expected.split_hash, expected.classes)
    assert all(Path(sample.source).is_file() for sample in found.samples)
    assert [protocol.name for protocol in available(tmp_path)] == ["flowers"]
    (tmp_path / f"sorted_{split.name}").unlink()
    refused(r"split_zhou_OxfordFlowers\.json is missing", "flowers", root=tmp_path)


def test_published_names_of_food(tmp_path):
    write_split(tmp_path, "food", classes=101, per_class=1)
    write_split(tmp_path, "pets", classes=3)
    food, pets = (open_dataset(name, tmp_path) for name in ("food", "pets"))
    published = food.with_published_names()
    assert published.classes == (*food.classes[:16], "class 17", "class 16", *food.classes[18:])
    assert published.samples == food.samples
    assert published.split_hash != food.split_hash
    assert pets.with_published_names() is pets
    write_split(tmp_path / "short", "food", classes=3)
    with pytest.raises(InputError, match=r"swap two of the 101 classes of Food101, but .* has 3\. Omit --publ"):
        open_dataset("food", tmp_path / "short").with_published_names()


def test_columns_and_averages():
    averages = {key: [p.name for p in PROTOCOLS.values() if p.average == key] for key in ("fine-grained", "variants")}
    assert len(averages["fine-grained"]) == 11
    assert averages["variants"] == ["imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch"]
    for protocol in PROTOCOLS.values():
        of_imagenet = protocol.name.startswith("imagenet")
        assert protocol.column == ("imagenet" if of_imagenet else "fine-grained")
        assert protocol.augmix is not of_imagenet


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("OXFORD_PETS", "pets"),
        ("oxford-pets", "pets"),
        ("OxfordFlowers", "flowers"),
        ("k", "imagenet-sketch"),
        ("ImageNet_V2", "imagenet-v2"),
        ("imagenetv2", "imagenet-v2"),
        ("imagenet_a", "imagenet-a"),
        ("caltech-101", "caltech"),
        ("StanfordCars", "cars"),
        ("fgvc_aircraft", "aircraft"),
        ("describable textures", "dtd"),
    ],
)
def test_aliases(alias: str, name: str):
    assert find_protocol(alias) is PROTOCOLS[name]


def test_no_two_protocols_share_a_name():
    seen: dict[str, Protocol] = {}
    for protocol in PROTOCOLS.values():
        for alias in (protocol.name, protocol.title, *protocol.aliases):
            assert seen.setdefault(re.sub("[-_ ]", "", alias.lower()), protocol) is protocol


def test_unknown_names_get_a_suggestion():
    with pytest.raises(InputError, match=r"Unknown dataset 'petz'\. Did you mean 'pets'\? `cots ls datasets`"):
        find_protocol("petz")
    with pytest.raises(InputError, match=r"Unknown dataset 'OXFORDFLOWER'\. Did you mean 'flowers'"):
        find_protocol("OXFORDFLOWER")
    with pytest.raises(InputError, match=r"Unknown dataset 'qqqq'\. Known: aircraft.*ucf\.$"):
        find_protocol("qqqq")


@pytest.mark.parametrize("name", SPLITS)
def test_split_layouts(name: str, tmp_path: Path):
    file = write_split(tmp_path, name)
    data = open_dataset(name, root=tmp_path)
    entries = json.loads(file.read_text())["test"]
    assert [(s.id, s.label) for s in data.samples] == [(path, label) for path, label, _ in entries]
    assert data.classes == tuple(f"class {label}" for label in range(PROTOCOLS[name].classes))
    assert data.protocol is PROTOCOLS[name]
    assert (data.name, data.title, len(data)) == (name, PROTOCOLS[name].title, 2 * len(data.classes))
    assert read_image(data.read(len(data) - 1)).size == (8, 6)
    assert [p.name for p in available(tmp_path)] == [name]


def test_names_come_from_every_part_of_the_split(tmp_path: Path):
    file = write_split(tmp_path, "eurosat")
    rewrite(file, test=[["c0/0.jpg", 0, "class_0"]])
    data = open_dataset("eurosat", root=tmp_path)
    assert (len(data), len(data.classes)) == (1, 10)


def test_paths_in_a_split_stay_inside_the_images(tmp_path: Path):
    file = write_split(tmp_path, "eurosat")
    parts = json.loads(file.read_text())
    parts["test"] = [
        [f"/{path}".replace("/", "\\") if label else f"/{path}", label, c] for path, label, c in parts["test"]
    ]
    file.write_text(json.dumps(parts))
    data = open_dataset("eurosat", root=tmp_path)
    assert [data.samples[i].id for i in (0, 3)] == ["c0/0.jpg", "c1/1.jpg"]
    assert data.read(3) == tmp_path / "eurosat" / "2750" / "c1" / "1.jpg"


@pytest.mark.parametrize(
    ("lists", "images"),
    [
        ("fgvc_aircraft", "fgvc_aircraft/images"),
        ("fgvc_aircraft/data", "fgvc_aircraft/data/images"),
        ("fgvc_aircraft", "fgvc_aircraft/data/images"),
    ],
)
def test_aircraft(lists: str, images: str, tmp_path: Path):
    variants = write_aircraft(tmp_path, lists, images)
    data = open_dataset("Aircraft", root=tmp_path)
    assert data.classes == tuple(variants)
    # The test list is written in the opposite order of the variants.
    assert [s.label for s in data.samples] == list(range(99, -1, -1))
    assert data.samples[97].id == "0000097.jpg"
    assert data.classes[data.samples[97].label] == "F/A-18"


@pytest.mark.parametrize("name", FOLDERS)
def test_imagenet_layouts(name: str, tmp_path: Path):
    folders = write_synsets(tmp_path, name)
    (tmp_path / FOLDERS[name] / "README.txt").write_text("not a class")
    data = open_dataset(name, root=tmp_path)
    own = synsets(PROTOCOLS[name].synsets or "")
    assert len(data.classes) == PROTOCOLS[name].classes
    assert data.classes == tuple(imagenet_names()[synset] for synset in own)
    # torchvision is the reader of published code: the same images in the same order.
    oracle = torchvision.datasets.ImageFolder(tmp_path / FOLDERS[name])
    assert [str(data.read(i)) for i in range(len(data))] == [path for path, _ in oracle.samples]
    for sample, (_, label) in zip(data.samples, oracle.samples, strict=True):
        folder = oracle.classes[label]
        assert sample.label == (int(folder) if name == "imagenet-v2" else own.index(folder))
    assert sorted(folders) == oracle.classes


def test_imagenet_v2_folders_sort_as_text_but_mean_numbers(tmp_path: Path):
    write_synsets(tmp_path, "imagenet-v2")
    data = open_dataset("V", root=tmp_path)
    assert [s.label for s in data.samples[:5]] == [0, 1, 10, 100, 101]
    assert data.classes[data.samples[2].label] == "brambling"  # ImageNet's class 10, n01530575


def test_variants_may_lie_beside_imagenet(tmp_path: Path):
    for synset in synsets("imagenet_a")[:20]:
        put(tmp_path / "imagenet-a" / synset / "1.jpg")
    assert len(open_dataset("imagenet-a", root=tmp_path)) == 20
    for synset in synsets()[:30]:
        put(tmp_path / "imagenet-sketch" / synset / "1.JPEG")
    assert len(open_dataset("imagenet-sketch", root=tmp_path)) == 30
    assert [p.name for p in available(tmp_path)] == ["imagenet-a", "imagenet-sketch"]


def test_missing_split_file(tmp_path: Path):
    write_split(tmp_path, "pets").unlink()
    (tmp_path / "oxford_pets" / "annotations").mkdir()
    refused(
        r"split_zhou_OxfordPets\.json is missing; '.*oxford_pets' contains annotations/, images/\. Put it there \(see",
        "pets",
        root=tmp_path,
    )


def test_missing_images(tmp_path: Path):
    (tmp_path / "dtd" / "pictures").mkdir(parents=True)
    refused(r"DTD: its images are expected in '.*dtd/images', but '.*dtd' contains pictures/\.", "dtd", root=tmp_path)
    split = write_split(tmp_path, "dtd")
    for image in (tmp_path / "dtd" / "images").rglob("*.jpg"):
        image.unlink()
    assert split.exists()
    refused(r"DTD: none of \d+ spot-checked images exists; the first is '.*c0/0\.jpg'.*Unpack", "dtd", root=tmp_path)


def test_wrong_data_folder(tmp_path: Path):
    write_split(tmp_path, "pets")
    refused(
        r"DTD is expected in '.*/dtd', but the data folder contains oxford_pets/\. Pass the folder that contains it",
        "dtd",
        root=tmp_path,
    )
    refused(
        rf"is the dataset's own folder; pass its parent as the data folder: '{tmp_path}'",
        "pets",
        root=tmp_path / "oxford_pets",
    )
    (tmp_path / "Caltech101").mkdir()
    refused(r"Rename Caltech101/ to caltech-101/, or link to it", "caltech", root=tmp_path)
    refused(r"data folder '.*/nowhere' does not exist: '.*' contains Caltech101/", "pets", root=tmp_path / "nowhere")
    refused("is a file; pass the folder that contains it", "pets", root=put(tmp_path / "a.txt"))
    with pytest.raises(InputError, match="does not exist"):
        available(tmp_path / "nowhere")


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
        ({"test": [["a.jpg", 1]]}, r"entry 0 is .*, not \[path, label, name\]"),
        ({"test": [["a.jpg", 1, " "]]}, "entry 0 is"),
        ({"test": [["a.jpg", 1, "class_2"]]}, "label 1 is 'class 2' here but 'class 1' before"),
        ({"train": {}, "test": [["a.jpg", 2, "x"]]}, "has no entry for label 0, 1. Download"),
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
    refused(r"'.*split_zhou_EuroSAT\.json' (cannot be read|has no list)", "eurosat", root=tmp_path)


def test_bad_aircraft_lists(tmp_path: Path):
    write_aircraft(tmp_path)
    folder = tmp_path / "fgvc_aircraft"
    test = folder / "images_variant_test.txt"
    test.write_text(test.read_text() + "0000001 Zeppelin\n")
    refused(r"images_variant_test\.txt', line 101: 'Zeppelin' is not one of the 100 names", "aircraft", root=tmp_path)
    test.write_text("\n")
    refused("Aircraft lists no images", "aircraft", root=tmp_path)
    (folder / "variants.txt").unlink()
    refused(r"variants\.txt is missing; '.*' contains images/, images_variant_test\.txt", "A I R craft", tmp_path)


def test_bad_synset_folders(tmp_path: Path):
    write_synsets(tmp_path, "imagenet-a")
    images = tmp_path / FOLDERS["imagenet-a"]
    (images / "n01440764").mkdir()  # tench: in ImageNet, but not in ImageNet-A
    refused(
        r"ImageNet-A: the folders in .* must be its classes \(200 synsets.*contains n01440764",
        "A",
        tmp_path,
    )
    flat = tmp_path / FOLDERS["imagenet"]
    put(flat / "ILSVRC2012_val_00000001.JPEG")
    refused("ILSVRC2012_val_00000001.JPEG. Sort the validation images into one folder per synset", "I", tmp_path)
    (tmp_path / FOLDERS["imagenet-v2"] / "1000").mkdir(parents=True)
    refused(r"must be its classes \(numbers 0 to 999\), but it contains 1000", "V", tmp_path)
    (tmp_path / FOLDERS["imagenet-r"] / "n01443537").mkdir(parents=True)
    refused("ImageNet-R lists no images", "R", tmp_path)
