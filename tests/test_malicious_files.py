"""Every loader of files of others gets files that would leave a mark. None does, and the error names the remedy."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import runpy
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import save_file
from support.layouts import jpeg
from support.models import CLIP_CFG, add_architecture

import cots
from cots.cli import main
from cots.data import open_dataset
from cots.prompts._tokens import read_context

REMEDIES = r"Pass |Download |Put |needs |Remove |Write numeric arrays|unpack|use |Add "


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *given):
        self.call = function, given

    def __reduce__(self):
        return self.call


def attacks(mark: Path) -> list[Call]:
    return [
        Call(os.system, f"touch {mark}"),
        Call(os.mkdir, str(mark)),
        Call(Path.touch, mark),
        Call(eval, f"open({str(mark)!r}, 'w').write('x')"),
        Call(exec, f"open({str(mark)!r}, 'w')"),
        Call(torch.save, [1], str(mark)),
    ]


def torch_zip(file: Path, mark: Path) -> None:
    torch.save({"state_dict": {"ln_final.weight": torch.ones(16), "x": attacks(mark)}, "y": attacks(mark)}, file)


def torch_legacy(file: Path, mark: Path) -> None:
    torch.save({"x": torch.ones(2), "y": attacks(mark)}, file, _use_new_zipfile_serialization=False)


def torch_tar(file: Path, mark: Path) -> None:
    """The first format of torch: a tar archive, which torch unpacks. Its members point elsewhere."""
    with tarfile.open(file, "w") as tar:
        for name in ("storages", "tensors", "pickle"):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, str(mark)
            tar.addfile(member)
        write_member(tar, f"../{mark.name}", b"x")
        write_member(tar, "pickle", pickle.dumps(attacks(mark)))


def write_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def bare_pickle(file: Path, mark: Path) -> None:
    file.write_bytes(pickle.dumps(attacks(mark)[0]))


def torchscript(file: Path, mark: Path) -> None:
    """An archive whose code writes to a file as soon as torch.jit.load makes its objects."""
    source = file.with_name("evil_code.py")
    source.write_text(f"""
import torch
from typing import Tuple

class Evil(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.written = torch.zeros(4, dtype=torch.uint8)

    def forward(self, x):
        return x

    @torch.jit.export
    def __getstate__(self) -> Tuple[int, bool]:
        return 1, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[int, bool]) -> None:
        self.training = state[1]
        self.written = torch.from_file({str(mark)!r}, True, 4, dtype=torch.uint8).fill_(7)
