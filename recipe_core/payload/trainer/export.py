"""A checkpoint as a model folder (safetensors, config, tokenizer) for inference engines."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from .disk import put_in_place
from .errors import TrainError
from .lora import Adapters
from .model import stored_tensors
from .settings import Lora

# The folder of the adapters alone, next to the model's.
ADAPTER = "adapter"
_AT_ONCE = 1 << 30  # bytes in fp32 beside the converted ones


def export_checkpoint(
    checkpoint: Path, reference: Any, tokenizer: Any, target: Path, dtype: torch.dtype
) -> None:
    """Write ``target`` atomically from a checkpoint of any split; holds one copy in memory."""
    weights: dict[str, torch.Tensor] = {}
    pending: dict[str, torch.Tensor] = {}
    for name, parameter in reference.named_parameters():
        pending[name] = torch.empty(parameter.shape, dtype=parameter.dtype)
        if sum(tensor.nbytes for tensor in pending.values()) > _AT_ONCE:
            weights |= _load_checkpoint_weights(checkpoint, pending, dtype)
            pending = {}
    weights |= _load_checkpoint_weights(checkpoint, pending, dtype)
    _write_exported_model(weights, reference, tokenizer, target, dtype)


def export_adapters(
    checkpoint: Path,
    reference: Any,
    tokenizer: Any,
    target: Path,
    dtype: torch.dtype,
    lora: Lora,
    base: str,
) -> None:
    """Write the adapters alone, in peft's format, and ``target``: ``base`` with them merged."""
    adapters = Adapters(
        reference,
        lora,
        lambda tensors: _load_checkpoint_weights(checkpoint, tensors, torch.float32),
    )
    _replaced(target.with_name(ADAPTER), lambda part: adapters.save(part, base))
    names = {name for name, _ in reference.named_parameters()}
    _write_exported_model(
        adapters.merged(stored_tensors(base, names), dtype), reference, tokenizer, target, dtype
    )


def _write_exported_model(
    weights: dict[str, torch.Tensor],
    reference: Any,
    tokenizer: Any,
    target: Path,
    dtype: torch.dtype,
) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
        raise TrainError(
            "the trained weights are not finite; no model was exported.",
            hint="Train with a lower learning rate.",
        )
    # The stored configuration states the dtype of the model's parameters.
    config: Any = reference.to(dtype).config
    config.use_cache = True
    config.bos_token_id, config.eos_token_id, config.pad_token_id = (
        getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")
    )
    reference.generation_config = type(reference.generation_config).from_model_config(config)

    def save(part: Path) -> None:
        reference.save_pretrained(part, state_dict=weights)
        tokenizer.save_pretrained(part)

    _replaced(target, save)


def _replaced(target: Path, write: Callable[[Path], None]) -> None:
    """Replace a folder, or leave it unchanged where writing fails."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        write(part)
        if target.exists():
            shutil.rmtree(target)
        put_in_place(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _load_checkpoint_weights(
    checkpoint: Path, empty: dict[str, torch.Tensor], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in empty.items()}
    with warnings.catch_warnings():  # torch warns that a single process reads, as is meant
        warnings.simplefilter("ignore", UserWarning)
        load(tensors, checkpoint_id=checkpoint, no_dist=True)
    return {name.removeprefix("model."): tensor.to(dtype) for name, tensor in tensors.items()}
