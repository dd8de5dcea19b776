"""The model: built without memory, cut into stages, filled piece by piece with the same weights whatever the split."""

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
from .settings import Settings

_AT_ONCE_BYTES = 1 << 30
_ATTENTION = {"flash": "sdpa", "eager": "eager"}


class Part(nn.Module):
    """One chunk of the model: token ids in (hidden states after the first chunk), logits out (hidden states before the last).

    Layers of other chunks are passed over rather than removed, so every layer keeps its number and
    every tensor its name.
    """

    inner: Any

    def __init__(self, inner: nn.Module, chunk: int, chunks: int) -> None:
        super().__init__()
        self.inner = inner
        self.first, self.last = chunk == 0, chunk == chunks - 1
        body = self.body
        mine = chunk_layers(len(body.layers), chunk, chunks)
        for index in range(len(body.layers)):
            if index not in mine:
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
        """Layers of this chunk."""
        return [layer for layer in self.body.layers if not isinstance(layer, _Pass)]

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by the names they have in a checkpoint."""
        return (
            (name.removeprefix("inner."), parameter) for name, parameter in self.named_parameters()
        )

    def learning(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those that a step changes."""
        return ((name, parameter) for name, parameter in self.named() if parameter.requires_grad)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states or logits of ``x``."""
        given = {"input_ids": x} if self.first else {"inputs_embeds": x}
        logits: torch.Tensor = self.inner(**given, use_cache=False).logits
        return logits


class _Pass(nn.Module):
    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden


def chunk_layers(layers: int, chunk: int, chunks: int) -> range:
    """Layers of a chunk: equally many, the first ones one more where that does not come out even."""
    each, more = divmod(layers, chunks)
    start = chunk * each + min(chunk, more)
    return range(start, start + each + (chunk < more))


def read_config(settings: Settings, folder: str | None) -> PreTrainedConfig:
    """The model's configuration, from ``train.json`` or the model folder."""
    values = settings.model.config
    try:
        if values is None:
            if folder is None:
                raise TrainError(
                    "neither train.json nor --model says what the model is.",
                    hint="Give a folder: --model FOLDER.",
                )
            config = AutoConfig.from_pretrained(folder)
        else:
            config = AutoConfig.for_model(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainError(
            f"the model's configuration cannot be read: {str(error).splitlines()[0]}"
        ) from None
    config.use_cache = False
    read: PreTrainedConfig = config
    return read


def build(config: PreTrainedConfig, settings: Settings) -> Any:
    """The whole model in fp32 on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32, attn_implementation=_ATTENTION[settings.attention]
        )
    body = getattr(model, "model", None)
    if not all(hasattr(body, name) for name in ("embed_tokens", "layers", "norm")) or not hasattr(
        model, "lm_head"
    ):
        hint = "Models with embed_tokens, layers, norm and lm_head are."
        raise TrainError(f"{config.model_type} models are not trained by this version.", hint=hint)
    return model


def fill_random(part: Part, reference: Any, seed: int, device: torch.device) -> None:
    """Give every module the weights that its own model's rules draw.

    Each module has its own seed and is drawn whole, then cut; so a run starts from the same weights
    on any number of devices.
    """
    drawn: dict[str, torch.Tensor] = {}
    for name, module in part.inner.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        if not own:
            continue
        fresh = copy.deepcopy(reference.get_submodule(name)).to_empty(device=device, recurse=False)
        torch.manual_seed(seed + zlib.crc32(name.encode()))
        with torch.no_grad():
            reference._init_weights(fresh)
            for key, buffer in fresh.named_buffers(recurse=False):
                module.get_buffer(key).copy_(buffer)
        drawn |= {
            f"{name}.{key}": parameter.detach()
            for key, parameter in fresh.named_parameters(recurse=False)
        }
        if sum(each.nbytes for each in drawn.values()) > _AT_ONCE_BYTES:
            put(part, drawn)
            drawn = {}
    put(part, drawn)


def fill_pretrained(part: Part, reference: Any, folder: str, device: torch.device) -> None:
    """Weights from the folder's safetensors; buffers as after a random start.

    Raises:
        TrainError: when a file is missing or names tensors otherwise than the model does.
    """
    fill_random(part, reference, 0, device)
    named = {name for name, _ in reference.named_parameters()}
    for name, tensor in stored_tensors(folder, {name for name, _ in part.named()} & named):
        put(part, {name: tensor.to(device, torch.float32)})


def stored_tensors(folder: str, names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of the folder's safetensors, in one order on every rank (some distribute together).

    Raises:
        TrainError: when some are not there.
    """
    from safetensors import safe_open

    wanted = set(names)
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for name in sorted(wanted & set(stored.keys())):
                yield name, stored.get_tensor(name)
                wanted.discard(name)
    if wanted:
        raise TrainError(
            f"{folder} holds no tensor {min(wanted)} ({len(wanted)} are missing).",
            hint="Give a folder with this model's weights.",
        )


def put(part: Part, whole: dict[str, torch.Tensor]) -> None:
    """Copy the share of each rank of tensors that every rank has whole."""
    if whole:
        set_model_state_dict(
            part.inner, dict(whole), options=StateDictOptions(full_state_dict=True, strict=False)
        )