""")
    module = runpy.run_path(str(source), run_name="evil")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module["Evil"]()).save(file)
    source.unlink()
    mark.unlink(missing_ok=True)


def npz(file: Path, mark: Path) -> None:
    with file.open("wb") as stream:
        np.savez(stream, features=np.array([attacks(mark)], dtype=object), logits=np.array(attacks(mark), dtype=object))


def npy(file: Path, mark: Path) -> None:
    with file.open("wb") as stream:
        np.save(stream, np.array(attacks(mark), dtype=object))


def zip_slip(file: Path, mark: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"../{mark.name}", b"x")
        archive.writestr(str(mark), b"x")


def bad_header(file: Path, mark: Path) -> None:
    """A safetensors file whose header declares 2^60 bytes, in a list that no file holds."""
    header = json.dumps({"ctx": {"dtype": "F32", "shape": [2**29, 2**29], "data_offsets": [0, 2**60]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)


def endless_header(file: Path, mark: Path) -> None:
    file.write_bytes(b"\xff" * 7 + b"\x7f" + b"{")


MAKERS = [torch_zip, torch_legacy, torch_tar, bare_pickle, torchscript, npz, npy, zip_slip, bad_header, endless_header]


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "mark"


def test_the_archive_is_malicious(tmp_path, mark):
    """torch.jit.load runs it: without this, a test that finds no mark would show nothing."""
    torchscript(tmp_path / "evil.pt", mark)
    mark.write_bytes(b"    ")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.load(tmp_path / "evil.pt")
    assert mark.read_bytes() == b"\x07" * 4


def weights_file(file: Path) -> None:
    cots.load(f"tiny-clip/{file}")


def open_clip_folder(file: Path) -> None:
    folder = file.parent / "folder"
    folder.mkdir(exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": CLIP_CFG, "preprocess_cfg": {}}))
    name = "open_clip_model.safetensors" if file.suffix == ".safetensors" else "open_clip_pytorch_model.bin"
    file.rename(folder / name)
    cots.load(f"local-dir:{folder}")


def transformers_folder(file: Path) -> None:
    folder = file.parent / "folder"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "clip"}))
    file.rename(folder / ("model.safetensors" if file.suffix == ".safetensors" else "pytorch_model.bin"))
    cots.load(str(folder))


def logits_file(file: Path) -> None:
    main_refuses("calibrate", str(file), "--out", str(file.with_name(f"out{file.suffix}")))


def features_file(file: Path) -> None:
    open_dataset(file)


def main_refuses(*words: str) -> None:
    """Raise the error that the command ends with, which must be one line."""
    code, output = run_main(*words)
    assert code == 1
    assert output.count("\n") == 1, output
    raise cots.InputError(output)


def run_main(*words: str) -> tuple[object, str]:
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cots", *words])
        patch.setattr(sys, "stderr", stream)
        with pytest.raises(SystemExit) as stopped:
            main()
    return stopped.value.code, stream.getvalue()


LOADERS = {
    weights_file: (".pt", ".bin", ".safetensors", ".npz", ".npy"),
    open_clip_folder: (".bin", ".safetensors"),
    transformers_folder: (".bin", ".safetensors"),
    read_context: (".pth.tar-50", ".safetensors"),
    logits_file: (".npz", ".safetensors"),
    features_file: (".npz", ".safetensors"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # open_clip leaves .npz files open
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__name__)
def test_no_file_leaves_a_mark(loader, maker, tmp_path, mark, monkeypatch, capfd):
    add_architecture(CLIP_CFG, tmp_path, monkeypatch)
    for ending in LOADERS[loader]:
        file = tmp_path / f"evil{ending}"
        maker(file, mark)
        with pytest.raises(cots.CotsError, match=REMEDIES) as caught:
            loader(file)
        assert not mark.exists()
        assert "\x1b" not in str(caught.value)
    del caught
    gc.collect()
    assert "Traceback" not in capfd.readouterr().err


def test_weights_are_read_without_what_else_is_in_the_file(tmp_path, mark, monkeypatch):
    """A valid archive with a submodule that would execute: the weights are read, and nothing runs."""
    add_architecture(CLIP_CFG, tmp_path, monkeypatch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = open_clip.CLIP(**CLIP_CFG).state_dict()
    file = tmp_path / "weights.pt"
    torch.save({"state_dict": state, "scheduler": attacks(mark)}, file)
    loaded = cots.load(f"tiny-clip/{file}").model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    assert not mark.exists()


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_the_command_ends_in_one_line(maker, tmp_path, mark, monkeypatch):
    add_architecture(CLIP_CFG, tmp_path, monkeypatch)
    (tmp_path / "photo.jpg").write_bytes(jpeg())
    maker(tmp_path / "evil.pt", mark)
    words = ("predict", str(tmp_path / "photo.jpg"), "--classes", "a,b", "--model", f"tiny-clip/{tmp_path}/evil.pt")
    code, output = run_main(*words)
    assert code == 1
    assert output.count("\n") == 1
    assert output.startswith("cots: Could not load tiny-clip/")
    assert ". Pass a safetensors file" in output
    assert not mark.exists()


def test_names_in_a_file_cannot_control_the_terminal(tmp_path, monkeypatch):
    add_architecture(CLIP_CFG, tmp_path, monkeypatch)
    save_file({"\x1b]0;owned\x07\x1b[2J\n": torch.ones(1)}, tmp_path / "a.safetensors")
    with pytest.raises(cots.BackboneError, match="Could not load") as caught:
        cots.load(f"tiny-clip/{tmp_path}/a.safetensors")
    assert str(caught.value).isprintable()


def test_a_shard_reads_no_other_file(tmp_path, mark):
    """Members outside of the folder are samples by their names alone; links and devices are ignored."""
    secret = tmp_path / "secret"
    secret.write_text("cat")
    file = tmp_path / "shard.tar"
    with tarfile.open(file, "w") as tar:
        write_member(tar, f"../{mark.name}/a.jpg", jpeg())
        write_member(tar, f"../{mark.name}/a.cls", b"cat")
        for kind, name in ((tarfile.SYMTYPE, "b.cls"), (tarfile.LNKTYPE, "c.cls"), (tarfile.CHRTYPE, "d.cls")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(secret)
            tar.addfile(member)
            write_member(tar, name.replace("cls", "jpg"), jpeg())
    with pytest.raises(cots.InputError, match=r"sample 'b' has no label\. Add b\.cls"):
        open_dataset(file)
    assert not mark.exists()
    assert not mark.parent.with_name(mark.name).exists()


@pytest.mark.parametrize("escaped", [False, True])
def test_a_config_cannot_ask_for_code(tmp_path, escaped):
    """open_clip would pass trust_remote_code to transformers, which runs the module that the folder names."""
    folder = tmp_path / "model"
    folder.mkdir()
    text = {**CLIP_CFG["text_cfg"], "hf_tokenizer_name": "x", "tokenizer_kwargs": {"trust_remote_code": True}}
    config = json.dumps({"model_cfg": {**CLIP_CFG, "text_cfg": text}, "preprocess_cfg": {}})
    config = config.replace("trust_", "\\u0074rust_") if escaped else config
    (folder / "open_clip_config.json").write_text(config)
    save_file({"a": torch.ones(1)}, folder / "open_clip_model.safetensors")
    with pytest.raises(cots.BackboneError, match=r"asks to run code .* Remove the setting and pass tokenizer="):
        cots.load(f"local-dir:{folder}")


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"model_cfg": 3}', '{"model_cfg": {"embed_dim": "x"}}', "null", "\x00"]
)
def test_a_config_of_anything_else_is_refused(tmp_path, content):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(content)
    save_file({"a": torch.ones(1)}, folder / "open_clip_model.safetensors")
    with pytest.raises(cots.BackboneError, match=r"cannot be read|needs model_cfg|Could not load"):
        cots.load(f"local-dir:{folder}")
    (folder / "open_clip_config.json").rename(folder / "config.json")
    with pytest.raises(cots.BackboneError, match=r"cannot be read|has no weights"):
        cots.load(str(folder))
