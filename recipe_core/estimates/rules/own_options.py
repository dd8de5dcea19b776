"""Effects of the user's own options and variables of an engine on an estimate.

An option changes a figure, or an answer names it as not counted and what it moves is less certain.
The engine's grammar (``engines/options/ENGINE.yaml``) says which is which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.engines.grammar import Counted, Grammar, Moved, Unmodelled, grammars
from recipe_core.engines.spec import Engine
from recipe_core.models.mlp import MoeMlp
from recipe_core.models.spec import ModelSpec

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA adapters that a server holds on its devices: places, and the rank of each."""

    slots: int = 1
    rank: int = 16


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of own options besides the split.

    ``uncounted``: sentences of what is not in the estimate; ``moved``: what these move ("memory",
    "time"). ``host_weights_bytes``: weights of a device that stay in the host's memory.
    ``cache_bytes``, ``cache_blocks`` and ``cache_tokens``: a stated size of a device's cache.
    ``sequences_open``: how many requests run at once is left to the engine. ``host_layers``: the
    first layers, which stay with their cache in the host's memory; ``host_expert_layers``: those of
    which the experts do. The host computes with these.
    """

    uncounted: tuple[str, ...] = ()
    moved: frozenset[Moved] = frozenset()
    host_weights_bytes: float = 0.0
    cache_bytes: float | None = None
    cache_blocks: int | None = None
    cache_tokens: int | None = None
    adapters: Adapters | None = None
    sequences_open: bool = False
    host_layers: int = 0
    host_expert_layers: int = 0


NONE = Effects()
# What is said of an option with a meaning whose value has none here, such as a cache format.
OTHER_VALUE = Unmodelled(what="a value that is not counted")


def effects_of(
    spec: Engine,
    values: Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
    model: ModelSpec | None = None,
) -> Effects:
    """Return the effects of options and environment variables on an engine and, if any, a model.

    Values of another kind than an option takes do nothing here: what starts the engine refuses
    them. Tiers below the devices' cache are told elsewhere (``space.kv_offload``).
    """
    grammar = grammars().get(spec.wraps or spec.name)
    if grammar is None or not (values or variables):
        return NONE
    values = {name.lstrip("-").replace("-", "_"): value for name, value in values.items()}
    rows = [
        (f"--{name.replace('_', '-')}", row)
        for name, row in grammar.unmodelled.items()
        if name in values and str(values[name]) not in row.unless
    ]
    rows += [
        (f"--{name.replace('_', '-')} {values[name]}", OTHER_VALUE)
        for name, words in grammar.words.items()
        if isinstance(values.get(name), str) and values[name] not in words
        if name not in grammar.unmodelled
    ]
    rows += [
        (name, row)
        for name, row in grammar.variables.items()
        if name in (variables or {}) and str((variables or {})[name]) not in row.unless
    ]
    sentences = tuple(uncounted_sentence(word, row) for word, row in rows)
    moved = frozenset(moved for _, row in rows for moved in row.moves)
    counted = _counted_effects(grammar, values, model)
    if counted.get("host_layers") or counted.get("host_expert_layers"):
        sentences, moved = (*sentences, _host_layers_sentence(counted)), moved | {"memory", "time"}
    effects = Effects(sentences, moved, **counted)
    return NONE if effects == NONE else effects


def _host_layers_sentence(counted: Mapping[str, Any]) -> str:
    """The sentence on what the host computes."""
    layers, experts = counted.get("host_layers"), counted.get("host_expert_layers")
    parts = [f"{layers} layers"] if layers else []
    parts += [f"the experts of {experts} layers"] if experts else []
    return f"{' and '.join(parts)} stay in the host's memory; its speed is assumed."


def uncounted_sentence(word: str, row: Unmodelled) -> str:
    """The sentence that an option or a variable is not counted."""
    return f"{word} is not in the estimate ({row.what})."


def _counted_effects(
    grammar: Grammar, values: Mapping[str, Any], model: ModelSpec | None
) -> dict[str, Any]:
    """Return what options that are counted say, as fields of `Effects`."""
    options: dict[Counted, Any] = {}
    for name, meaning in grammar.counted.items():
        if values.get(name) not in (None, False, "", []) or (
            meaning == "device_layers" and values.get(name) == 0
        ):
            options.setdefault(meaning, values[name])
    out: dict[str, Any] = {}
    if (gib := _option_number(options.get("host_weights_gib"))) > 0:
        out["host_weights_bytes"] = gib * GIB
    if (size := _option_number(options.get("cache_bytes"))) > 0:
        out["cache_bytes"] = size
    if (blocks := _option_number(options.get("cache_blocks"))) > 0:
        out["cache_blocks"] = int(blocks)
    if (tokens := _option_number(options.get("cache_tokens"))) > 0:
        out["cache_tokens"] = int(tokens)
    if model is not None:
        out |= _layers_on_host(options, model)
    if options.get("adapters"):
        slots, rank = (
            _option_number(options.get("adapter_slots")),
            _option_number(options.get("adapter_rank")),
        )
        out["adapters"] = Adapters(int(slots) or 1, int(rank) or 16)
    return out


def _layers_on_host(options: Mapping[Counted, Any], model: ModelSpec) -> dict[str, int]:
    count, out = len(model.layers), dict[str, int]()
    if str(on_device := options.get("device_layers", "")).isdecimal():
        out["host_layers"] = max(count - int(on_device), 0)
    if any(isinstance(layer.mlp, MoeMlp) for layer, _ in model.kinds):
        experts = (
            count
            if options.get("host_experts")
            else _option_number(options.get("host_expert_layers"))
        )
        out["host_expert_layers"] = int(max(min(experts, count), 0))
    return out


def _option_number(value: Any) -> float:
    """A number that an option says, also as text; 0 for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
