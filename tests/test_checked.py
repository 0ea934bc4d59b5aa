"""Files with a checksum: any flipped bit is found, files of earlier versions are read, errors name the file."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.damage import flip

from cots._checked import DamagedFile, read_json, read_tensors, verify, write_json, write_tensors
from cots._errors import CotsError

CONTENT = {"name": "café", "values": [1, 2.5, None], "inner": {"cots": '"cots_checksum": "crc32:00000000"'}}
TENSORS = {"a": torch.arange(5), "b": torch.tensor([[0.5, float("nan")]])}
METADATA = {"ids": json.dumps(["x", '"cots_checksum":"crc32:00000000"'])}


@pytest.fixture
def files(tmp_path):
    write_json(tmp_path / "x.json", CONTENT)
    write_tensors(tmp_path / "x.safetensors", TENSORS, METADATA)
    return {tmp_path / "x.json": read_json, tmp_path / "x.safetensors": read_tensors}


def test_what_is_written_is_read(files, tmp_path):
    assert read_json(tmp_path / "x.json") == CONTENT
    arrays, metadata = read_tensors(tmp_path / "x.safetensors")
    assert metadata == METADATA
    np.testing.assert_array_equal(arrays["b"], TENSORS["b"].numpy())
    tensors, _ = read_tensors(tmp_path / "x.safetensors", ["a"], "pt")
    assert torch.equal(tensors.pop("a"), TENSORS["a"])
    assert not tensors
    assert torch.equal(load_file(tmp_path / "x.safetensors")["a"], TENSORS["a"])  # an ordinary safetensors file


def test_the_checksum_is_the_crc_of_the_file_with_zeros_in_its_place(files):
    stored = {"x.json": json.loads, "x.safetensors": lambda data: json.loads(data[8 : data.index(b"}}") + 2])}
    for file in files:
        data = file.read_bytes()
        content = stored[file.name](data)
        digits = content.get("__metadata__", content)["cots_checksum"].removeprefix("crc32:").encode()
        assert data.count(digits) == 1
        assert int(digits, 16) == zlib.crc32(data.replace(digits, b"00000000"))


def test_every_flipped_bit_is_found(files):
    for file, read in files.items():
        whole = file.read_bytes()
        for bit in range(8 * len(whole)):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DamagedFile, match=r"is damaged \(its checksum"):
                verify(file, bytes(data))
        flip(file)
        with pytest.raises(DamagedFile, match=r"is damaged \(its checksum"):
            read(file)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_cut_extended_and_overwritten_files_are_found(data, tmp_path_factory):
    file = tmp_path_factory.mktemp("x") / "x.safetensors"
    write_tensors(file, TENSORS, METADATA)
    whole = file.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    changed = whole[:start] + data.draw(st.binary(max_size=20)) + whole[stop:]
    file.write_bytes(changed)
    if changed == whole:
        assert verify(file)
        return
    with pytest.raises(DamagedFile):
        read_tensors(file)


def test_files_without_a_checksum_are_read_unverified(tmp_path):
    (tmp_path / "old.json").write_text('{"a": 1}')
    save_file(TENSORS, tmp_path / "old.safetensors", METADATA | {"ids": "[]"})
    assert read_json(tmp_path / "old.json") == {"a": 1}
    assert read_tensors(tmp_path / "old.safetensors", ["a"])[1] == {"ids": "[]"}
    assert [verify(tmp_path / name) for name in ("old.json", "old.safetensors")] == [False, False]


def test_errors_name_the_file_the_damage_and_the_remedy(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(DamagedFile, match=r"/x is damaged \(it is empty\). Buy a new one.$") as caught:
        read_json(tmp_path / "x", remedy="Buy a new one.")
    assert (caught.value.file, caught.value.reason) == (tmp_path / "x", "it is empty")
    (tmp_path / "x").write_bytes(b"torn")
    with pytest.raises(DamagedFile, match=r"Restore it from a copy, or create it again"):
        read_tensors(tmp_path / "x")
    with pytest.raises(CotsError, match=r"cannot be read \(Is a directory\). Check permissions"):
        read_json(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none")
