"""Counts of a request's candidates before they are made, and of those that would fit."""

from __future__ import annotations

from dataclasses import replace

from recipe_core.base import budget
from recipe_core.base.errors import LimitError
from recipe_core.estimates.columns.splits import ExpertSharing, count_splits
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.profile import Device
from recipe_core.models.spec import ModelSpec
from recipe_core.request.schema import Options

# 16-bit formats, the one that models are published in first.
HALVES = ("bf16", "fp16")


def model_on_device(model: ModelSpec, device: Device) -> ModelSpec:
    """The model as engines load it on a device: in the 16-bit format that the device computes in.

    A T4 has no bf16 (``--dtype half``), a TPU no fp16.
    """
    model = with_device_note(model, device)
    if model.dtype not in HALVES or model.dtype in device.weight_dtypes:
        return model
    dtype = next((half for half in HALVES if half in device.kv_dtypes), None)
    return model if dtype is None else replace(model, dtype=dtype)


def with_device_note(model: ModelSpec, device: Device) -> ModelSpec:
    """The model with what every answer about the device has to say."""
    if device.caveat is None or device.caveat in model.notes:
        return model
    return replace(model, notes=(*model.notes, device.caveat))


# Options of which every value multiplies the candidates.
MULTIPLYING = (
    "hardware",
    "engines",
    "weight_dtypes",
    "kv_dtypes",
    "speculative",
    "max_batched_tokens",
    "loads",
)


def check_size(candidates: int, options: Options) -> None:
    """Take note of a plan's candidates, or refuse more than the budget allows.

    Raises:
        LimitError: names the longest option, and how many of its values would fit.
    """
    cap = budget.most_candidates()
    if cap is None or candidates <= cap:
        budget.count_planned(candidates)
        return
    excess = f"make {candidates:,} candidates; at most {cap:,} are evaluated in one plan."
    values = {name: len(getattr(options, name)) for name in MULTIPLYING}
    longest = max(values, key=lambda name: values[name])
    fitting = values[longest] * cap // candidates
    if values[longest] > 1 and fitting:
        raise LimitError(
            f"its {values[longest]} values {excess}",
            field=f"options.{longest}",
            hint=f"Give at most {fitting}.",
        )
    several = [f"options.{name}" for name, count in values.items() if count > 1]
    raise LimitError(
        f"the values of {', '.join(several) or 'the request'} {excess}",
        field=several[0] if several else "hardware.nodes",
        hint=f"Give fewer: {candidates / cap:,.0f} times too many.",
    )


def check_loads(candidates: int) -> None:
    """Take note of a plan's candidates, those of the loads searched so far among them.

    Raises:
        LimitError: for more than the budget allows.
    """
    cap = budget.most_candidates()
    if cap is not None and candidates > cap:
        raise LimitError(
            f"is searched for every layout, which makes over {cap:,} candidates, the most that are "
            "evaluated in one plan.",
            field="workload.concurrency",
            hint="State it, or give fewer devices, formats or engines.",
        )
    budget.raise_planned(candidates)


def check_splits(
    place: Cluster, shares_experts: ExpertSharing, kv_heads: int | None, devices: int
) -> int:
    """Return how many splits a cluster has.

    Raises:
        LimitError: for more than the budget allows, with the nodes that would fit.
    """
    cap = budget.most_candidates()
    count = count_splits(devices, shares_experts=shares_experts, kv_heads=kv_heads)
    if cap is None or count <= cap:
        return count
    fitting, beyond = 0, devices
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if count_splits(middle, shares_experts=shares_experts, kv_heads=kv_heads) <= cap:
            fitting = middle
        else:
            beyond = middle
    nodes = fitting // place.per_node
    nodes_text = f", {nodes:,} nodes of {place.per_node}" if nodes else ""
    raise LimitError(
        f"{devices:,} devices make {count:,} candidates; at most {cap:,} are evaluated in one "
        "plan.",
        field="hardware.nodes",
        hint=f"Plan at most {fitting:,} devices{nodes_text}.",
    )


def check_training_size(candidates: int, clusters: int) -> None:
    """Take note of a training plan's candidates so far, or refuse more than the budget allows.

    ``candidates`` of all its ``clusters``.

    Raises:
        LimitError: says what narrows the search.
    """
    cap = budget.most_candidates()
    if cap is not None and candidates > cap:
        on = f" on {clusters} clusters" if clusters > 1 else ""
        fewer = ", or give fewer options.hardware" if clusters > 1 else ""
        raise LimitError(
            f"the layouts of this run{on} make over {cap:,} candidates, the most that are "
            "evaluated in one plan.",
            field="candidate",
            hint=f"State some of TP, PP, CP, EP, micro_batch, or options.nodes: all{fewer}.",
        )
    budget.count_planned(candidates)
