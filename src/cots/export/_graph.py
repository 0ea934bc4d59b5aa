"""A frozen classifier as files: one of ONNX, one of `torch.export`, and an int8 version of the first."""

import contextlib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._errors import InputError, install_extra
from ._frozen import INPUT, OUTPUTS, FrozenClassifier

ONNX, PT2, INT8 = "model.onnx", "model.pt2", "model_int8.onnx"
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_LARGEST = 2**31 - 2**24  # bytes of weights in one ONNX file, whose format ends at 2 GiB
_NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")  # loggers


def require_packages() -> None:
    """Refuse to start without the extra `export`."""
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError:
            raise InputError(f"An export needs the package {name}: {install_extra('export')}.") from None


def check_size(network: FrozenClassifier, model: str) -> None:
    """Refuse a model that does not fit into one ONNX file."""
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    if size > _LARGEST:
        raise InputError(
            f"The image tower of {model} has {size / 2**30:.1f} GiB, and one ONNX file holds 2. Use a smaller model."
        )


def write_graphs(network: FrozenClassifier, size: tuple[int, int], folder: Path, metadata: Mapping[str, str]) -> None:
    """Write model.onnx, without external data, and model.pt2, both for any number of images of `size`."""
    example = torch.zeros(2, 3, *size)  # a batch of 1 could become a constant of the graph
    example[1] = 1.0
    with _quiet():
        batch = torch.export.Dim("batch", min=1)
        program = torch.export.export(network, (example,), dynamic_shapes={INPUT: {0: batch}})
        files = {"metadata.json": json.dumps(dict(metadata))}
        torch.export.save(program, folder / PT2, extra_files=files)
        exported = torch.onnx.export(
            program, dynamo=True, input_names=[INPUT], output_names=list(OUTPUTS), verbose=False
        )
        assert exported is not None
        exported.model.metadata_props.update(metadata)
        exported.model.producer_name = "cots"
        exported.save(str(folder / ONNX), external_data=False)
    check_graph(folder / ONNX)


def check_graph(file: Path) -> None:
    """Check a file with onnx's own checker, including shapes and types."""
    import onnx

    onnx.checker.check_model(str(file), full_check=True)


def write_int8(folder: Path) -> None:
    """Write model_int8.onnx: the weights of matrix products in 8 bits (dynamic quantisation).

    Convolutions stay in float32, because 8 bits change their classes, and so do the products with the text matrix and
    the background words, which are small. Weights are unsigned, because signed ones overflow on some CPUs.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(str(folder / ONNX))
    del graph.graph.value_info[:]  # shapes of weights that the quantiser transposes
    with _quiet():
        quantize_dynamic(
            graph,
            str(folder / INT8),
            weight_type=QuantType.QUInt8,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=_last_products(graph.graph),
        )
    check_graph(folder / INT8)


def _last_products(graph: Any) -> list[str]:
    """Names of the nodes that multiply the image features."""
    return [node.name for node in graph.node if "image_features" in node.input]


class Session:
    """A file of ONNX on the CPU: pixels `(B,3,H,W)` to the outputs by name."""

    def __init__(self, file: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def __call__(self, pixels: Tensor) -> dict[str, np.ndarray]:
        values = self._session.run(list(OUTPUTS), {INPUT: pixels.contiguous().numpy()})
        return dict(zip(OUTPUTS, map(np.asarray, values), strict=True))

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._session.get_modelmeta().custom_metadata_map)


class Program:
    """A file of `torch.export`, called like a `Session`."""

    def __init__(self, file: Path) -> None:
        self._module = torch.export.load(file).module()

    def __call__(self, pixels: Tensor) -> dict[str, np.ndarray]:
        with torch.no_grad():
            values = self._module(pixels)
        return {name: value.numpy() for name, value in zip(OUTPUTS, values, strict=True)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice of exporters about their own passes."""
    levels = {name: logging.getLogger(name).level for name in (*_NOISY, "root")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in levels:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
