"""A trace as text for the terminal."""

from __future__ import annotations

from typing import Any

from recipe_core.base.units import gib

# What a training step's peak consists of.
ROLES = ("parameters", "gradients", "optimizer", "gathered", "activations", "temporary")


def trace_text(traced: dict[str, Any]) -> str:
    """The traced bytes, how far the formulas are from them, and what was built."""
    off = {
        name: f" (formula {100 * share:+.2f} %)" for name, share in traced["differences"].items()
    }
    weights, peak = gib(traced["weights_bytes"]), gib(traced["activations_peak_bytes"])
    token = f"{traced['kv_bytes_per_token']:,.0f} B in {traced['kv_dtype']}"
    request, seconds = gib(traced["kv_request_bytes"]), f"{traced['seconds']:g}"
    return "\n".join(
        [
            f"traced in {seconds} s, stage {traced['stage']}, {traced['layers']} layers:",
            f"  weights            {weights} in {traced['weight_dtype']}{off.get('weights', '')}",
            f"  cache per token    {token}{off.get('kv', '')}",
            f"  cache per request  {request}{off.get('kv_request', '')}",
            f"  activations        {peak} at the peak of a forward of {traced['tokens']:,} tokens",
            f"  {traced['method']}",
        ]
    )


def training_trace_text(traced: dict[str, Any]) -> str:
    """Peaks of all stages by part, bytes exchanged, and how far the formulas are from both."""
    differences = traced["differences"]
    out = [
        f"traced in {traced['seconds']:g} s, {traced['devices']} devices; "
        "peak of each stage without the allocator's reserve:"
    ]
    for i, stage in enumerate(traced["stages"]):
        off = differences.get(f"peak_memory_stage_{i}", differences["peak_memory"])
        out.append(
            f"  stage {i}  {gib(stage['peak_bytes'])} (formula {100 * off:+.2f} %): "
            f"{stage['phase']}, {traced['layers'][i]} layers"
        )
        parts = [
            f"{role} {gib(stage[f'{role}_bytes'])}" for role in ROLES if stage[f"{role}_bytes"] > 0
        ]
        out.append(f"           {', '.join(parts)}")
        sent = [
            f"{group} {kind} {gib(n)}"
            for group, kinds in stage["sent_bytes"].items()
            for kind, n in kinds.items()
            if n > 0
        ]
        if sent:
            out.append(f"           exchanged per step: {', '.join(sent)}")
    traffic = [
        f"{name.removesuffix('_traffic')} {100 * share:+.2f} %"
        for name, share in differences.items()
        if name.endswith("_traffic")
    ]
    if traffic:
        out.append(f"  exchanged bytes, formula against trace: {', '.join(traffic)}")
    return "\n".join([*out, f"  {traced['method']}"])
