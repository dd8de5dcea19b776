"""A trace in words, for the terminal."""

from __future__ import annotations

from typing import Any

from recipe_core.base.units import gib

ROLES = ("parameters", "gradients", "optimizer", "gathered", "activations", "temporary")
"""What is alive at a training step's peak."""


def trace_text(found: dict[str, Any]) -> str:
    """The traced figures beside how far the formulas are from them, and what was built."""
    off = {name: f" (formula {share:+.2%})" for name, share in found["differences"].items()}
    return "\n".join(
        [
            f"traced in {found['seconds']:g} s, stage {found['stage']} of the split, {found['layers']} layers:",
            f"  weights            {gib(found['weights_bytes'])} in {found['weight_dtype']}{off.get('weights', '')}",
            f"  cache per token    {found['kv_bytes_per_token']:,.0f} B in {found['kv_dtype']}{off.get('kv', '')}",
            f"  cache per request  {gib(found['kv_request_bytes'])}{off.get('kv_request', '')}",
            f"  activations        {gib(found['activations_peak_bytes'])} at the peak of a forward of {found['tokens']:,} tokens",
            f"  {found['method']}",
        ]
    )


def training_trace_text(found: dict[str, Any]) -> str:
    """Peaks of all stages by what is alive, what a step exchanges, and how far the formulas are from both."""
    differences = found["differences"]
    out = [
        f"traced in {found['seconds']:g} s, {found['devices']} devices, peak of each stage without the allocator's reserve:"
    ]
    for i, stage in enumerate(found["stages"]):
        off = differences.get(f"peak_memory_stage_{i}", differences["peak_memory"])
        out.append(
            f"  stage {i}  {gib(stage['peak_bytes'])} (formula {off:+.2%}): {stage['phase']}, {found['layers'][i]} layers"
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
        out += [f"           a step exchanges {', '.join(sent)}"] if sent else []
    traffic = [
        f"{name.removesuffix('_traffic')} {share:+.2%}"
        for name, share in differences.items()
        if name.endswith("_traffic")
    ]
    out += [f"  exchanged bytes, formula against trace: {', '.join(traffic)}"] if traffic else []
    return "\n".join([*out, f"  {found['method']}"])
