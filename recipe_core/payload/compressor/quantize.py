"""Checkpoints in the compressed-tensors format, which transformers, vLLM and SGLang read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import CompressError
from .job import Options
from .models import copy_tokenizer, matrices

# Preset schemes of compressed-tensors by technique; those of weights alone drop activations.
SCHEMES: dict[str, str] = {
    "fp8_w8a8": "FP8_DYNAMIC",
    "fp8_weight_only": "FP8_DYNAMIC",
    "int8_w8a8": "INT8",
    "int8_weight_only": "INT8",
    "int4_weight_only": "W4A16",
    "int3_weight_only": "W3A16",
    "int2_weight_only": "W2A16",
}
METHODS = ("rtn",)


def quantize_matrices(model: Any, technique: str, options: Options) -> Any:
    """Round the matrices of ``model`` to nearest in place; returns what compresses and saves it.

    Scales are from the largest magnitude of an output or group; activations are quantised as they
    come (dynamic).

    Raises:
        CompressError: where compressed-tensors is missing, or groups do not fill rows.
    """
    try:
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import (
            QuantizationConfig,
            QuantizationStatus,
            apply_quantization_config,
        )
    except ImportError:
        hint = "pip install compressed-tensors"
        raise CompressError("compressed-tensors is not installed.", hint=hint) from None
    scheme = _build_quantization_scheme(technique, options)
    _check_groups(model, scheme.weights, options)
    ignore = [f"re:.*{re.escape(name)}$" for name in options.ignore]
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=ignore)
    with _hide_progress_bars():
        apply_quantization_config(model, config, show_progress=False)
        for _, module in matrices(model):
            if getattr(module, "quantization_scheme", None) is not None:
                set_scales(module, scheme.weights)
                module.quantization_status = QuantizationStatus.FROZEN
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
    return compressor


def save_quantized(model: Any, compressor: Any, source: Path, folder: Path) -> None:
    """Write what `quantize_matrices` returned, with the scheme in ``config.json``."""
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    copy_tokenizer(source, folder)


def _build_quantization_scheme(technique: str, options: Options) -> Any:
    from compressed_tensors.quantization import preset_name_to_scheme

    scheme = preset_name_to_scheme(SCHEMES[technique], ["Linear"])
    if technique.endswith("weight_only"):
        scheme.input_activations = None
    changes: dict[str, Any] = {}
    if options.group is not None:
        if scheme.weights.group_size is None:
            message = f"options.group is {options.group}, and {technique} has no groups."
            raise CompressError(message, hint="Leave it out.")
        changes["group_size"] = options.group
    if not options.symmetric:
        changes["symmetric"] = False
    scheme.weights = scheme.weights.model_copy(update=changes)
    return scheme


def _check_groups(model: Any, args: Any, options: Options) -> None:
    group = args.group_size
    for name, matrix in matrices(model, options.ignore):
        if group and matrix.in_features % group:
            hint = f"Set options.group to a number that divides {matrix.in_features}."
            message = (
                f"{name} has {matrix.in_features} inputs, which groups of {group} do not fill."
            )
            raise CompressError(message, hint=hint)


def set_scales(module: Any, args: Any) -> None:
    """Fill in scales and zero points of a matrix's weights, by their ranges."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    weight = module.weight.detach()
    tensor_scale = None
    if hasattr(module, "weight_global_scale"):
        tensor_scale = generate_gparam(weight.amin(), weight.amax())
        module.weight_global_scale.data.copy_(tensor_scale)
    grouped = weight.unflatten(-1, (-1, args.group_size or weight.shape[-1]))
    scale, zero = calculate_qparams(
        grouped.amin(-1), grouped.amax(-1), args, global_scale=tensor_scale
    )
    module.weight_scale.data.copy_(scale)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero)


@contextlib.contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """compressed-tensors draws progress bars, which say nothing in a log."""
    from compressed_tensors.compressors.model_compressors import model_compressor

    bars = model_compressor.tqdm
    model_compressor.tqdm = lambda modules, **_: modules
    try:
        yield
    finally:
        model_compressor.tqdm = bars
