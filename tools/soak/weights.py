"""Files that execute something where a loader unpickles, scripts or unpacks them."""

import io
import itertools
import json
import os
import pickle
import runpy
import tarfile
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import cots
from cots.data import open_dataset

from .checks import ENDLESS, Result, in_child, run_cots, unexpected

SCRIPT = """
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
        self.written = torch.from_file(MARK, True, 4, dtype=torch.uint8).fill_(7)
"""


class Call:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def _script(file: Path, mark: Path) -> None:
    source = file.with_name("evil_code.py")
    source.write_text(SCRIPT.replace("MARK", repr(str(mark))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(runpy.run_path(str(source), run_name="evil")["Evil"]()).save(file)
    mark.unlink(missing_ok=True)


def _pickle(file: Path, mark: Path) -> None:
    torch.save({"state_dict": {"x": Call(mark)}}, file)


def _old_pickle(file: Path, mark: Path) -> None:
    torch.save({"x": torch.ones(2), "y": Call(mark)}, file, _use_new_zipfile_serialization=False)


def _bare_pickle(file: Path, mark: Path) -> None:
    file.write_bytes(pickle.dumps(Call(mark)))


def _objects(file: Path, mark: Path) -> None:
    with file.open("wb") as stream:
        np.savez(stream, features=np.array([Call(mark)], dtype=object), logits=np.array([Call(mark)], dtype=object))


def _archive(file: Path, mark: Path) -> None:
    with tarfile.open(file, "w") as tar:
        for name, data in ((f"../{mark.name}", b"x"), ("0.jpg", b"x"), ("0.pyd", pickle.dumps(Call(mark)))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


MAKERS = {
    "TorchScript": _script, "pickle": _pickle, "old pickle": _old_pickle, "bare pickle": _bare_pickle,
    "numpy objects": _objects, "tar": _archive,
}  # fmt: skip


def _weights(file: Path) -> None:
    cots.load(f"RN50/{file}")


def _open_clip_folder(file: Path) -> None:
    folder = file.with_name("open_clip")
    folder.mkdir()
    sizes = {"image_size": 8, "layers": 1, "width": 64, "patch_size": 4}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1}
    config = {"model_cfg": {"embed_dim": 8, "vision_cfg": sizes, "text_cfg": text}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    file.rename(folder / "open_clip_pytorch_model.bin")
    cots.load(f"local-dir:{folder}")


def _transformers_folder(file: Path) -> None:
    folder = file.with_name("transformers")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "clip"}))
    file.rename(folder / "pytorch_model.bin")
    cots.load(str(folder))


def _context(file: Path) -> None:
    cots.Task(cots.load("mini"), ["cat", "dog"], context=file)


def _features(file: Path) -> None:
    open_dataset(file)


LOADERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights": (_weights, "evil.pt"),
    "open_clip folder": (_open_clip_folder, "evil.bin"),
    "transformers folder": (_transformers_folder, "evil.bin"),
    "context": (_context, "model.pth.tar-50"),
    "features": (_features, "evil.npz"),
    "photos": (_features, "evil.tar"),
}


def load_malicious_files(until: float = ENDLESS) -> Result:
    """Every loader refuses every malicious file with an error of cots, and none of them leaves a mark."""
    tried, wrong = in_child(_try_all, until - time.monotonic())
    problems = Counter[str](wrong)
    with tempfile.TemporaryDirectory() as name:  # what the user sees
        file, photo = Path(name) / "evil.pt", Path(name) / "photo.jpg"
        _pickle(file, Path(name) / "mark")
        photo.touch()
        ended = run_cots("predict", photo, "--classes", "a,b", "--model", f"RN50/{file}")
        if "Traceback" in ended.stderr or not ended.returncode:
            problems["predict: traceback"] += 1
    return Result("malicious files", tried, problems, f"of {len(LOADERS) * len(MAKERS)}")


def _try_all(seconds: float) -> tuple[int, list[str]]:
    """Each loader with each file, in a process that a file may damage; the number of tries, and the problems."""
    until, tried, problems = time.monotonic() + seconds, 0, []
    for (loader, (load, ending)), (kind, make) in itertools.product(LOADERS.items(), MAKERS.items()):
        if tried and time.monotonic() > until:
            break
        tried += 1
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            inner = folder / "inner"  # an archive could unpack next to it
            inner.mkdir()
            mark = folder / "mark"
            make(inner / ending, mark)
            error = unexpected(lambda load=load, file=inner / ending: load(file))
            if mark.exists():
                problems.append(f"{loader}: {kind} left a mark")
            if error:
                problems.append(f"{loader}: {kind}: {error}")
    return tried, problems
