"""Webdataset shards, against tarfile."""

from __future__ import annotations

import glob
import pickle
import tarfile
from pathlib import Path

import pytest
from support.layouts import jpeg, put, write_tar

from cots import InputError, read_image
from cots.data import Dataset, open_dataset


def refused(match: str, *args, **kwargs) -> None:
    with pytest.raises(InputError, match=match):
        open_dataset(*args, **kwargs)


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
    refused("sample '2' has no label: add 2.cls, or put it in a folder", by_json)
    by_json = write_tar(tmp_path / "j.tar", {"1.json": b'{"label": "big_cat"}', "1.png": jpeg()})
    assert open_dataset(by_json).classes == ("big cat",)
    by_folder = write_tar(tmp_path / "f.tar", {"./n01440764/a.jpg": jpeg(), "n01443537/b.jpg": jpeg()})
    data = open_dataset(by_folder)
    assert (data.classes, [s.id for s in data.samples]) == (("tench", "goldfish"), ["n01440764/a", "n01443537/b"])
    refused("its .json has none of label, cls", write_tar(tmp_path / "x.tar", {"1.jpg": jpeg(), "1.json": b"[1]"}))
    refused("its label cannot be read", write_tar(tmp_path / "x.tar", {"1.jpg": jpeg(), "1.json": b"{"}))


def test_keys_that_repeat_between_shards(tmp_path: Path):
    for shard in "ab":
        write_tar(tmp_path / f"{shard}.tar", {"1.jpg": jpeg(), "1.cls": b"cat"})
    assert [s.id for s in open_dataset(tmp_path / "{a,b}.tar").samples] == ["a/1", "b/1"]
    assert [s.id for s in open_dataset(tmp_path / "b.tar").samples] == ["1"]


def test_bad_shards(tmp_path: Path):
    good = {"1.jpg": jpeg(), "1.cls": b"0", "2.jpg": jpeg(), "2.cls": b"5"}
    file = write_tar(tmp_path / "a.tar", good)
    names = put(tmp_path / "n.txt", b"x\ny")
    refused(r"a\.tar, '2': label 5 is out of range", file, classes_file=names)
    refused("the labels are numbers", file)
    refused(r"2 of 3 files do not exist, the first '.*b\.tar'", str(tmp_path / "{a,b,c}.tar"))
    refused("no such file. Check the pattern", str(tmp_path / "z-*.tar"))
    refused("counts down", str(tmp_path / "z-{3..1}.tar"))
    refused("no image in 1 file", write_tar(tmp_path / "t.tar", {"1.txt": b"x"}))
    refused("it is compressed, truncated or not a tar file", write_tar(tmp_path / "g.tar.gz", good, "w:gz"))
    refused("truncated", put(tmp_path / "cut.tar", file.read_bytes()[:700]))
    refused("not a tar file", put(tmp_path / "junk.tar", b"x" * 2000))
    refused(r"has 1\.jpg twice", write_tar(tmp_path / "twice.tar", {"1.jpg": b"a", "1.JPG": b"b", "1.cls": b"x"}))


def test_a_shard_that_changes_after_opening(tmp_path: Path):
    file = write_tar(tmp_path / "a.tar", {"1.jpg": jpeg(), "1.cls": b"cat"})
    data = open_dataset(file)
    file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(InputError, match=r"a\.tar' is shorter than when it was opened"):
        data.read(0)
    file.unlink()
    with pytest.raises(InputError, match=r"a\.tar' cannot be read \(No such file"):
        data.read(0)
