"""open_dataset: protocols, folders, CSV lists, tar files and view features as a Dataset."""

import csv
import glob
import hashlib
import itertools
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._arrays import check_finite, read_arrays
from .._errors import InputError, unknown_name
from .._folders import is_image, nearest_folder, refuse_url, subfolders
from ..classes import ClassFile, clean_names
from ..metrics.inputs import class_labels
from ._dataset import Dataset, Sample, TarSlice, ViewFeatures
from ._files import expand, index_labels
from ._protocols import find_protocol, is_protocol, open_folder, open_protocol, own_name, require_images
from ._tables import PREFIX, open_tables

_LABEL_KEYS = ("label", "cls", "class", "class_name")
ARRAYS = ("features", "labels", "text_features", "logit_scale")
TEXTS = ("ids", "classes")
_WRITE = "Write it with numpy.savez(file, features=..., labels=..., classes=[...])."
_ROWS = 256  # samples checked at a time, because the file may be larger than memory
_FORMS = (
    "a folder with one subfolder per class, shards such as data-{0000..0003}.tar, a CSV with columns path,label, "
    "hf:FOLDER of Hugging Face, or view features in .safetensors or .npz"
)


def open_dataset(
    spec: str | os.PathLike[str], root: str | os.PathLike[str] | None = None, classes: Any = None
) -> Dataset:
    """Open one of the fifteen protocols by name, or your own data.

        open_dataset("pets", root="data")                          # data/oxford_pets, in CoOp's layout
        open_dataset("photos/")                                    # one folder per class
        open_dataset("shards-{0000..0003}.tar", classes="names.txt")
        open_dataset("list.csv")                                   # header path,label
        open_dataset("views.npz")                                  # view features in place of images
        open_dataset("hf:folder")                                  # Hugging Face: Parquet or save_to_disk
        open_dataset("hf:org/name:test")                           # the same from the hub

    spec: the name or alias of a protocol, which needs `root`, or a path (absolute, or relative to the current folder or
    to `root`). A bare protocol name always means the protocol; write ./pets for your own folder of that name.
    classes: names, a known list, or a file: one name per line, a JSON list, or a JSON object that maps folders (or old
    names) to names.
    """
    text = os.fspath(spec)
    refuse_url(text)
    if not text:
        raise InputError(f"the dataset's name is empty. Pass a protocol such as 'pets', or {_FORMS}.")
    if isinstance(spec, str) and is_protocol(text):
        protocol = find_protocol(text)
        if root is None:
            raise InputError(
                f"{text!r} is the protocol {protocol.title}: pass root, the folder that contains {protocol.folder}/. "
                f"For your own folder of that name, write {os.path.join('.', text)!r}."
            )
        return open_protocol(protocol, Path(root), classes)
    base = None if root is None else Path(root)
    if text.startswith(PREFIX):
        return open_tables(text, base, classes)
    if text.lower().endswith((".tar", ".tar.gz", ".tgz")):  # open_tar refuses compressed ones, with a remedy
        if base is not None and not any(map(os.path.exists, expand(text))):
            below = os.path.join(base, text)  # `text` itself if it is absolute
            if any(map(os.path.exists, expand(below))):
                text = below
        return open_tar(text, classes)
    path = Path(text).expanduser()
    if not path.exists() and base is not None and (base / path).exists():
        path = base / path
    if path.is_dir():
        if any(path.glob("*.tar")) and not subfolders(path):
            return open_tar(os.path.join(glob.escape(str(path)), "*.tar"), classes)
        return open_folder(path, classes)
    if path.is_file():
        if path.suffix.lower() == ".csv":
            return open_csv(path, base, classes)
        if path.suffix.lower() in (".safetensors", ".npz"):
            return open_features(path, classes)
        raise InputError(f"dataset {text!r} is a file of an unknown kind. Pass {_FORMS}.")
    if isinstance(spec, str) and os.path.basename(text) == text and not path.suffix:
        find_protocol(text)  # raises, and suggests the nearest name
    if path.suffix.lower() in (".csv", ".safetensors", ".npz"):
        raise InputError(f"{text}: no such file.")
    near = nearest_folder(path)
    raise InputError(f"dataset {text!r} does not exist: {near}. Pass a protocol such as 'pets', or {_FORMS}.")


def open_csv(file: Path, root: Path | None = None, classes: Any = None) -> Dataset:
    """A list with the header path,label; other columns are ignored. Labels are names, or positions in the class file.

    Relative paths start at the CSV's folder, else at `root`. Without a class file, the sorted labels are the classes.
    """
    what, base = f"CSV {str(file)!r}", file.parent
    lines, paths, labels = zip(*csv_rows(file, what), strict=True)
    if root is not None and (root / paths[0]).exists() and not (base / paths[0]).exists():
        base = root
    where = [f"line {line}" for line in lines]
    indices, names, names_from = index_labels(labels, ClassFile.find(classes, file.parent), what, where)
    samples = []
    for path, index in zip(paths, indices, strict=True):
        samples.append(Sample(_identity(path, base), index, os.path.join(base, path)))
    require_images(samples, what, f"Relative paths start at {str(base)!r}.")
    name = own_name(file.resolve().parent.name, file.stem)
    return Dataset(name=name, title=name, classes=names, samples=tuple(samples), where=str(file), names_from=names_from)


