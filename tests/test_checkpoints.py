"""Files of weights: the same tensors as torch reads, from any file, and never more memory than the file is worth."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import warnings
import zipfile

import numpy as np
import open_clip
import pytest
import torch
from torch import nn

from cots._checkpoints import is_torchscript, one_line, read_weights


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2)
        self.attn_mask = torch.full((4, 4), float("-inf")).triu(1)  # not a buffer, as in OpenAI's code

    def forward(self, x):
        h = self.ln_1(x)
        return x + self.attn(h, h, h, need_weights=False, attn_mask=self.attn_mask)[0]


class Visual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 2, bias=False), nn.BatchNorm2d(8)
        self.proj = nn.Parameter(torch.randn(6, 8).half().t())  # not contiguous

    def forward(self, x):
        return self.bn1(self.conv1(x)).mean((2, 3)) @ self.proj.float()


class Archive(nn.Module):
    """CLIP's names, half-precision weights and the constants that OpenAI's archives hold."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = Visual()
        self.transformer = nn.Sequential(Block(), Block())
        self.token_embedding = nn.Embedding(5, 8).half()
        self.positional_embedding = nn.Parameter(torch.randn(4, 8))
        self.logit_scale = nn.Parameter(torch.tensor(4.6))
        self.register_buffer("input_resolution", torch.tensor(224))
        self.register_buffer("nothing", torch.empty(0, 3))

    def forward(self, pixels, ids):
        x = self.token_embedding(ids).float() + self.positional_embedding
        return self.visual(pixels).sum() + (self.transformer(x) * self.logit_scale).sum()


