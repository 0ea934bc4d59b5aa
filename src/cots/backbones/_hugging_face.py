"""`CLIPModel` and `SiglipModel` of Hugging Face transformers, converted to open_clip's architecture.

A folder needs config.json and weights; transformers itself is imported only for tokenizers other than OpenAI's.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import open_clip
from torch import Tensor, nn

from .._checkpoints import one_line, read_weights
from .._errors import BackboneError, InputError, install_extra
from ._backbone import Tokenizer
from ._convert import CONFIG, State, convert

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
TOKENIZERS = ("vocab.json", "tokenizer.json", "spiece.model", "tokenizer.model")
_INTERPOLATION = {2: "bilinear", 3: "bicubic"}  # by PIL's number
_SPECIAL = 2  # start and end of text, which have the highest ids of OpenAI's tokenizer and differ in name


def parts_of_folder(
    folder: Path, tokenizer: Any, quick_gelu: bool | None
) -> tuple[nn.Module, Tokenizer, Mapping[str, Any]]:
    """Model, tokenizer and preprocessing from a folder written by `save_pretrained` or downloaded from the hub."""
    config = read_json(folder / CONFIG)
    files = sorted(folder.glob(WEIGHTS[0])) or sorted(folder.glob(WEIGHTS[1]))
    if not files:
        raise BackboneError(f"{folder} has no weights. Put model.safetensors next to {CONFIG}.")
    state: State = {}
    for file in files:
        try:
            state |= read_weights(file)
        except ValueError as error:
            raise BackboneError(f"{file} cannot be read ({error}). Download or copy it again.") from None
    model = convert(config, state, str(folder), quick_gelu)
    return model, *_tokenizer_and_preprocessing(model, config, tokenizer, folder)


def parts_of_model(
    given: Any, tokenizer: Any, quick_gelu: bool | None
) -> tuple[str, tuple[nn.Module, Tokenizer, Mapping[str, Any]]]:
    """The name, and model, tokenizer and preprocessing, of a `CLIPModel` or `SiglipModel` in memory."""
    if not isinstance(given, nn.Module) or not hasattr(getattr(given, "config", None), "to_dict"):
        raise InputError(f"cots.load takes a name or a transformers model, not {type(given).__name__}.")
    config: dict[str, Any] = given.config.to_dict()  # type: ignore[operator, union-attr]
    source = str(config.get("_name_or_path") or "")
    name = source or type(given).__name__
    model = convert(config, given.state_dict(), name, quick_gelu)
    folder = Path(source) if source else None
    return name, (model, *_tokenizer_and_preprocessing(model, config, tokenizer, folder))


class FolderTokenizer:
    """A transformers tokenizer with open_clip's call: texts in, padded ids `(n, context_length)` out."""

    def __init__(self, tokenizer: Any, context_length: int) -> None:
        self.tokenizer, self.context_length = tokenizer, context_length

    def __call__(self, texts: Sequence[str] | str, context_length: int | None = None) -> Tensor:
        encoded = self.tokenizer(
            [texts] if isinstance(texts, str) else list(texts),
            padding="max_length",
            truncation=True,
            max_length=context_length or self.context_length,
            return_tensors="pt",
        )
        return encoded["input_ids"]


def _tokenizer_and_preprocessing(
    model: Any, config: Mapping[str, Any], given: Any, folder: Path | None
) -> tuple[Tokenizer, dict[str, Any]]:
    """Tokenizer and preprocessing from `given`, a tokenizer or processor of transformers, or else from the folder."""
    processor = getattr(given, "image_processor", None)
    if processor is not None:
        given, values = given.tokenizer, processor.to_dict()
    else:
        values = _json(folder, "preprocessor_config.json")
        values = values or _json(folder, "processor_config.json").get("image_processor") or {}
    if given is None:
        given = _find_tokenizer(folder, model.context_length)
    elif hasattr(given, "convert_tokens_to_ids"):
        given = FolderTokenizer(given, model.context_length)
    return given, preprocessing(values, config["model_type"], model.visual.image_size[0])


def preprocessing(values: Mapping[str, Any], kind: str, side: int) -> dict[str, Any]:
    """open_clip's preprocess_cfg from the settings of an image processor."""
    mean, std = (0.5,) * 3, (0.5,) * 3
    if kind == "clip":
        mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    size, crop = _size(values.get("size")) or side, _size(values.get("crop_size"))
    resample = values.get("resample") or 3
    square = {"height": side, "width": side}
    shortest = kind == "clip" if isinstance(size, int) else "shortest_edge" in size
    fits = size in (side, square, {"shortest_edge": side}) and (not shortest or crop in (None, side, square))
    if not fits or resample not in _INTERPOLATION:
        raise BackboneError(
            f"The image processor has size {size}, crop {crop} and PIL's filter {resample}; cots needs the model's "
            f"{side} x {side} and bilinear (2) or bicubic (3)."
        )
    return {
        "size": (side, side),
        "mode": "RGB",
        "mean": tuple(values.get("image_mean") or mean),
        "std": tuple(values.get("image_std") or std),
        "interpolation": _INTERPOLATION[resample],
        "resize_mode": "shortest" if shortest else "squash",
        "fill_color": 0,
    }


def _size(value: Any) -> Any:
    """A size as a number, or as a mapping of the entries that are set."""
    if value is None or isinstance(value, int):
        return value
    entries = value if isinstance(value, Mapping) else vars(value)
    return {name: entry for name, entry in entries.items() if entry is not None}


def _find_tokenizer(folder: Path | None, length: int) -> Tokenizer:
    if folder is None or not any((folder / name).is_file() for name in TOKENIZERS):
        where = f"{folder} has no tokenizer" if folder else "The model has no folder with a tokenizer"
        raise BackboneError(f"{where}. Pass a transformers processor or tokenizer to cots.load as tokenizer=.")
    openai = open_clip.SimpleTokenizer(context_length=length)
    if _vocabulary(folder) == _words(openai.encoder, openai.vocab_size):
        return openai
    try:
        from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]

        return FolderTokenizer(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False), length)
    except ModuleNotFoundError as error:
        raise BackboneError(
            f"The tokenizer in {folder} needs the package {error.name!r}: {install_extra('hf')} (or pass tokenizer= "
            "to cots.load)."
        ) from None
    except Exception as error:
        raise BackboneError(f"The tokenizer in {folder} could not be loaded: {one_line(error)}") from error


def _vocabulary(folder: Path) -> dict[str, int]:
    """Ids of the pieces without special tokens; ids follow the order of merges, so equal ids mean equal tokenizers."""
    ids = _json(folder, "vocab.json") or _json(folder, "tokenizer.json").get("model", {}).get("vocab")
    return _words(ids, len(ids)) if isinstance(ids, dict) else {}


def _words(ids: Mapping[str, int], count: int) -> dict[str, int]:
    return {word: i for word, i in ids.items() if i < count - _SPECIAL}


def _json(folder: Path | None, name: str) -> dict[str, Any]:
    """The content of a file that a folder may have; empty without it."""
    return read_json(folder / name) if folder is not None and (folder / name).is_file() else {}


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise BackboneError(
            f"{file} cannot be read ({one_line(repr(error))}). Download or copy it again: the folder of a model has "
            "open_clip_config.json, or config.json of transformers, and weights."
        ) from None
