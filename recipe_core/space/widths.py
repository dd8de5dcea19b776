"""Whether tensor parallelism can cut the widths of a model, by each kind of tensor's format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.model.spec import Layer, MoeMlp, Role, Stored
from recipe_core.space.refusal import Refusal
from recipe_core.space.serving import Cases, Setting


def indivisible(code: str, broken: Bool, subject: str, cases: Cases) -> Refusal:
    """That tensor parallelism cannot cut something evenly."""
    return Refusal(code, broken, lambda i: f"{subject} not divisible by tp {cases.tp[i]}")


def width_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    """Widths must be divisible; a share of block-quantised weights must be whole blocks.

    Each kind of tensor is asked by its own format: where precisions are mixed, shared experts may
    be in blocks although routed ones are not. Source: vLLM 0.32.0, ``validate_fp8_block_shape`` in
    ``layers/quantization/utils/fp8_utils.py``, which every block-quantised matrix goes through.
    """
    quantization = setting.model.quantization
    proven = quantization is not None and not quantization.by_name
    for (name, width), formats in _by_width(setting, cases):
        uneven = np.any([cut for _, cut in formats], axis=0) & (width % cases.tp != 0)
        yield indivisible("width", uneven, f"the {name} width {width} is", cases)
        for stored, cut in formats if proven else ():
            if stored and stored.block:
                yield _block(cases, cut & ~uneven, name, width, stored)


def unproven_blocks(setting: Setting, cases: Cases) -> Bool:
    """Cases that blocks would refuse if the checkpoint had those that its name suggests."""
    broken = np.full(len(cases), False)
    quantization = setting.model.quantization
    if quantization is None or not quantization.by_name:
        return broken
    for (name, width), formats in _by_width(setting, cases):
        for stored, cut in formats:
            if stored and stored.block:
                whole = cut & (width % cases.tp == 0)
                broken |= _block(cases, whole, name, width, stored).broken
    return broken


def _by_width(
    setting: Setting, cases: Cases
) -> Iterator[tuple[tuple[str, int], list[tuple[Stored | None, Bool]]]]:
    """Every feed-forward width by name, with each format of its weights and where it is cut."""
    rules: dict[tuple[str, int, Stored | None], Bool] = {}
    for name, width, stored, cut in _widths(setting, cases):
        key = (name, width, stored)
        rules[key] = rules.get(key, np.full(len(cases), False)) | cut
    for (name, width), entries in groupby(rules.items(), key=lambda entry: entry[0][:2]):
        yield (name, width), [(stored, cut) for (_, _, stored), cut in entries]


def _block(cases: Cases, cut: Bool, name: str, width: int, stored: Stored) -> Refusal:
    block, share = stored.block or 1, width / cases.tp
    fix = "; share the experts (ep = tp × dp) instead of cutting them" if name == "expert" else ""
    return Refusal(
        "block",
        cut & (share % block != 0),
        lambda i: (
            f"the {name} share {width}/{cases.tp[i]} = {share[i]:g} is not a multiple of the "
            f"{stored.dtype} block of {block}{fix}"
        ),
    )


def _widths(setting: Setting, cases: Cases) -> Iterator[tuple[str, int, Stored | None, Bool]]:
    """Every feed-forward width, the format of its weights, and where tensor parallelism cuts it."""
    always = np.full(len(cases), True)
    for layer, _ in setting.model.kinds:
        if isinstance(layer.mlp, MoeMlp):
            yield (
                "expert",
                layer.mlp.intermediate,
                _format(setting, layer, "moe.experts"),
                ~cases.shares_experts,
            )
            if layer.mlp.shared_intermediate:
                stored = _format(setting, layer, "moe.shared")
                if rounds_blocks(setting, "shared"):
                    stored = None
                cut = ~holds_shared_whole(setting, cases)
                yield "shared expert", layer.mlp.shared_intermediate, stored, cut
        elif layer.mlp is not None:
            yield "feed-forward", layer.mlp.intermediate, _format(setting, layer, "mlp"), always


def rounds_blocks(setting: Setting, role: Role) -> bool:
    """Whether the engine gives every rank whole scale blocks of a role of this model."""
    model_type, runtime = setting.model.model_type, setting.cluster.device.runtime
    return setting.engine.memory.rounds_blocks(model_type, role, runtime)


def holds_shared_whole(setting: Setting, cases: Cases) -> Bool:
    """Where every rank holds shared experts whole: data-parallel attention with tp, in vLLM."""
    joined = cases.shares_experts & (cases.tp > 1) & (cases.dp > 1)
    return joined & setting.engine.split.whole_shared_experts


def _format(setting: Setting, layer: Layer, name: str) -> Stored | None:
    """How a tensor of a layer is quantised in this checkpoint; None where it is not."""
    quantization = setting.model.quantization
    if quantization is None or setting.weight_dtype != quantization.dtype:
        return None
    row = next(item for item in layer.tensors(setting.model.hidden) if item.name == name)
    return row.stored or quantization.stored(row.role)
