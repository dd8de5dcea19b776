"""Cuts of a model's widths by tensor parallelism, by each kind of tensor's format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.engines.support import Answer
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.kernels import replies_on_cuts
from recipe_core.estimates.rules.refusal import Refusal, indivisible_refusal
from recipe_core.models.spec import GroupedAttention, Layer, MoeMlp, Role, Stored

# What goes into the projection after the heads.
OUTPUT = "attention output"
# The smallest block that kernels take in place of one that a rank's share cuts.
FINEST_BLOCK = 32
# What holds of cut blocks where nobody asked the engine.
_BLOCK = Answer("no")


def width_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    """Widths must be divisible; a share must be whole blocks, or groups, where the engine says so.

    Each kind of tensor is asked by its own format: where precisions are mixed, shared experts may
    be in blocks although routed ones are not. An engine whose releases were asked decides what it
    refuses, pads or runs otherwise; of others cut blocks are refused (``validate_fp8_block_shape``
    of vLLM 0.32.0, which SGLang has too) and cut groups are uncertain.
    """
    quantization = setting.model.quantization
    proven = quantization is not None and not quantization.by_name
    for (name, width), formats in _by_width(setting, cases):
        uneven = np.any([cut for _, cut in formats], axis=0) & (width % cases.tp != 0)
        if name != OUTPUT:  # whose heads have a rule of their own
            yield indivisible_refusal("width", uneven, f"the {name} width {width} is", tp=cases.tp)
        for stored, cut in formats if proven else ():
            if stored and _scale_inputs(stored):
                yield _cut_refusal(
                    cases, cut & ~uneven, name, width, stored, _cut_reply(setting, name, stored)
                )


def unproven_blocks(setting: Setting, cases: Cases) -> Bool:
    """Cases that blocks would refuse if the checkpoint had those that its name suggests."""
    broken = np.full(len(cases), False)
    quantization = setting.model.quantization
    if quantization is None or not quantization.by_name:
        return broken
    for name, width, stored, cut in _cut_widths(setting, cases):
        broken |= _cut_refusal(
            cases, cut, name, width, stored, _cut_reply(setting, name, stored)
        ).broken
    return broken


def unknown_cuts(setting: Setting, cases: Cases) -> dict[str, Bool]:
    """Mark shares that cut a group with an effect that nobody knows, by sentence.

    The sentence names the share's width and format; its cases are those that cut it.
    """
    out: dict[str, Bool] = {}
    for name, width, stored, cut in _cut_widths(setting, cases):
        if _cut_reply(setting, name, stored).verdict != "unknown":
            continue
        broken = _cut_within(cases, cut, width, stored)
        if broken.any():
            size = _scale_inputs(stored)
            cut_text = f"a rank's share of the {name} width {width} cuts a group of {size} values"
            out[f"{cut_text} ({stored.dtype}), which {setting.engine.title} may not load"] = broken
    return out


def _cut_widths(setting: Setting, cases: Cases) -> Iterator[tuple[str, int, Stored, Bool]]:
    for (name, width), formats in _by_width(setting, cases):
        for stored, cut in formats:
            if stored and _scale_inputs(stored):
                yield name, width, stored, cut & (width % cases.tp == 0)


def _scale_inputs(stored: Stored) -> int | None:
    """Inputs that share a scale, of which a rank's share should be a multiple."""
    return stored.block or stored.group


def _cut_within(cases: Cases, cut: Bool, width: int, stored: Stored) -> Bool:
    return np.asarray(cut & (width / cases.tp % (_scale_inputs(stored) or 1) != 0))


def _cut_reply(setting: Setting, name: str, stored: Stored) -> Answer:
    """Return what the engine does with a share that cuts a block or group of a kind of tensor."""
    part = "experts" if name == "expert" else "dense"
    replies = replies_on_cuts(setting, part, stored.dtype)
    if stored.block and (not replies or replies[0].verdict == "unknown"):
        return _BLOCK
    return replies[0] if replies else Answer("unknown")


