"""A calibration as text: its runs, what they taught, and how much nearer estimates come."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from recipe_core.accuracy.retained import Retained
from recipe_core.base.columns import aligned
from recipe_core.base.units import duration, significant
from recipe_core.calibration.calibrate import Knowledge
from recipe_core.calibration.kept_compressions import KeptCompression
from recipe_core.calibration.store import VARIABLE, Entry, default_path

TITLES = {
    "tpot_s": "time per output token",
    "ttft_s": "time to first token",
    "request_latency_s": "latency of a request",
    "output_tokens_per_s": "throughput",
    "step_s": "time of a training step",
}
SCALES = {"steps": "decode steps", "prompts": "prompts", "training": "training steps"}
WIDTH = 160
"""Columns of text that is not shown in a terminal."""
SHOWN = 40
"""Rows of a table; a calibration may hold a thousand runs."""


def calibration_text(knowledge: Knowledge, *, whole: bool = False) -> str:
    """What changed and what holds now; ``whole``: every run of the calibration too."""
    overlay = knowledge.overlay
    counts = overlay.stored
    parts = _changed(knowledge)
    if whole and overlay.entries:
        parts.append(_table(overlay.entries))
    if whole and overlay.compressions:
        parts.append(_checkpoints(knowledge, overlay.compressions))
    verb = "run counts" if counts.used == 1 else "runs count"
    state = f"{overlay.path}: {counts.used:,} {verb}"
    state += f", {counts.held:,} are held" if counts.held else ""
    state += f", {counts.expired:,} have expired" if counts.expired else ""
    if made := len(overlay.compressions):
        counting = len(overlay.compressed)
        verb = "checkpoint counts" if counting == 1 else "checkpoints count"
        state += f"; {counting:,} measured {verb}"
        state += f", {made - counting:,} expired" if made > counting else ""
    parts.append(state)
    parts += _errors(knowledge)
    parts += _numbers(knowledge)
    if overlay.path != default_path() and not knowledge.dry:
        parts.append(f"used where {VARIABLE}={overlay.path}")
    return "\n".join(parts)


def _changed(knowledge: Knowledge) -> list[str]:
    lines = []
    if added := knowledge.added:
        verb = "would add" if knowledge.dry else "added"
        count, made = len(added.entries), len(added.compressions)
        runs = f"{count:,} run{'s' * (count != 1)}"
        checkpoints = f"{made:,} measured checkpoint{'s' * (made != 1)}"
        both = [runs] * (bool(count) or not made) + [checkpoints] * bool(made)
        lines.append(f"{verb} {' and '.join(both)}")
        if added.known:
            lines[-1] += f"; {len(added.known):,} were there already"
        if added.entries:
            lines.append(_table(added.entries))
        if added.compressions:
            lines.append(_checkpoints(knowledge, added.compressions))
    if removed := knowledge.removed:
        names = ", ".join(run.name for run in removed[:5])
        more = f" and {len(removed) - 5:,} more" if len(removed) > 5 else ""
        lines.append(f"took back {len(removed):,}: {names}{more}")
    return lines


def _table(entries: Sequence[Entry]) -> str:
    head = ("run", "on", "engine", "figures", "counts until", "reason")
    rows = []
    for entry in entries[-SHOWN:]:
        state = entry.expires.isoformat() if entry.counts else entry.gate.state
        engine = f"{entry.engine} {entry.version}".strip()
        rows.append((entry.name, entry.device, engine, _figures(entry), state, entry.gate.reason))
    hidden = len(entries) - len(rows)
    more = f"\n  and {hidden:,} older ones (--json lists all)" if hidden else ""
    return aligned(head, rows, left=set(head), width=_width()) + more


def _checkpoints(knowledge: Knowledge, entries: Sequence[KeptCompression]) -> str:
    """Measured checkpoints beside what was expected of them."""
    head = ("checkpoint", "technique", "perplexity kept", "expected", "accuracy", "counts until")
    rows = []
    for entry, beside in knowledge.compared(entries[-SHOWN:]):
        run = entry.measured
        method = f"{run.technique} by {run.method}" if run.method else run.technique
        state = entry.expires.isoformat() if entry.counts else "expired"
        change = f"{share(beside.tasks)} → {share(beside.tasks_now)}"
        measured = f"{run.retained:.2%}"
        rows.append((run.model, method, measured, band(beside.perplexity), change, state))
    hidden = len(entries) - len(rows)
    more = f"\n  and {hidden:,} older ones (--json lists all)" if hidden else ""
    return aligned(head, rows, left={"checkpoint", "technique"}, width=_width()) + more


def band(kept: Retained) -> str:
    """An expected share with its 80 % band: ``95.5% (90.5% – 98.1%)``."""
    return f"{kept.value:.1%} ({kept.low:.1%} – {kept.high:.1%})" if kept.known else "unknown"


def share(kept: Retained) -> str:
    """An expected share."""
    return f"{kept.value:.1%}" if kept.known else "unknown"


def _width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


def _figures(entry: Entry) -> str:
    run = entry.measured
    times = (("TPOT", run.tpot_s), ("TTFT", run.ttft_s), ("step", run.step_s))
    parts = [f"{name} {duration(seconds)}" for name, seconds in times if seconds]
    if not parts and run.request_latency_s:
        parts = [f"latency {duration(run.request_latency_s)}"]
    if not parts and run.output_tokens_per_s:
        parts = [f"{significant(run.output_tokens_per_s)} tokens/s"]
    return ", ".join(parts)


def _errors(knowledge: Knowledge) -> list[str]:
    if not knowledge.errors:
        return []
    return [
        "median error of the runs that count, each estimated without itself:",
        *(
            f"  {TITLES[one.figure]:24} {one.before:6.1%} → {one.after:6.1%}  ({one.runs:,} runs)"
            for one in knowledge.errors
        ),
    ]


def _numbers(knowledge: Knowledge) -> list[str]:
    numbers = knowledge.numbers
    if not numbers:
        return []
    head = ("time of", "×", "80 %", "credibility", "runs", "scope")
    rows = []
    for one in numbers[:SHOWN]:
        band = f"{one.low:.3g} – {one.high:.3g}"
        weight, of = f"{one.weight:.0%}", f"{one.scope}: {', '.join(one.of)}"
        factor, runs = f"{one.factor:.3g}", f"{len(one.runs):,}"
        rows.append((SCALES[one.scale], factor, band, weight, runs, of))
    more = len(numbers) - SHOWN
    table = aligned(head, rows, left={"time of", "scope"}, width=_width())
    return ["learned:", table] + ([f"  and {more:,} more (--json)"] if more > 0 else [])
