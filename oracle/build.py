"""A model on the meta device: real modules with shapes and dtypes, and no data."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from recipe_core.base.errors import InputError
from recipe_core.models.spec import ModelSpec

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ATTENTION = "recipe_trace"
# Fields that do not change shapes; some rope scaling reads data, which fake tensors lack.
_NOT_BUILT = (
    "quantization_config",
    "rope_scaling",
    "auto_map",
    "architectures",
    "transformers_version",
    "torch_dtype",
    "dtype",
)


def fused_attention(
    _module: nn.Module,
    query: torch.Tensor,
    _key: torch.Tensor,
    value: torch.Tensor,
    *_args: Any,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Allocations of a fused kernel, which makes neither scores nor a mask.

    Output ``[batch, tokens, heads, v_head_dim]`` and an fp32 log-sum-exp.
    """
    batch, heads, tokens, _ = query.shape
    _log_sum_exp = query.new_empty(batch, heads, tokens, dtype=torch.float32)
    return query.new_empty(batch, tokens, heads, value.shape[-1]), None


def build(spec: ModelSpec, dtype: str) -> nn.Module:
    """The language model of a spec's ``config.json`` on the meta device; runs no code from a hub.

    Raises:
        InputError: the installed transformers has no class for it.
    """
    AttentionInterface.register(ATTENTION, fused_attention)
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
    inner = spec.config.get("text_config")
    # transformers completes nested fields in place
    fields = deepcopy(dict(inner if isinstance(inner, Mapping) else spec.config))
    model_type = str(fields.pop("model_type", ""))
    for name in _NOT_BUILT:
        fields.pop(name, None)
    # the defaults may lie outside a small vocabulary
    fields |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    fields.setdefault("tie_word_embeddings", spec.tied_embeddings)
    try:
        config = AutoConfig.for_model(model_type, **fields)
    except ValueError:
        raise InputError(
            f"the installed transformers has no model_type {model_type!r}.",
            field="model.model_type",
        ) from None
    config = config.get_text_config()
    config._attn_implementation = ATTENTION
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])  # type: ignore[no-untyped-call]
    return model.eval().requires_grad_(False)


def layer_list(model: nn.Module) -> tuple[nn.Module, str]:
    """The module that owns the decoder layers, and the name of their list in it.

    Raises:
        InputError: there is no list of that many layers.
    """
    base: Any = model.base_model
    count = model.config.num_hidden_layers  # type: ignore[union-attr]
    for name, child in base.named_children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return base, name
    raise InputError(f"{type(model).__name__} has no list of {count} layers.", field="trace")


def kinds(model: nn.Module) -> tuple[list[int], list[int]]:
    """The number of each layer's kind, and the first layer of each kind.

    Layers of a kind have equal parameters and windows.
    """
    owner, name = layer_list(model)
    types = getattr(model.config, "layer_types", None)
    numbers: dict[Any, int] = {}
    first: list[int] = []
    of: list[int] = []
    for i, layer in enumerate(getattr(owner, name)):
        windows = tuple(getattr(module, "sliding_window", None) for module in layer.modules())
        shape = tuple((key, tuple(p.shape), p.dtype) for key, p in layer.named_parameters())
        number = numbers.setdefault((types and types[i], windows, shape), len(numbers))
        if number == len(first):
            first.append(i)
        of.append(number)
    return of, first


def keep_layers(model: nn.Module, positions: list[int]) -> None:
    """Leaves only these layers in the model, renumbered (the cache is indexed by layer number)."""
    owner, name = layer_list(model)
    layers = [getattr(owner, name)[i] for i in positions]
    setattr(owner, name, nn.ModuleList(layers))
    for i, layer in enumerate(layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = i
    config: Any = model.config
    types = getattr(config, "layer_types", None)
    config.num_hidden_layers = len(positions)
    if types is not None:
        config.layer_types = [types[i] for i in positions]
