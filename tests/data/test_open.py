"""open_dataset: folders against torchvision, CSV lists, shards against tarfile, and paths that are something else."""

from __future__ import annotations

import glob
import pickle
import random
import tarfile
from pathlib import Path

import pytest
import torchvision
from support.layouts import jpeg, put, write_split, write_tar

from cots import InputError, read_image
from cots.data import Dataset, open_dataset


def refused(match: str, *args, **kwargs) -> None:
    with pytest.raises(InputError, match=match):
        open_dataset(*args, **kwargs)


def write_csv(folder: Path, text: str, *images: str) -> Path:
    for image in images:
        put(folder / image)
    return put(folder / "list.csv", text.encode())


@pytest.mark.parametrize("seed", range(4))
def test_folders_as_torchvision_reads_them(seed: int, tmp_path: Path):
    rng = random.Random(seed)
    root = tmp_path / "photos"
    for name in rng.sample(["2", "10", "Zebra", "ant", "b_c", "émeu", "n01440764", "x y"], 5):
        for _ in range(rng.randint(1, 6)):
            below = rng.choice(["", "deep/", "deep/er/", "Upper/"])
            put(root / name / f"{below}{rng.randint(0, 20)}{rng.choice(['.jpg', '.JPEG', '.png', '.webp'])}")
    put(root / "notes.txt")
    for below in ("deep/x", "deep-er/x", "deep"):  # "-" sorts before "/", so a plain walk has another order
        put(root / "ordered" / below / "1.jpg")
    put(tmp_path / "elsewhere" / "1.jpg")
    (root / "ordered" / "linked").symlink_to(tmp_path / "elsewhere")
    data, oracle = open_dataset(root), torchvision.datasets.ImageFolder(root)
    assert [(str(data.read(i)), s.label) for i, s in enumerate(data.samples)] == oracle.samples
    assert [s.id for s in data.samples] == [Path(p).relative_to(root).as_posix() for p, _ in oracle.samples]
    assert data.classes == tuple(name.replace("_", " ") for name in oracle.classes)
    assert data.name == "photos"


def test_hidden_files_and_folders_do_not_count(tmp_path: Path):
    put(tmp_path / "cat" / "1.jpg")
    put(tmp_path / "cat" / "._1.jpg")
    put(tmp_path / ".cache" / "2.jpg")
    assert [s.id for s in open_dataset(tmp_path).samples] == ["cat/1.jpg"]


def test_links_in_a_circle_are_followed_once(tmp_path: Path):
    for name, other in (("cat", "dog"), ("dog", "cat")):
        put(tmp_path / "photos" / name / "1.jpg")
        (tmp_path / "photos" / name / other).symlink_to(tmp_path / "photos" / other)
    (tmp_path / "photos" / "cat" / "up").symlink_to(tmp_path)
    found = [s.id for s in open_dataset(tmp_path / "photos").samples]
    assert found == ["cat/1.jpg", "cat/dog/1.jpg", "dog/1.jpg", "dog/cat/1.jpg"]


def test_folders_that_are_something_else(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    refused(r"'.*/empty' has no class folders; it contains nothing\. Make one folder per class", tmp_path / "empty")
    put(tmp_path / "flat" / "1.jpg")
    refused(r"has no class folders; it contains 1\.jpg\..*header path,label", tmp_path / "flat")
    for split in ("train", "val"):
        put(tmp_path / "both" / split / "cat" / "1.jpg")
    refused(r"are splits, not classes \(train, val\)\. Open one of them, such as '.*/val'", tmp_path / "both")
    assert open_dataset(tmp_path / "both" / "val").name == "both-val"
    put(tmp_path / "gap" / "cat" / "1.jpg")
    (tmp_path / "gap" / "dog").mkdir()
    refused(r"1 of its 2 class folders have no images \(dog\)", tmp_path / "gap")
    write_split(tmp_path / "data", "pets")
    refused(r"is in CoOp's layout. Open 'pets' with the data folder '.*/data'", tmp_path / "data" / "oxford_pets")
    refused(r"is in CoOp's layout. Open 'pets' with the data folder '.*/data'", tmp_path / "data")


def test_names_of_results_never_look_like_a_protocol(tmp_path: Path):
    for folder in ("pets", "images", "My Photos!"):
        put(tmp_path / "base" / folder / "cat" / "1.jpg")
    names = [open_dataset(tmp_path / "base" / f).name for f in ("pets", "images", "My Photos!")]
    assert names == ["pets-own", "base-images", "My-Photos"]


def test_a_protocol_needs_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path / "pets" / "cat" / "1.jpg")
    monkeypatch.chdir(tmp_path)
    refused(r"'pets' is the protocol OxfordPets: pass root, the folder that contains oxford_pets/\..*'\./pets'", "pets")
    assert open_dataset("./pets").protocol is None


