"""Predictions in the formats of other tools: tasks of Label Studio, labels of FiftyOne, tables of Parquet.

Each takes predictions with the paths of their photos. For review, an abstained prediction has its best class, and is
marked as abstained.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from ._errors import CotsError, InputError, install_extra
from .methods import Prediction

# Names of the tags in Label Studio's labelling configuration, which its tasks refer to.
CHOICES, IMAGE = "class", "image"
_ATTRIBUTES = ("method", "abstained", "none_of_these", "in_list", "agreement", "tau")


def label_studio_task(file: str | Path, prediction: Prediction | None = None, **data: Any) -> dict[str, Any]:
    """A task of Label Studio: a photo and, if there is one, its prediction as a pre-annotation.

    The photo's address is that of Label Studio's local storage with `/` as its document root. `data`: further columns.
    """
    path = os.path.abspath(file)
    address = f"/data/local-files/?d={quote(path.lstrip('/'))}"
    task: dict[str, Any] = {"data": {IMAGE: address, "file": str(file), **data}}
    if prediction is None or prediction.error is not None:
        return task
    (best, _), *_ = prediction.top(1)
    choice = {"from_name": CHOICES, "to_name": IMAGE, "type": "choices", "value": {"choices": [best]}}
    task["data"] |= {"abstained": prediction.abstained, "none_of_these": prediction.none_of_these}
    task["predictions"] = [
        {"model_version": f"cots {prediction.method}", "score": prediction.confidence, "result": [choice]}
    ]
    return task


def label_studio_config(classes: Sequence[str]) -> str:
    """The labelling configuration (XML) for the tasks of `label_studio_task`."""
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
    return (
        f'<View>\n  <Image name="{IMAGE}" value="${IMAGE}"/>\n'
        f'  <Choices name="{CHOICES}" toName="{IMAGE}" choice="single">\n{choices}\n  </Choices>\n</View>\n'
    )


def fiftyone_labels(predictions: Mapping[Path, Prediction]) -> dict[str, Any]:
    """labels.json of FiftyOne's FiftyOneImageClassificationDataset, whose data folder is `common_folder`.

    Its keys are paths below that folder without their endings; the labels are indices into its classes.
    """
    folder = common_folder(predictions)
    labels: dict[str, Any] = {}
    classes: tuple[str, ...] = ()
    for file, prediction in predictions.items():
        key = os.path.relpath(os.path.splitext(os.path.abspath(file))[0], folder).replace(os.sep, "/")
        if key in labels:
            raise InputError(f"{file}: FiftyOne ignores endings, and another photo has this name. Rename one of them.")
        if prediction.error is not None:
            labels[key] = None
            continue
        classes = prediction.classes
        (best, _), *_ = prediction.top(1)
        shown = prediction.to_dict(1)
        labels[key] = {
            "label": classes.index(best),
            "confidence": prediction.confidence,
            "attributes": {name: shown[name] for name in _ATTRIBUTES},
        }
    return {"classes": list(classes), "labels": labels}


def common_folder(files: Iterable[Path]) -> str:
    """The deepest folder that contains all files."""
    return os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])


def require_pyarrow() -> Any:
    """The package pyarrow, or an error that says how to install it."""
    try:
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CotsError(f"Parquet files need pyarrow: {install_extra('parquet')}.") from None
    return pyarrow


def write_parquet(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write the rows of `cots predict`, one per photo."""
    arrow = require_pyarrow()
    text, number, flag = arrow.string(), arrow.float64(), arrow.bool_()
    top = arrow.list_(arrow.struct([("class", text), ("probability", number)]))
    presence = arrow.list_(
        arrow.struct([("class", text), ("score", number), ("probability", number), ("present", flag)])
    )
    kinds = {
        "file": text, "label": text, "confidence": number, "tau": number, "alpha": number,
        "views": arrow.list_(arrow.int64()), "views_used": arrow.int64(), "method": text, "in_list": number,
        "none_of_these": flag, "agreement": number, "confidence_range": arrow.list_(number),
        "label_set": arrow.list_(text), "abstained": flag, "node": text, "rank": text, "path": arrow.list_(text),
        "node_probability": number, "unsure": text, "candidates": top, "presence": presence,
        "warnings": arrow.list_(text), "error": text, "top": top,
    }  # fmt: skip
    table = arrow.Table.from_pylist(list(rows), schema=arrow.schema(list(kinds.items())))
    arrow.parquet.write_table(table, file)
