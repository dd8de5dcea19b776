"""The model: built without memory, cut into stages, filled with weights that no split changes."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from .errors import TrainError
from .lora import add_adapters, start_adapters
from .settings import Settings

_AT_ONCE_BYTES = 1 << 30  # of complete tensors beside the shares of a rank


def choose_attention(kernel: str) -> str:
    """Transformers' word for an attention kernel; torch is kept from others than a named one."""
    if kernel == "flash2":
        torch.backends.cuda.enable_cudnn_sdp(False)
    elif kernel == "cudnn":
        torch.backends.cuda.enable_flash_sdp(False)
    return "eager" if kernel == "eager" else "sdpa"


class Part(nn.Module):
    """One chunk of the model: token ids or hidden states in, hidden states or logits out.

    Layers of other chunks are passed over, not removed, so that all keep their numbers and names.
    """

    inner: Any

    def __init__(self, inner: nn.Module, chunk: int, chunks: int) -> None:
        super().__init__()
        self.inner = inner
        self.first, self.last = chunk == 0, chunk == chunks - 1
        body = self.body
        indexes = chunk_layers(len(body.layers), chunk, chunks)
        for index in range(len(body.layers)):
            if index not in indexes:
                body.layers[index] = _Pass()
        if not self.first:
            body.embed_tokens = None
        if not self.last:
            body.norm, self.inner.lm_head = nn.Identity(), nn.Identity()

    @property
    def body(self) -> Any:
        """Embedding, layers and last norm."""
        return self.inner.model

    @property
    def layers(self) -> list[nn.Module]:
        return [layer for layer in self.body.layers if not isinstance(layer, _Pass)]

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        return (
            (name.removeprefix("inner."), parameter) for name, parameter in self.named_parameters()
        )

    def learning(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in self.named() if parameter.requires_grad)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The hidden states or logits of ``x``."""
        inputs = {"input_ids": x} if self.first else {"inputs_embeds": x}
        logits: torch.Tensor = self.inner(**inputs, use_cache=False).logits
        return logits


class _Pass(nn.Module):
    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden


def chunk_layers(layers: int, chunk: int, chunks: int) -> range:
    """The layers of a chunk: equally many, the first chunks one more where needed."""
    size, rest = divmod(layers, chunks)
    start = chunk * size + min(chunk, rest)
    return range(start, start + size + (chunk < rest))


def load_model_config(settings: Settings, folder: str | None) -> PreTrainedConfig:
    """The model's configuration, from ``train.json`` or the model folder."""
    values = settings.model.config
    try:
        if values is None:
            if folder is None:
                message = "neither train.json nor --model describes the model."
                raise TrainError(message, hint="Set a folder: --model FOLDER.")
            config = AutoConfig.from_pretrained(folder)
        else:
            config = AutoConfig.for_model(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise TrainError(f"the model's configuration cannot be read: {reason}") from None
    config.use_cache = False
    read: PreTrainedConfig = config
    return read


def build_meta_model(config: PreTrainedConfig, settings: Settings) -> Any:
    """The complete model in fp32 on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32, attn_implementation=choose_attention(settings.attention)
        )
    body = getattr(model, "model", None)
    complete = all(hasattr(body, name) for name in ("embed_tokens", "layers", "norm"))
    if not complete or not hasattr(model, "lm_head"):
        hint = "Supported: models with embed_tokens, layers, norm and lm_head."
        raise TrainError(f"this version cannot train {config.model_type} models.", hint=hint)
    if settings.lora:
        add_adapters(model, settings.lora)
    return model


def fill_weights(
    part: Part, reference: Any, settings: Settings, folder: str | None, device: torch.device
) -> None:
    """Fill a part with the folder's weights, or at random, and its adapters as they start.

    Raises:
        TrainError: when a tensor of the model is missing.
    """
    from_folder = settings.model.weights == "pretrained" and folder is not None
    # Buffers are as after a random start.
    fill_random(part, reference, settings.seed, device)
    if from_folder:
        names = {_base_name(name) for name, _ in reference.named_parameters()}
        part_names = {_base_name(name): name for name, _ in part.named() if ".lora_" not in name}
        for name, tensor in stored_tensors(str(folder), part_names.keys() & names):
            copy_part_weights(part, {part_names[name]: tensor.to(device, torch.float32)})
    if settings.lora:
        copy_part_weights(part, start_adapters(part.learning(), settings.seed, device))


def _base_name(name: str) -> str:
    """The name of a parameter in a checkpoint, which adapters beside it do not change."""
    return name.replace(".base_layer.", ".")


def fill_random(part: Part, reference: Any, seed: int, device: torch.device) -> None:
    """Draw the weights of every module by the rules of its model.

    Every module has its own seed and is drawn complete, then cut, so that a run starts from the
    same weights on any number of devices.
    """
    drawn: dict[str, torch.Tensor] = {}
    for name, module in part.inner.named_modules():
        if not [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            continue
        fresh = copy.deepcopy(reference.get_submodule(name)).to_empty(device=device, recurse=False)
        torch.manual_seed(seed + zlib.crc32(name.encode()))
        with torch.no_grad():
            reference._init_weights(fresh)
            for key, buffer in fresh.named_buffers(recurse=False):
                module.get_buffer(key).copy_(buffer)
        for key, parameter in fresh.named_parameters(recurse=False):
            drawn[f"{name}.{key}"] = parameter.detach()
        if sum(tensor.nbytes for tensor in drawn.values()) > _AT_ONCE_BYTES:
            copy_part_weights(part, drawn)
            drawn = {}
    copy_part_weights(part, drawn)


def stored_tensors(folder: str, names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors of the folder's safetensors, in the same order on every rank.

    Raises:
        TrainError: when some are missing.
    """
    from safetensors import safe_open

    missing = set(names)
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for name in sorted(missing & set(stored.keys())):
                yield name, stored.get_tensor(name)
                missing.discard(name)
    if missing:
        raise TrainError(
            f"{folder} lacks the tensor {min(missing)} ({len(missing)} are missing).",
            hint="Set --model to a folder with this model's weights.",
        )


def copy_part_weights(part: Part, tensors: dict[str, torch.Tensor]) -> None:
    """Copy each rank's share of complete tensors."""
    if tensors:
        options = StateDictOptions(full_state_dict=True, strict=False)
        set_model_state_dict(part.inner, dict(tensors), options=options)