def _by_width(
    setting: Setting, cases: Cases
) -> Iterator[tuple[tuple[str, int], list[tuple[Stored | None, Bool]]]]:
    """Every cut width by name, with each format of its weights and where it is cut."""
    rules: dict[tuple[str, int, Stored | None], Bool] = {}
    for name, width, stored, cut in _widths(setting, cases):
        key = (name, width, stored)
        rules[key] = rules.get(key, np.full(len(cases), False)) | cut
    for (name, width), entries in groupby(rules.items(), key=lambda entry: entry[0][:2]):
        yield (name, width), [(stored, cut) for (_, _, stored), cut in entries]


def _cut_refusal(
    cases: Cases, cut: Bool, name: str, width: int, stored: Stored, reply: Answer
) -> Refusal:
    share, step = width / cases.tp, _scale_inputs(stored) or 1
    # What takes cut blocks scales finer ones: ``refine_fp8_moe_block_shape`` of vLLM 0.32.0.
    step = {"no": step, "yes": FINEST_BLOCK if stored.block else 1}.get(reply.verdict, 1)
    fix = "; share the experts (EP = TP × DP) instead of cutting them" if name == "expert" else ""
    unit_text = f"block of {stored.block}" if stored.block else f"group of {stored.group}"
    words = f" (“{reply.words[:160]}”)" if reply.words else ""
    return Refusal(
        "block",
        np.asarray(cut & (share % step != 0)),
        lambda i: (
            f"the {name} share {width}/{cases.tp[i]} = {share[i]:g} is not a multiple of the "
            f"{stored.dtype} {unit_text}{words}{fix}"
        ),
    )


def _widths(setting: Setting, cases: Cases) -> Iterator[tuple[str, int, Stored | None, Bool]]:
    """Every width that ranks cut, the format of its weights, and where they cut it."""
    always = np.full(len(cases), True)
    for layer, _ in setting.model.kinds:
        if isinstance(layer.mlp, MoeMlp):
            yield (
                "expert",
                layer.mlp.intermediate,
                _tensor_format(setting, layer, "moe.experts"),
                ~cases.shares_experts,
            )
            if layer.mlp.shared_intermediate:
                stored = _tensor_format(setting, layer, "moe.shared")
                if rounds_blocks(setting, "shared"):
                    stored = None
                cut = ~holds_shared_whole(setting, cases)
                yield "shared expert", layer.mlp.shared_intermediate, stored, cut
        elif layer.mlp is not None:
            yield (
                "feed-forward",
                layer.mlp.intermediate,
                _tensor_format(setting, layer, "mlp"),
                always,
            )
        if isinstance(layer.attention, GroupedAttention) and layer.attention.heads:
            inputs = layer.attention.heads * layer.attention.v_head_dim
            stored = _tensor_format(setting, layer, "attention.o")
            yield OUTPUT, inputs, stored, always


def rounds_blocks(setting: Setting, role: Role) -> bool:
    """Return whether the engine gives every rank whole scale blocks of a role of this model."""
    model_type, runtime = setting.model.model_type, setting.cluster.device.runtime
    return setting.engine.memory.rounds_blocks(model_type, role, runtime)


def holds_shared_whole(setting: Setting, cases: Cases) -> Bool:
    """Mark ranks that hold shared experts whole: data-parallel attention with tp, in vLLM."""
    joined = cases.shares_experts & (cases.tp > 1) & (cases.dp > 1)
    return joined & setting.engine.split.whole_shared_experts


def _tensor_format(setting: Setting, layer: Layer, name: str) -> Stored | None:
    """Return how a tensor of a layer is quantised in this checkpoint; None where it is not."""
    quantization = setting.model.quantization
    if quantization is None or setting.weight_dtype != quantization.dtype:
        return None
    row = next(item for item in layer.tensors(setting.model.hidden) if item.name == name)
    return row.stored or quantization.stored(row.role)
