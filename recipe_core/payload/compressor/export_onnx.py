"""ONNX graphs with caches as inputs and outputs, and their quantisation by ONNX Runtime."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import CompressError
from .job import Options
from .runners.cached_graph import SHAPE

# Modes of ``nncf.compress_weights``: symmetric, and with zero points.
MODES = {
    "int8_weight_only": ("INT8_SYM", "INT8_ASYM"),
    "int4_weight_only": ("INT4_SYM", "INT4_ASYM"),
    "mxfp4_weight_only": ("MXFP4", "MXFP4"),
    "nf4_weight_only": ("NF4", "NF4"),
}
_GROUPS = {"MXFP4": 32, "NF4": 64}


def write_openvino_model(
    graph: Path, folder: Path, technique: str | None, options: Options
) -> None:
    """Write ``model.xml`` and ``model.bin``, with compressed weights where a technique is named.

    NNCF keeps embeddings and the last matrix in int8 where all others are in four bits.

    Raises:
        CompressError: where openvino or nncf is missing.
    """
    try:
        import openvino

        with _silence_nncf():
            model: Any = openvino.Core().read_model(graph)
            if technique is not None:
                model = _compress_openvino_weights(model, technique, options)
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        raise CompressError(f"{name} is not installed.", hint=f"pip install {name}") from None
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


def _compress_openvino_weights(model: Any, technique: str, options: Options) -> Any:
    os.environ.setdefault("NNCF_CI", "1")  # or it tells its makers of each call
    import nncf

    name = MODES[technique][0 if options.symmetric else 1]
    mode = nncf.CompressWeightsMode[name]
    if name.startswith("INT8"):
        return nncf.compress_weights(model, mode=mode)
    group = options.group or _GROUPS.get(name, GROUP)
    return nncf.compress_weights(model, mode=mode, group_size=group, ratio=1.0)


@contextlib.contextmanager
def _silence_nncf() -> Iterator[None]:
    """NNCF prints tables and progress."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)


# Weights by MatMulNBits, activations as they are.
BITS = {"int4_weight_only": 4, "int8_weight_only": 8}
# Weights and activations, which are quantised as they come.
DYNAMIC = "int8_w8a8"
GROUP = 128


class _Step(nn.Module):
    """A decoder as a function of tokens and of keys and values before them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(
        self, input_ids: torch.Tensor, past: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Logits, then keys and values of every layer (1 × heads × tokens × values)."""
        from transformers.cache_utils import DynamicCache

        cache: Any = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device) + past[0].shape[2]
        out = self.model(
            input_ids=input_ids,
            past_key_values=cache,
            position_ids=positions[None],
            use_cache=True,
        )
        presents = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return (out.logits, *presents)


def write_onnx_graph(model: Any, folder: Path) -> Path:
    """Write ``model.onnx`` in fp32, and the shape of its caches beside it.

    Raises:
        CompressError: where onnx or onnxscript is missing, or torch cannot export the model.
    """
    config = model.config.get_text_config()
    heads = config.num_key_value_heads
    values = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    count = 2 * config.num_hidden_layers
    past = tuple(torch.zeros(1, heads, 5, values) for _ in range(count))
    free = torch.export.Dim.DYNAMIC
    try:
        with _silence_onnx_exporter():
            program = torch.onnx.export(
                _Step(model.float()),
                (torch.ones(1, 7, dtype=torch.long), past),
                dynamo=True,
                verbose=False,
                dynamic_shapes={"input_ids": {1: free}, "past": tuple({2: free} for _ in past)},
                input_names=["input_ids", *(f"past_{i}" for i in range(count))],
                output_names=["logits", *(f"present_{i}" for i in range(count))],
            )
    except ImportError as error:
        hint = "pip install onnx onnxscript"
        raise CompressError(f"{error.name} is not installed.", hint=hint) from None
    except torch.onnx.OnnxExporterError as error:
        kind = model.config.model_type
        raise CompressError(f"torch cannot export a {kind} to ONNX: {error}") from None
    assert program is not None  # noqa: S101 - of dynamo
    path = folder / "model.onnx"
    program.save(path)
    shape = {"count": count, "heads": heads, "values": values}
    (folder / SHAPE).write_text(json.dumps(shape), encoding="utf-8")
    return path


def quantize_onnx_graph(path: Path, technique: str, options: Options) -> None:
    """Quantise a graph in place, by the tools of ONNX Runtime.

    Raises:
        CompressError: where they are missing.
    """
    try:
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    except ImportError as error:
        hint = "pip install onnxruntime"
        raise CompressError(f"{error.name} is not installed.", hint=hint) from None
    graph = onnx.load(path)
    names = [node.name for node in graph.graph.node if node.op_type == "MatMul"]
    excluded = [
        name
        for name in names
        if any(word in name for word in _find_ignored_matmuls(graph, options))
    ]
    with _silence_onnx_exporter():
        if technique == DYNAMIC:
            quantization.quantize_dynamic(
                graph, path, per_channel=True, op_types_to_quantize=["MatMul"],
                nodes_to_exclude=excluded, weight_type=quantization.QuantType.QInt8,
            )  # fmt: skip
            return
        quantizer = MatMulNBitsQuantizer(
            graph, bits=BITS[technique], block_size=options.group or GROUP,
            is_symmetric=options.symmetric, nodes_to_exclude=excluded,
        )  # fmt: skip
        quantizer.process()
    for old in (path, path.with_name("model.onnx.data")):
        old.unlink(missing_ok=True)
    onnx.save(quantizer.model.model, path)


def _find_ignored_matmuls(graph: Any, options: Options) -> list[str]:
    return [
        node.name
        for node in graph.graph.node
        if node.op_type == "MatMul"
        and any(_module_of(node).endswith(name) for name in options.ignore)
    ]


def _module_of(node: Any) -> str:
    """The module whose ``forward`` a node came from, from what torch notes in the graph."""
    for item in node.metadata_props:
        if item.key == "pkg.torch.onnx.name_scopes":
            scopes = [scope.strip(" '[]") for scope in item.value.split(",")]
            return next((scope for scope in reversed(scopes[:-1]) if scope), "")
    return ""


@contextlib.contextmanager
def _silence_onnx_exporter() -> Iterator[None]:
    """The exporter tells its steps, and warns of what it does not need."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
