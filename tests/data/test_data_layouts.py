"""The fifteen protocols: their facts, their names, and each one opened from a generated copy of its layout."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
import timm
import torchvision
from support.layouts import FOLDERS, SPLITS, put, write_aircraft, write_split, write_synsets

from cots import InputError, read_image
from cots.adapters import ADAPTERS
from cots.data import PROTOCOLS, Protocol, available, find_protocol, open_dataset
from cots.data._names import imagenet_names, synsets
from cots.prompts._tokens import DEFAULT_TEMPLATE, clean_name, clean_names

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


def test_columns_and_averages():
    averages = {key: [p.name for p in PROTOCOLS.values() if p.average == key] for key in ("fine-grained", "variants")}
    assert len(averages["fine-grained"]) == 11
    assert averages["variants"] == ["imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch"]
    for protocol in PROTOCOLS.values():
        of_imagenet = protocol.name.startswith("imagenet")
        assert protocol.column == ("imagenet" if of_imagenet else "fine-grained")
        assert protocol.augmix is not of_imagenet


def test_weights_are_settings_of_the_adapters():
    for protocol in PROTOCOLS.values():
        for adapter in ADAPTERS:
            ADAPTERS.check_settings(adapter, protocol.settings(adapter))
            if protocol.column == "fine-grained" and adapter in protocol.weights:
                # Outside a protocol the fine-grained column is the default.
                assert protocol.settings(adapter) == {"weight": ADAPTERS.settings(adapter)["weight"]}
    variant = PROTOCOLS["imagenet-r"]
    assert [variant.weights[a] for a in ("ctpt", "otpt", "atpt", "soc", "penalty")] == [20, 18, 60, 14, 10]
    assert variant.settings("tpt") == {}


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
    with pytest.raises(InputError, match=r"Unknown dataset 'petz'\. Did you mean 'pets'\? Known: aircraft.*ucf\.$"):
        find_protocol("petz")
    with pytest.raises(InputError, match=r"Unknown dataset 'OXFORDFLOWER'.*The nearest is flowers \(Flowers102\)"):
        find_protocol("OXFORDFLOWER")
    with pytest.raises(InputError, match="must be text"):
        find_protocol(7)  # pyright: ignore[reportArgumentType]


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


def test_variants_lie_beside_as_well(tmp_path: Path):
    for synset in synsets("imagenet_a"):
        put(tmp_path / "imagenet-a" / synset / "1.jpg")
    assert len(open_dataset("imagenet-a", root=tmp_path)) == 200
    for synset in synsets():
        put(tmp_path / "imagenet-sketch" / synset / "1.JPEG")
    assert len(open_dataset("imagenet-sketch", root=tmp_path)) == 1000
    assert [p.name for p in available(tmp_path)] == ["imagenet-a", "imagenet-sketch"]


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


def test_names_are_cleaned_as_prompts_clean_them():
    for name in (" american_bulldog", "a  b", "yin_yang", "F/A-18", "colt's foot", "x__y_"):
        assert (clean_name(name),) == clean_names([name])


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


def test_a_dataset_can_travel_to_a_worker(tmp_path: Path):
    write_split(tmp_path, "eurosat")
    data = open_dataset("eurosat", root=tmp_path)
    there = pickle.loads(pickle.dumps(data))
    assert there.samples == data.samples
    assert there.split_hash == data.split_hash
    assert there.read(3) == data.read(3)
