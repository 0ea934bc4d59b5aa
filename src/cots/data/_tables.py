"""Datasets of Hugging Face: Parquet files, and the Arrow files of `save_to_disk`, from a folder or the hub.

The package `datasets` is not needed, and nothing in a dataset is executed: its files are columns of bytes and labels,
which pyarrow reads; `cots.read_image` decodes the images. The types of the columns, which `datasets` writes into each
file, say which column is the image and which the label, and name the classes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._errors import InputError, unknown_name
from .._folders import shorten
from ..classes import ClassFile, clean_names
from ..exchange import require_pyarrow
from ._cells import TableCell, batches, is_parquet, open_stream
from ._dataset import Dataset, Sample
from ._fetch import Source, hub_source
from ._files import index_labels
from ._protocols import own_name

PREFIX = "hf:"
_LABELS = ("label", "labels", "cls", "class", "class_name", "target")
_IMAGES = ("image", "img", "jpg", "png")
_GROUP_BYTES = 2**30  # of the images in a row group, which is read as a whole
_REWRITE = "Write it again with smaller row groups: datasets.Dataset.to_parquet(file, batch_size=100)."


class _Layout(NamedTuple):
    """What a file says about itself: the columns of images and labels, and the classes, if it names them."""

    image: str
    label: str
    classes: tuple[str, ...] | None


def open_tables(spec: str, root: Path | None = None, classes: Any = None) -> Dataset:
    """The dataset `hf:WHERE`, `hf:WHERE:SPLIT`, `hf:WHERE:CONFIG/SPLIT` or `hf:WHERE:SPLIT:LABEL`.

    WHERE: a folder, absolute or relative to the current folder or to `root`, or a name on the hub. SPLIT: by default
    the only one, else `test`. LABEL: the column of the labels, if there are several. Ids are SPLIT/ROW.
    """
    where, split, label = _parse(spec, root)
    what = f"dataset {spec!r}"
    local = next((folder for folder in _places(where, root) if folder.exists()), None)
    source = hub_source(where) if local is None else _local_source(local)
    groups = _grouped(source.names)
    config, part = key = _chosen(groups, split, what)
    files = list(map(source.path, groups[key]))
    layout = _layout(files[0], label, what)
    labels: list[Any] = []
    cells: list[TableCell] = []
    for file in files:
        for group, values in enumerate(_label_groups(file, layout, what)):
            labels += values
            cells += [TableCell(str(file), layout.image, group, row) for row in range(len(values))]
    if not labels:
        raise InputError(f"{what} has no rows. Choose another split.")
    folders = () if local is None else (local if local.is_dir() else local.parent,)
    indices, names_of, names_from = _indexed(labels, layout, classes, folders, what)
    samples = []
    for number, (index, cell) in enumerate(zip(indices, cells, strict=True)):
        samples.append(Sample(f"{part or 'row'}/{number}", index, cell))
    base = (local or Path(where)).resolve()
    name = base.stem if base.is_file() else base.name
    if len(groups) > 1:
        name = "-".join(word for word in (name, config, part) if word)
    name = own_name(base.parent.name, name)
    return Dataset(
        name=name, title=name, classes=names_of, samples=tuple(samples), where=source.where, names_from=names_from
    )


def _parse(spec: str, root: Path | None) -> tuple[str, str, str]:
    """WHERE, SPLIT and LABEL; a folder may have colons in its name."""
    text = spec.removeprefix(PREFIX)
    words = text.split(":")
    for count in range(len(words), 0, -1):
        where = ":".join(words[:count])
        if where and any(folder.exists() for folder in _places(where, root)):
            break
    else:
        where, count = words[0], 1
    rest = words[count:]
    if not where or len(rest) > 2:
        raise InputError(f"{spec!r} must be hf:FOLDER or hf:ORG/NAME, then :SPLIT and :LABEL if there are several.")
    split, label = (*rest, "", "")[:2]
    return where, split, label


def _places(where: str, root: Path | None) -> list[Path]:
    path = Path(where).expanduser()
    return [path] if root is None else [path, root / path]


def _local_source(local: Path) -> Source:
    """A file, or the data files of a folder; of Arrow only those that its state.json lists: others are caches."""
    if local.is_file():
        return Source([local.name], lambda name: local, str(local))
    names = [file.relative_to(local).as_posix() for file in sorted(local.rglob("*.parquet"))]
    for state in sorted(local.rglob("state.json")):
        try:
            listed = json.loads(state.read_text(encoding="utf-8"))["_data_files"]
            files = [state.with_name(Path(str(one["filename"])).name) for one in listed]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        names += [file.relative_to(local).as_posix() for file in files]
    return Source(names, lambda name: local / name, str(local))


def _grouped(names: Sequence[str]) -> dict[tuple[str, str], list[str]]:
    """Files by config and split, as `datasets` and the hub name them.

    data/test-00000-of-00002.parquet, plain_text/test-00000-of-00001.parquet, default/test/0000.parquet,
    test/data-00000-of-00001.arrow
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        *folders, file = name.split("/")
        folders = [folder for folder in folders if folder != "data"]
        stem = re.sub(r"[-_.]?\d+(-of-\d+)?(-[0-9a-f]{8,})?$", "", file.rpartition(".")[0])
        if stem in ("", "data", "part"):
            stem = folders.pop() if folders else ""
        groups.setdefault(("/".join(folders), stem), []).append(name)
    return groups