@pytest.mark.parametrize("how", ["trace", "script"])
def test_torchscript_gives_the_state_that_torch_would(tmp_path, how):
    file = tmp_path / "clip.pt"
    torch.manual_seed(0)
    model, inputs = Archive().eval(), (torch.randn(1, 3, 4, 4), torch.zeros(4, dtype=torch.long))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.jit.trace(model, inputs, check_trace=False) if how == "trace" else torch.jit.script(model)
        made.save(file)
        expected = torch.jit.load(file).state_dict()
    found = read_weights(file)
    assert is_torchscript(file)
    assert "visual.bn1.running_var" in expected
    assert not any("attn_mask" in name for name in expected)
    assert_same(found, expected)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_torch_save_gives_the_tensors_that_torch_would(tmp_path, zipped):
    torch.manual_seed(0)
    state = open_clip.CLIP(
        embed_dim=12,
        vision_cfg={"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
        text_cfg={"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1},
    ).state_dict()
    state |= {"view": torch.arange(10)[2:8:2], "flags": torch.tensor([True, False]), "half": torch.ones(3).bfloat16()}
    state["parameter"] = nn.Parameter(torch.ones(2))
    file = tmp_path / "weights.pt"
    torch.save({"state_dict": state, "epoch": 3}, file, _use_new_zipfile_serialization=zipped)
    assert not is_torchscript(file)
    assert_same(read_weights(file), torch.load(file, weights_only=True)["state_dict"])


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_damaged_file_is_read_or_refused(tmp_path, zipped):
    file = tmp_path / "weights.pt"
    torch.save({"a": torch.randn(6, 5), "b": [1, {"c": (2.0, "x")}]}, file, _use_new_zipfile_serialization=zipped)
    whole, random = file.read_bytes(), np.random.default_rng(0)
    refused = []
    for _ in range(300):
        data = bytearray(whole)
        for place in random.integers(0, len(data), random.integers(1, 4)):
            data[place] = random.integers(0, 256)
        file.write_bytes(data[: random.integers(1, len(data))] if random.random() < 0.3 else data)
        try:
            read_weights(file)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert all(reason.isprintable() and len(reason) < 400 for reason in refused)


def rewritten(file, pickled: bytes, compression=zipfile.ZIP_STORED, **parts: bytes):
    """A file of torch.save with another pickle and other or further parts."""
    torch.save({"a": torch.ones(4)}, file)
    with zipfile.ZipFile(file) as archive:
        (root,) = {name.split("/")[0] for name in archive.namelist()}
        content = {name: archive.read(name) for name in archive.namelist()}
    content[f"{root}/data.pkl"] = pickled
    content |= {f"{root}/data/{name}": data for name, data in parts.items()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


class Call:
    """Pickled as a call of a function, of which only the name is written."""

    def __init__(self, function, *given):
        self.call = function, given

    def __reduce__(self):
        return self.call


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return ("storage", torch.FloatStorage, *value.given) if isinstance(value, Stored) else None


class Stored:
    def __init__(self, key, length):
        self.given = key, "cpu", length


def pickled(content) -> bytes:
    stream = io.BytesIO()
    Pickler(stream, protocol=2).dump(content)
    return stream.getvalue()


def tensor(shape, strides, key="0", length=4, offset=0):
    return Call(torch._utils._rebuild_tensor_v2, Stored(key, length), offset, shape, strides, False, {})


LARGE = 2**27
HOSTILE = {
    "shape": {"a": tensor((LARGE,), (0,))},
    "length": {"a": tensor((LARGE,), (1,), length=LARGE)},
    "outside": {"a": tensor((2,), (1,), offset=3)},
    "negative": {"a": tensor((2,), (-1,), offset=3)},
    "offset": {"a": tensor((2,), (1,), offset=-8)},
    "words": {"a": tensor(("x",), (1,))},
    "no storage": {"a": Call(torch._utils._rebuild_tensor_v2, 3, 0, (1,), (1,), False, {})},
    "many views": {str(i): tensor((2**18,), (1,), key="ones", length=2**18) for i in range(100)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_follows_the_size_of_the_file(tmp_path, name):
    file = tmp_path / "hostile.pt"
    rewritten(file, pickled(HOSTILE[name]), ones=b"\0" * 2**20)
    assert_refused_in_little_memory(file)


def test_small_archives_of_much_content_are_refused(tmp_path):
    file = tmp_path / "bomb.pt"
    bomb = {"a": tensor((LARGE // 4,), (1,), key="zeros", length=LARGE // 4)}
    rewritten(file, pickled(bomb), zipfile.ZIP_DEFLATED, zeros=b"\0" * LARGE)
    assert file.stat().st_size < 2**20
    assert_refused_in_little_memory(file)
    rewritten(file, b"\x80\x02" + b"]" * LARGE, zipfile.ZIP_DEFLATED)
    assert_refused_in_little_memory(file)


def test_an_index_in_a_pickle_does_not_reserve_memory(tmp_path):
    """In C, the unpickler makes a list as long as the largest index: 16 GiB for these 9 bytes."""
    file = tmp_path / "index.pt"
    rewritten(file, b"\x80\x02}r\xff\xff\xff\x7f.")
    tracemalloc.start()
    try:
        assert read_weights(file) == {}
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_modules_without_end_are_refused(tmp_path):
    """A module that contains itself, and ones that contain the next twice: 2^60 names."""
    file = tmp_path / "endless.pt"
    module = b"c__torch__\nM\n)\x81"
    rewritten(file, b"\x80\x02" + module + b"q\0}X\x01\0\0\0ah\0sb.")
    with pytest.raises(ValueError, match=r".+"):
        read_weights(file)
    nested = module + b"q\0"
    for i in range(60):
        nested += module + b"}(X\x01\0\0\0ah" + bytes([i]) + b"X\x01\0\0\0bh" + bytes([i]) + b"ubq" + bytes([i + 1])
    rewritten(file, b"\x80\x02" + nested + b".")
    with pytest.raises(ValueError, match="declares more data"):
        read_weights(file)


def assert_refused_in_little_memory(file):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"it (has|declares)|its .* has .* bytes|is incomplete") as caught:
            read_weights(file)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


def test_an_error_is_one_printable_line():
    assert one_line("\x1b[31mred\x1b[0m\n\tnext\x07line\x1b]0;title") == "red next line ]0;title"
    assert len(one_line("x" * 10_000)) == 304
