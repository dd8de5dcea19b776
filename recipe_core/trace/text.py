"""A trace in words, for the terminal."""

from __future__ import annotations

from typing import Any

from recipe_core.units import gib


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
