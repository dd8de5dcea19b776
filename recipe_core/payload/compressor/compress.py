"""From a job to its output: matrices rounded to nearest, in formats of compressed-tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .errors import CompressError
from .job import Job, Options
from .models import copy_tokenizer, load_decoder, matrices, replaced

# Preset schemes of compressed-tensors by technique; those of weights alone drop activations.
SCHEMES: dict[str, str] = {
    "fp8_w8a8": "FP8_DYNAMIC",
    "fp8_weight_only": "FP8_DYNAMIC",
    "int8_w8a8": "INT8",
    "int8_weight_only": "INT8",
    "int4_weight_only": "W4A16",
    "int3_weight_only": "W3A16",
    "int2_weight_only": "W2A16",
    "w4a8_int8": "W4A8",
}
METHODS = ("rtn",)
# Who writes what this program does not, by format and by how techniques start.
OTHERS = {
    "gguf": "llama-cpp, by llama.cpp's own programs",
    "onnx": "optimum-onnx",
    "openvino": "optimum-openvino",
    "sparse": "llm-compressor",
}


def write_compressed_model(job: Job) -> None:
    """Write the job's output.

    Raises:
        CompressError: for what cannot be made here, with the tool that makes it, and where
            compressed-tensors is missing. The folder is then what it was.
    """
    _check_technique(job)
    model = load_decoder(job.source_folder)
    compressor = quantize_matrices(model, job.technique, job.options)

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        compressor.update_config(str(folder))
        copy_tokenizer(job.source_folder, folder)

    job.output_folder.parent.mkdir(parents=True, exist_ok=True)
    replaced(job.output_folder, write)


def _check_technique(job: Job) -> None:
    other = OTHERS.get(job.written) or OTHERS.get(job.technique.partition("_")[0])
    if other or job.technique not in SCHEMES:
        message = f"{job.technique} is not written as {job.written} here."
        hint = f"Use the tool {other}." if other else f"Known: {', '.join(SCHEMES)}."
        raise CompressError(message, hint=hint)
    if job.method and job.method not in METHODS:
        hint = f"Use {' or '.join(METHODS)}, or the tool llm-compressor."
        raise CompressError(f"method is {job.method!r} for {job.technique}.", hint=hint)


def quantize_matrices(model: Any, technique: str, options: Options) -> Any:
    """Round the matrices of ``model`` to nearest in place; returns what saves its configuration.

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
    apply_quantization_config(model, config, show_progress=False)
    for _, module in matrices(model):
        if getattr(module, "quantization_scheme", None) is not None:
            set_scales(module, scheme.weights)
            module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    return compressor


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
