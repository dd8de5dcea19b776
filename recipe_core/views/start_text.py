"""A cold start as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.estimates.serving.cold_start import ColdStart


def start_text(candidate: Mapping[str, Any], devices: int, start: ColdStart) -> str:
    """Phases with their bands, the total, and what single changes save."""
    plural = "" if devices == 1 else "s"
    rows = [(part.name, part.seconds, part.low_s, part.high_s) for part in start.phases]
    rows.append(("total", start.seconds, start.low_s, start.high_s))
    width = max(len(name) for name, *_ in rows)
    lines = [
        f"A replica of {candidate['engine']} on {devices} device{plural} answers after "
        f"{seconds_text(start.seconds)} ({seconds_text(start.low_s)} to "
        f"{seconds_text(start.high_s)} in eight of ten starts).",
        "",
    ]
    for name, seconds, low_s, high_s in rows:
        band = f"{seconds_text(low_s)} to {seconds_text(high_s)}"
        lines.append(f"  {name:<{width}}  {seconds_text(seconds):>8}   {band}")
    if start.savings:
        lines += ["", "One change of options.start at a time saves:"]
        lines += [
            f"  {seconds_text(saving.seconds_saved):>8}  {saving.text} ({saving.change})"
            for saving in start.savings
        ]
    return "\n".join(lines)


def seconds_text(seconds: float) -> str:
    """Seconds as people say them: 0.4 s, 12 s, 3.5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