def test_unknown_dataset(tmp_path: Path):
    refused(r"Unknown dataset 'flwers'\. Did you mean 'flowers'\?", "flwers", root=tmp_path)
    refused(r"dataset '.*/photos/x' does not exist: '.*' contains nothing\. Pass", str(tmp_path / "photos/x"))
    refused("the dataset's name is empty", "")
    refused(r"^nofile\.csv: no such file\.", "nofile.csv")
    refused("is a file of an unknown kind. Pass a folder with", put(tmp_path / "a.parquet"))


def test_a_list_with_names(tmp_path: Path):
    file = write_csv(
        tmp_path,
        '\ufefflabel , Path,note\ndog,a/1.jpg,x\n\ngreat_dane,./b.jpg,\ndog,"c, d.jpg",y\n',
        "a/1.jpg",
        "b.jpg",
    )
    data = open_dataset(file)
    assert data.classes == ("dog", "great dane")
    assert [(s.id, s.label) for s in data.samples] == [("a/1.jpg", 0), ("b.jpg", 1), ("c, d.jpg", 0)]
    assert read_image(data.read(0)).size == (8, 6)
    assert data.name == "list"


def test_where_the_paths_of_a_list_start(tmp_path: Path):
    put(tmp_path / "images" / "a.jpg")
    file = write_csv(tmp_path / "lists", "path,label\na.jpg,cat\n")
    assert open_dataset(file, root=tmp_path / "images").read(0) == tmp_path / "images" / "a.jpg"
    refused(
        r"none of 1 spot-checked images exists; the first is '.*lists/a\.jpg'\. Relative paths start at '.*lists'", file
    )
    put(tmp_path / "lists" / "a.jpg")  # beside the list comes first
    assert open_dataset(file, root=tmp_path / "images").read(0) == tmp_path / "lists" / "a.jpg"
    absolute = write_csv(tmp_path / "images", f"path,label\n{tmp_path / 'images' / 'a.jpg'},cat\n")
    assert open_dataset(absolute).samples[0].id == "a.jpg"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "a.jpg,cat\nb.jpg,dog\n",
            r"the first line must be the header path,label, but is 'a\.jpg,cat'",
        ),
        ("", "must be the header path,label, but is 'empty'"),
        ("path,label\n", "lists no images. Write one path,label per line"),
        ("path,label\na.jpg\n", r"line 2: path or label is missing in 'a\.jpg'"),
        ("path,label\na.jpg,cat\nb.jpg, \n", "line 3: path or label is missing"),
        ("path,label\na.jpg,_\n", "line 2: the label is empty"),
        ("path;label\na.jpg;cat\n", "must be the header"),
    ],
)
def test_bad_lists(text: str, match: str, tmp_path: Path):
    refused(match, write_csv(tmp_path, text, "a.jpg", "b.jpg"))


def test_a_list_that_is_not_text(tmp_path: Path):
    refused("cannot be read .* It must be UTF-8 text", put(tmp_path / "list.csv", b"path,label\n\xff\xfe,cat\n"))