def open_features(file: Path, classes: Any = None) -> Dataset:
    """View features without images: arrays features (N,V,D) and labels (N,), strings classes (K) and optionally ids.

    With text_features (K,D) and logit_scale, no model is needed. Strings are arrays in a .npz file and JSON lists in
    the metadata of a .safetensors file.
    """
    arrays, texts = read_arrays(file, TEXTS)
    for name in arrays:
        if name not in ARRAYS:
            raise unknown_name(f"array in {file}:", name, (*ARRAYS, *TEXTS))
    for name in ("features", "labels"):
        if name not in arrays:
            raise InputError(f"{file} has no array {name!r}. {_WRITE}")
    values = arrays["features"]
    if values.ndim != 3 or 0 in values.shape or not values.is_floating_point():
        raise InputError(
            f"features in {file} must be floats (N,V,D), samples by views by width, the weak view first, not "
            f"{values.dtype} {tuple(values.shape)}."
        )
    _check_vectors("features", values)
    names_from = str(file)
    if classes is not None:
        given = ClassFile.of(classes)
        classes, names_from = given.names, given.origin
    elif "classes" in texts:
        classes = clean_names(texts["classes"])
    else:
        raise InputError(f"{file} has no class names. Add classes to it, or pass --classes.")
    labels = class_labels(arrays["labels"], len(classes))
    ids = texts.get("ids", tuple(map(str, range(len(values)))))
    for name, count in (("labels", len(labels)), ("ids", len(ids))):
        if count != len(values):
            raise InputError(f"{file} has {count} {name} for {len(values)} samples; it needs one per sample.")
    if (most := Counter(ids).most_common(1)[0])[1] > 1:
        raise InputError(f"{file} has the id {most[0]!r} twice; ids must differ.")
    text, scale = _text_side(arrays, file, len(classes), values.shape[2])
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    samples = tuple(Sample(id, int(label), "") for id, label in zip(ids, labels, strict=True))
    name = own_name(file.resolve().parent.name, file.stem)
    return Dataset(
        name=name, title=name, classes=classes, samples=samples, where=str(file), names_from=names_from,
        features=ViewFeatures(values, text, scale, digest),
    )  # fmt: skip


def _text_side(arrays: dict[str, Tensor], file: Path, classes: int, width: int) -> tuple[Tensor | None, float | None]:
    if ("text_features" in arrays) != ("logit_scale" in arrays):
        raise InputError(f"{file} needs both text_features and logit_scale, such as 100 for CLIP, or neither.")
    if "text_features" not in arrays:
        return None, None
    text, scale = arrays["text_features"], arrays["logit_scale"]
    if tuple(text.shape) != (classes, width):
        raise InputError(
            f"text_features in {file} must be ({classes}, {width}), classes by width, not {tuple(text.shape)}."
        )
    _check_vectors("text_features", text[None])
    if scale.numel() != 1 or not 0 < float(scale) < 1e6:
        raise InputError(f"logit_scale in {file} must be one positive number, such as 100, not {scale.tolist()}.")
    return text.clone(), float(scale)


def _check_vectors(name: str, values: Tensor) -> None:
    """Refuse values that are not finite, and vectors that are not normalised to half precision."""
    for start in range(0, len(values), _ROWS):
        part = values[start : start + _ROWS].float()
        check_finite(part, f"{name}[{start}:{start + len(part)}]")
        norm = torch.linalg.vector_norm(part, dim=-1)
        worst = int((norm - 1).abs().flatten().argmax())
        if abs((length := float(norm.flatten()[worst])) - 1) > 0.02:
            row = start + worst // norm.shape[1]
            raise InputError(
                f"{name} must be L2-normalised, but row {row} has a vector of length {length:.4g}. "
                "Divide by the norm of the last axis."
            )


def _identity(path: str, base: Path) -> str:
    """An id that does not change when the whole folder moves, even if the list has absolute paths."""
    if os.path.isabs(path) and Path(path).is_relative_to(base.absolute()):
        path = os.path.relpath(path, base)
    return os.path.normpath(path).replace(os.sep, "/")


