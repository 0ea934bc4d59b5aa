"""Arrays by name in .npz and .safetensors files."""

import json
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ._errors import InputError

# What numpy raises for files that are damaged, encrypted, pickled, not numeric, or compressed in an unknown way.
_UNREADABLE = (ValueError, TypeError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_arrays(file: Path, texts: Collection[str] = ()) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """The numeric arrays of a file, and those of `texts` that it has: arrays of strings, or JSON lists in the metadata.

    The arrays of a .safetensors file are memory-mapped.
    """
    name, found, words = str(file), {}, {}
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                metadata = opened.metadata() or {}
                for name in set(texts) & metadata.keys():
                    words[name] = tuple(map(str, json.loads(metadata[name])))
                return {name: opened.get_tensor(name) for name in opened.keys()}, words  # noqa: SIM118
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            for name in archive.files:
                array = np.asarray(archive[name])
                if name in texts and array.dtype.kind == "U":
                    words[name] = tuple(map(str, array.ravel()))
                elif array.dtype.kind not in "fiu":
                    raise TypeError(f"it has type {array.dtype}")
                else:
                    found[name] = torch.from_numpy(array)
    except (SafetensorError, *_UNREADABLE) as error:
        raise InputError(
            f"{name} cannot be read ({error}): write numeric arrays with numpy.savez or safetensors."
        ) from None
    return found, words