def _chosen(groups: Mapping[tuple[str, str], list[str]], split: str, what: str) -> tuple[str, str]:
    """The split that was asked for, else the only one, else `test`."""
    if not groups:
        raise InputError(f"{what} has no Parquet files, nor Arrow files of save_to_disk. Check the folder.")
    shown = {"/".join(word for word in key if word): key for key in groups}
    if split:
        fits = [key for text, key in shown.items() if split in (text, key[1])]
    else:
        fits = list(groups) if len(groups) == 1 else [key for key in groups if key[1] == "test"]
    if len(fits) == 1:
        return fits[0]
    if split and not fits:
        raise unknown_name(f"split of {what}:", split, [text for text in shown if text])
    known = shorten(sorted(text for text in shown if text), 12)
    raise InputError(f"{what} has several splits ({known}). Choose one, such as {PREFIX}FOLDER:{sorted(shown)[0]}.")


def _layout(file: Path, label: str, what: str) -> _Layout:
    """The columns to read; InputError if they are not clear."""
    arrow = require_pyarrow()
    try:
        schema = arrow.parquet.read_schema(file) if is_parquet(file) else open_stream(file).schema
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise _unreadable(file, error) from error
    features = _features(schema.metadata)
    images = [name for name in schema.names if features.get(name, {}).get("_type") == "Image"]
    images = images or [field.name for field in schema if _holds_bytes(field.type)]
    image = _only(images, _IMAGES, f"{what} has no column of images")
    labels = [name for name in schema.names if features.get(name, {}).get("_type") == "ClassLabel"]
    labels = labels or [name for name in schema.names if name in _LABELS]
    if label:
        if label not in schema.names:
            raise unknown_name(f"column of {what}:", label, schema.names)
        labels = [label]
    chosen = _only(labels, _LABELS, f"{what} has no column of labels")
    names = features.get(chosen, {}).get("names")
    return _Layout(image, chosen, clean_names(names, f"the classes of {what}") if names else None)


def _features(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """The types of the columns that `datasets` has written into a file; empty without."""
    try:
        found = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {str(name): kind for name, kind in found.items() if isinstance(kind, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _holds_bytes(kind: Any) -> bool:
    types = require_pyarrow().types
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return types.is_binary(kind) or types.is_large_binary(kind)


def _only(found: Sequence[str], usual: Sequence[str], missing: str) -> str:
    """The only name, else the first usual one."""
    if len(found) == 1:
        return found[0]
    for name in usual:
        if name in found:
            return name
    if not found:
        raise InputError(f"{missing}. Name them {usual[0]!r}, or choose the labels with hf:FOLDER:SPLIT:LABEL.")
    raise InputError(f"{missing.replace('no column', 'several columns')}: {', '.join(found)}. Choose one column of "
                     "labels with hf:FOLDER:SPLIT:LABEL, or keep one column of images.")  # fmt: skip


def _label_groups(file: Path, layout: _Layout, what: str) -> Iterator[list[Any]]:
    """The labels of each row group of a file."""
    arrow = require_pyarrow()
    try:
        if not is_parquet(file):
            for batch in batches(str(file)):
                yield batch.column(layout.label).to_pylist()
            return
        opened = arrow.parquet.ParquetFile(file)
        for group in range(opened.metadata.num_row_groups):
            _check_size(opened.metadata.row_group(group), layout.image, file)
            yield opened.read_row_group(group, columns=[layout.label], use_threads=False)[layout.label].to_pylist()
    except (OSError, ValueError, KeyError, arrow.ArrowException) as error:
        if isinstance(error, InputError):
            raise
        raise _unreadable(file, error) from error


def _check_size(group: Any, image: str, file: Path) -> None:
    size = 0
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema.split(".")[0] == image:
            size += column.total_uncompressed_size
    if size > _GROUP_BYTES:
        raise InputError(f"{str(file)!r} has a row group with {size / 2**20:,.0f} MiB of images. {_REWRITE}")


def _indexed(
    labels: Sequence[Any], layout: _Layout, classes: Any, folders: Sequence[Path], what: str
) -> tuple[list[int], tuple[str, ...], str]:
    """Class indices, class names and where these come from."""
    given = ClassFile.find(classes, *folders)
    numbers = all(isinstance(value, int) and not isinstance(value, bool) for value in labels)
    if numbers and min(labels) < 0:
        raise InputError(f"{what} has samples without a label ({min(labels)}). Choose a split with labels.")
    if layout.classes is not None and numbers:
        names, names_from = layout.classes, f"the column {layout.label!r}"
        if given is not None:
            names, names_from = given.names_for(names, "classes of the dataset"), given.origin
        if max(labels) >= len(names):
            raise InputError(f"{what} has the label {max(labels)}, but {len(names)} classes. Write the dataset again.")
        return list(labels), names, names_from
    texts = ["" if value is None else str(value) for value in labels]
    return index_labels(texts, given, what, (f"row {row}" for row in range(len(texts))))


def _unreadable(file: Path, error: Exception) -> InputError:
    return InputError(f"{str(file)!r} cannot be read ({str(error)[:200]}). Download it again.")