def csv_rows(file: Path, what: str, empty_labels: bool = False) -> list[tuple[int, str, str]]:
    """(line number, path, label) of every row."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            header = [cell.strip().casefold() for cell in next(reader, [])]
            if "path" not in header or "label" not in header:
                shown = ",".join(header)[:80] or "empty"
                raise InputError(f"{what}: the first line must be the header path,label, but is {shown!r}.")
            path_at, label_at = header.index("path"), header.index("label")
            rows = []
            for row in reader:
                if not "".join(row).strip():
                    continue
                whole = len(row) > max(path_at, label_at) and row[path_at].strip()
                if not whole or not (empty_labels or row[label_at].strip()):
                    raise InputError(f"{what}, line {reader.line_num}: path or label is missing in {','.join(row)!r}.")
                rows.append((reader.line_num, row[path_at].strip(), row[label_at].strip()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{what} cannot be read ({error}). It must be UTF-8 text with commas.") from error
    if not rows:
        raise InputError(f"{what} lists no images. Write one path,label per line below the header.")
    return rows


def open_tar(pattern: str, classes: Any = None) -> Dataset:
    """Webdataset shards: consecutive members with the same key are a sample, such as a/17.jpg and a/17.cls.

    The label is in KEY.cls (name or number), in KEY.json under label, cls, class or class_name, or is the folder of the
    key. The id is the key, or shard/key if shards repeat keys.
    """
    what = f"shards {pattern!r}"
    files = expand(pattern)
    if not files:
        raise InputError(f"{what}: no such file. Check the pattern, for example data-{{0000..0003}}.tar or data-*.tar.")
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise InputError(
            f"{what}: {len(missing)} of {len(files)} files do not exist, the first {missing[0]!r}. Check the pattern."
        )
    keys, images, labels, where, ids = [], [], [], [], []
    same_names = len(set(map(os.path.basename, files))) < len(files)
    for file in files:
        shard = file if same_names else os.path.basename(file)
        for key, image, label in _index(file):
            keys.append(key)
            images.append(image)
            labels.append(label)
            where.append(f"{os.path.basename(file)}, {key!r}")
            ids.append(f"{shard.removesuffix('.tar')}/{key}")
    if not keys:
        raise InputError(f"{what}: no image in {len(files)} file(s). A sample is KEY.jpg (png, webp) with KEY.cls.")
    if len(set(keys)) == len(keys):
        ids = keys
    folder = Path(files[0]).resolve().parent
    class_file = ClassFile.find(classes, folder, folder.parent)
    indices, classes, names_from = index_labels(labels, class_file, what, where)
    samples = tuple(map(Sample, ids, indices, images))
    stem = re.sub(r"\{.*?\}|[*?\[\]]+", "", os.path.basename(pattern)).removesuffix(".tar").strip("-_.")
    name = own_name(folder.name, stem) if stem else own_name(folder.parent.name, folder.name)
    return Dataset(name=name, title=name, classes=classes, samples=samples, where=pattern, names_from=names_from)


def _index(file: str) -> Iterator[tuple[str, TarSlice, str]]:
    """(key, position of the image, label as written) of each sample in a shard."""
    for key, members in itertools.groupby(_members(file), key=lambda member: member[0]):
        endings, images, texts = set(), [], {}
        for _, ending, position, text in members:
            if ending in endings:
                raise InputError(f"tar file {file!r}: a sample has {key}.{ending} twice. Write the shard again.")
            endings.add(ending)
            if is_image(f"x.{ending}"):
                images.append(position)
            if text is not None:
                texts[ending] = text
        if images:
            yield key, images[0], _label(file, key, texts)


def _members(file: str) -> Iterator[tuple[str, str, TarSlice, bytes | None]]:
    """(key, ending, position, content if it may be a label) of each file in a shard."""
    try:
        # "r:" refuses compressed files, whose members have no offset.
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                stem, dot, ending = name.partition(".")
                if not member.isreg() or member.issparse() or not stem or not dot:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                text, content = None, None
                if ending.lower() in ("cls", "json"):
                    content = tar.extractfile(member)
                if content is not None:
                    text = content.read()
                yield key, ending.lower(), TarSlice(file, member.offset_data, member.size), text
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(
            f"tar file {file!r} cannot be read ({error}). It is compressed, truncated or not a tar file: unpack "
            ".tar.gz to .tar, or download it again."
        ) from error


def _label(file: str, key: str, texts: dict[str, bytes]) -> str:
    where = f"tar file {file!r}, sample {key!r}"
    try:
        if "cls" in texts:
            text = texts["cls"].decode().strip()
        elif "json" in texts:
            content = json.loads(texts["json"])
            name = next((k for k in _LABEL_KEYS if isinstance(content, dict) and k in content), None)
            if name is None:
                raise InputError(f"{where}: its .json has none of {', '.join(_LABEL_KEYS)}. Add one, or a .cls file.")
            text = str(content[name]).strip()
        else:
            text = key.rpartition("/")[0].rpartition("/")[2]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: its label cannot be read ({error}). Write the shard again.") from error
    if not text:
        raise InputError(f"{where} has no label. Add {key}.cls, or put it in a folder named after its class.")
    return text