def test_shards_are_read_by_offset(tmp_path: Path):
    for shard in range(3):
        members = {}
        for n in range(4):
            # A name beyond 100 characters takes an extra header, and so moves the offsets.
            key = f"{'long/' * 30 if n == 2 else ''}s{shard}{n}"
            members |= {f"{key}.jpg": jpeg(60 * shard + n), f"{key}.cls": f"{n % 2}\n".encode(), f"{key}.x.txt": b"hi"}
        write_tar(tmp_path / f"data-{shard:04d}.tar", members)
    put(tmp_path / "classnames.txt", b"cat\ndog\n")
    pattern = str(tmp_path / "data-{0000..0002}.tar")
    data = open_dataset(pattern)
    assert (len(data), data.classes, data.name) == (12, ("cat", "dog"), "data")
    assert [s.id.rpartition("/")[2] for s in data.samples] == [f"s{shard}{n}" for shard in range(3) for n in range(4)]
    assert [s.label for s in data.samples] == [0, 1] * 6
    there: Dataset = pickle.loads(pickle.dumps(data))
    i = 0
    for file in sorted(glob.glob(str(tmp_path / "*.tar"))):
        with tarfile.open(file) as tar:
            for member in tar.getmembers():
                if member.name.endswith(".jpg"):
                    stored = tar.extractfile(member)
                    assert stored is not None
                    assert there.read(i) == stored.read()
                    i += 1
    assert i == 12
    assert read_image(data.read(7)).size == (8, 6)
    for same in (str(tmp_path / "data-*.tar"), str(tmp_path), str(tmp_path / "data-000{0,1,2}.tar")):
        assert open_dataset(same).split_hash == data.split_hash
    assert open_dataset("data-{0..0}001.tar", root=tmp_path).samples == data.samples[4:8]


def test_where_a_shard_keeps_its_labels(tmp_path: Path):
    by_json = write_tar(tmp_path / "j.tar", {"1.json": b'{"label": "big_cat"}', "1.png": jpeg(), "2.jpg": jpeg()})
    refused("sample '2' has no label. Add 2.cls, or put it in a folder", by_json)
    by_json = write_tar(tmp_path / "j.tar", {"1.json": b'{"label": "big_cat"}', "1.png": jpeg()})
    assert open_dataset(by_json).classes == ("big cat",)
    by_folder = write_tar(tmp_path / "f.tar", {"./n01440764/a.jpg": jpeg(), "n01443537/b.jpg": jpeg()})
    data = open_dataset(by_folder)
    assert (data.classes, [s.id for s in data.samples]) == (("tench", "goldfish"), ["n01440764/a", "n01443537/b"])
    refused("its .json has none of label, cls", write_tar(tmp_path / "x.tar", {"1.jpg": jpeg(), "1.json": b"[1]"}))
    for content in (b"{", b"[" * 100_000):
        refused("its label cannot be read", write_tar(tmp_path / "x.tar", {"1.jpg": jpeg(), "1.json": content}))


def test_keys_that_repeat_between_shards(tmp_path: Path):
    for shard in "ab":
        write_tar(tmp_path / f"{shard}.tar", {"1.jpg": jpeg(), "1.cls": b"cat"})
    assert [s.id for s in open_dataset(tmp_path / "{a,b}.tar").samples] == ["a/1", "b/1"]
    assert [s.id for s in open_dataset(tmp_path / "b.tar").samples] == ["1"]


def test_bad_shards(tmp_path: Path):
    good = {"1.jpg": jpeg(), "1.cls": b"0", "2.jpg": jpeg(), "2.cls": b"5"}
    file = write_tar(tmp_path / "a.tar", good)
    names = put(tmp_path / "n.txt", b"x\ny")
    refused(r"a\.tar, '2': label 5 is out of range", file, classes=names)
    refused("the labels are numbers", file)
    refused(r"2 of 3 files do not exist, the first '.*b\.tar'", str(tmp_path / "{a,b,c}.tar"))
    refused("no such file. Check the pattern", str(tmp_path / "z-*.tar"))
    refused("counts down", str(tmp_path / "z-{3..1}.tar"))
    refused("no image in 1 file", write_tar(tmp_path / "t.tar", {"1.txt": b"x"}))
    refused("It is compressed, truncated or not a tar file", write_tar(tmp_path / "g.tar.gz", good, "w:gz"))
    refused("truncated", put(tmp_path / "cut.tar", file.read_bytes()[:700]))
    refused("not a tar file", put(tmp_path / "junk.tar", b"x" * 2000))
    refused(r"has 1\.jpg twice", write_tar(tmp_path / "twice.tar", {"1.jpg": b"a", "1.JPG": b"b", "1.cls": b"x"}))


def test_a_shard_that_changes_after_opening(tmp_path: Path):
    file = write_tar(tmp_path / "a.tar", {"1.jpg": jpeg(), "1.cls": b"cat"})
    data = open_dataset(file)
    file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(InputError, match=r"a\.tar' has become shorter"):
        data.read(0)
    file.unlink()
    with pytest.raises(InputError, match=r"a\.tar' cannot be read \(No such file"):
        data.read(0)
