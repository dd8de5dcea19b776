"""From a job to its output folder, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import export_gguf, export_onnx, weights
from .errors import CompressError
from .job import Job
from .models import (
    copy_tokenizer,
    load_decoder,
    load_tokenizer,
    pick_torch_device,
    replaced,
    save_model,
)
from .verify import samples, text_tokens

# The technique of an export alone.
NONE = "none"
# Weights in a block of which a share goes; None: anywhere in a row, and any share.
SPARSE: dict[str, tuple[int | None, float]] = {
    "sparse_2_4": (4, 0.5),
    "sparse_4_8": (8, 0.5),
    "sparse_unstructured": (None, 0.5),
    "fp8_plus_sparse_2_4": (4, 0.5),
}
# The format that a sparse technique is rounded to afterwards.
THEN = {"fp8_plus_sparse_2_4": "fp8_w8a8"}
# Shares that go unless a job says otherwise.
REMOVED = {"layer_pruning": 0.22, "low_rank": 0.2}
_METHODS = {"layer_pruning": ("block_influence",), "low_rank": ("svd",)}


def techniques_by_format() -> dict[str, tuple[str, ...]]:
    """Techniques that each format can be written in."""
    dense = (NONE, *(name for name in SPARSE if name not in THEN), *REMOVED)
    return {
        "safetensors": (*dense[1:], *THEN, *weights.SCHEMES),
        "onnx": (*dense, *export_onnx.BITS, export_onnx.DYNAMIC),
        "openvino": (*dense, *export_onnx.MODES),
        "gguf": (*dense, *export_gguf.MIXTURES),
    }


def methods(technique: str) -> tuple[str, ...]:
    """Algorithms of a technique, the usual one first."""
    return (
        weights.PRUNING_METHODS
        if technique in SPARSE
        else _METHODS.get(technique, weights.ROUNDING_METHODS)
    )


def write_compressed_model(job: Job) -> list[str]:
    """Write the job's output; returns sentences about it that a person should know.

    Raises:
        CompressError: for what cannot be made, and where a program is missing. The folder is then
            what it was.
    """
    _check_technique_options(job)
    model = load_decoder(job.source_folder)
    notes = _reduced(model, job)
    job.output_folder.parent.mkdir(parents=True, exist_ok=True)
    replaced(job.output_folder, lambda folder: _write_compressed_folder(model, job, folder))
    return notes


def _check_technique_options(job: Job) -> None:
    techniques = techniques_by_format()[job.written]
    if job.technique not in techniques:
        message = f"{job.technique} cannot be written as {job.written} here."
        raise CompressError(message, hint=f"Known: {', '.join(techniques)}.")
    if job.method and job.method not in methods(job.technique):
        hint = f"Use {' or '.join(methods(job.technique))}."
        raise CompressError(f"method is {job.method!r} for {job.technique}.", hint=hint)
    removed, fixed = job.options.removed, _fixed_removed_share(job.technique)
    if removed is not None and removed != fixed and not _has_free_share(job.technique):
        message = f"options.removed is {removed}, and {job.technique} removes {fixed}."
        raise CompressError(message, hint="Leave it out.")


def _has_free_share(technique: str) -> bool:
    return technique in REMOVED or technique == "sparse_unstructured"


def _fixed_removed_share(technique: str) -> float:
    return SPARSE[technique][1] if technique in SPARSE else 0.0


def _reduced(model: Any, job: Job) -> list[str]:
    """Remove weights, layers or ranks in place; what does not is told."""
    technique, ignore = job.technique, job.options.ignore
    if technique in SPARSE:
        block, share = SPARSE[technique]
        model.to(pick_torch_device())
        weights.prune(
            model, _sample_calibration_text(job), method=job.method or weights.PRUNING_METHODS[0],
            removed=job.options.removed or share, block=block, ignore=ignore,
        )  # fmt: skip
        model.cpu()
        return ["The zeros are stored: only an engine with sparse kernels gains by them."]
    if technique == "layer_pruning":
        share = job.options.removed or REMOVED[technique]
        gone = weights.remove_layers(model, _sample_calibration_text(job), share)
        return [f"Layers removed: {', '.join(map(str, gone))}."]
    if technique == "low_rank":
        weights.low_rank(model, job.options.removed or REMOVED[technique], ignore)
        return ["The product of the factors is stored: the checkpoint is as large as its base."]
    return []


def _sample_calibration_text(job: Job) -> list[list[int]]:
    calibration = job.calibration
    tokens = text_tokens(load_tokenizer(job.source_folder), job.text(calibration.text))
    return samples(tokens, calibration.samples, calibration.tokens)


def _write_compressed_folder(model: Any, job: Job, folder: Path) -> None:
    technique, options = THEN.get(job.technique, job.technique), job.options
    reduced = technique in (NONE, *SPARSE, *REMOVED)
    if job.written == "gguf":
        export_gguf.write_gguf(model, job.source_folder, folder, None if reduced else technique)
    elif job.written == "onnx":
        path = export_onnx.write_onnx_graph(model, folder)
        if not reduced:
            export_onnx.quantize_onnx_graph(path, technique, options)
        copy_tokenizer(job.source_folder, folder)
    elif job.written == "openvino":
        path = export_onnx.write_onnx_graph(model, folder)
        export_onnx.write_openvino_model(path, folder, None if reduced else technique, options)
        for graph_file in folder.glob("model.onnx*"):
            graph_file.unlink()
        copy_tokenizer(job.source_folder, folder)
    elif reduced:
        save_model(model, job.source_folder, folder)
    else:
        compressor = weights.quantize_matrices(model, technique, options)
        weights.save_quantized(model, compressor, job.source_folder, folder)
