"""Which layer set each option: base < model < architecture < device < objective < user.

What an option means is data of the engine's grammar. A degree is the objective's choice, a batch limit the device's default, a format the
model's, unless the request states it: then it is the user's. Options that say nothing about a candidate are the engine's base.
"""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core.commands.grammar import Meaning, grammars
from recipe_core.recipe.schema import Layer
from recipe_core.request import PlanRequest, ServingWorkload

_CHOSEN: dict[Meaning, tuple[Layer, str]] = {
    "tp": ("objective", "tp"),
    "pp": ("objective", "pp"),
    "dp": ("objective", "dp"),
    "ep": ("objective", "ep"),
    "cp": ("objective", "cp"),
    "all_experts": ("objective", "ep"),
    "attention_dp": ("objective", "dp"),
    "attention_dp_switch": ("objective", "dp"),
    "nodes": ("objective", "tp"),
    "dtype": ("model", "weight_dtype"),
    "quantization": ("model", "weight_dtype"),
    "kv_dtype": ("model", "kv_dtype"),
    "max_num_seqs": ("device", "max_num_seqs"),
    "max_batched_tokens": ("device", "max_batched_tokens"),
    "memory_fraction": ("base", "memory_fraction"),
    "block_size": ("base", "block_size"),
    "speculative": ("objective", "speculative"),
    "draft_tokens": ("objective", "speculative"),
    "draft_method": ("objective", "speculative"),
}
"""The layer that sets what an option means, and the field of a candidate by which a user would."""

_VARIED = {"weight_dtype": "weight_dtypes", "kv_dtype": "kv_dtypes", "max_batched_tokens": "max_batched_tokens"}
"""Fields that a search may vary: then they are the objective's choice."""


def option_layers(engine: str, options: Iterable[str], asked: PlanRequest) -> dict[str, Layer]:
    """The layer of each option; ``asked`` is the request as the user wrote it."""
    grammar = grammars().get(engine)
    means = grammar.means if grammar else {}
    return {name: _layer(means.get(name), asked) for name in options}


def _layer(meaning: Meaning | None, asked: PlanRequest) -> Layer:
    if meaning == "max_context":
        return "user" if isinstance(asked.workload, ServingWorkload) and asked.workload.max_context is not None else "objective"
    if meaning not in _CHOSEN:
        return "base"
    layer, field = _CHOSEN[meaning]
    stated = getattr(asked.candidate, field, None)
    if stated not in (None, "auto"):
        return "user"
    tried = getattr(asked.options, _VARIED[field]) if field in _VARIED else ()
    return "objective" if set(tried) - {"auto"} else layer
