"""Reports of experiments as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe_core.calibration.trials.tune import Tuned
from recipe_core.calibration.trials.verify import Comparison, Report

_SHOWN = ("output_tokens_per_s", "tpot_s", "ttft_s", "request_latency_s")


def verify_text(report: Report) -> str:
    """A reproducibility report: a table of comparisons, what was left out, the verdict."""
    recipe = report.recipe
    lines = [
        f"{recipe.name}: {recipe.engine.title} {recipe.engine.version}, "
        f"{recipe.device.count} × {recipe.device.title}; "
        f"{report.choice.prompts} prompts, {report.choice.tokens} tokens each",
        "",
    ]
    for comparison in report.comparisons:
        lines += _comparison(comparison)
    if report.left_out:
        lines += ["", "not compared:"]
        lines += [f"  {what}: {why}" for what, why in report.left_out.items()]
    outside = sum(one.verdict == "outside" for one in report.comparisons)
    verdicts = {
        "within": "every comparison is within its tolerance",
        "outside": f"{outside} of {len(report.comparisons)} comparisons are outside tolerance",
        "not judged": "nothing could be judged",
    }
    return "\n".join([*lines, "", verdicts[report.verdict]])


def _comparison(one: Comparison) -> list[str]:
    alike, apart = one.alike, one.apart
    numbers = [f"{alike.identical} of {alike.prompts} answers identical"]
    if alike.first_divergence:
        middle, least = (alike.first_divergence[name] for name in ("median", "least"))
        numbers.append(f"others part at {alike.unit[:-1]} {middle:g} (median; first at {least:g})")
    if apart:
        numbers.append(f"log-probabilities differ {apart.mean_abs:.2g} (most {apart.max_abs:.2g})")
        if apart.kl_mean is not None:
            numbers.append(f"divergence {apart.kl_mean:.2g} nats")
    lines = [f"{one.title}: {one.verdict} tolerance ({one.kind})", f"  {'; '.join(numbers)}"]
    return [*lines, *(f"  {reason}" for reason in one.broken)]


def tune_text(outcome: Tuned, output: Path | None = None) -> str:
    """What a search found: the best trials, the gain over the recommended point, what is next."""
    tried = [row for row in outcome.trials if row["state"] == "measured"]
    count = {
        state: sum(row["state"] == state for row in outcome.trials)
        for state in ("measured", "given up", "failed", "not started")
    }
    lines = [
        f"{outcome.base.name}, by {outcome.aim.title}: "
        + ", ".join(f"{number} {state}" for state, number in count.items() if number)
        + f"; ended by {outcome.ended}",
    ]
    lines += [
        f"  limit {name} was not checked: {why}" for name, why in outcome.aim.unchecked.items()
    ]
    recommended = {knob.name: knob.values[knob.base] for knob in outcome.space}
    for row in sorted(tried, key=lambda row: (not row["keeps_limits"], row["score"]))[:5]:
        lines.append(f"  {_figures(row['metrics'])}  {moved(row['values'], recommended)}")
    if outcome.gain:
        gain = outcome.gain
        lines.append(
            f"measured again in {gain.pairs} pairs: {_percent(gain.mean)} "
            f"({_percent(gain.low)} to {_percent(gain.high)} with 90 % confidence; "
            f"the recommended point alone varies by {gain.noise:.1%})"
        )
    lines += outcome.notes
    if outcome.recipe is not None and outcome.best is not None:
        better = moved(outcome.best["values"], recommended)
        lines.append(f"better: {better}")
        where = (
            f"wrote {output}" if output else "-o BUNDLE --resume measures both again and writes it"
        )
        lines.append(where)
    return "\n".join(lines)


def moved(values: Mapping[str, Any], recommended: Mapping[str, Any]) -> str:
    """What of a point differs from the recommended one."""
    different = [f"{k}={_value(v)}" for k, v in values.items() if v != recommended[k]]
    return ", ".join(different) or "the recommended point"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        degrees: Sequence[str] = [f"{k}{v}" for k, v in value.items() if v > 1]
        return "·".join(degrees) or "one device"
    return "default" if value is None else str(value)


def _figures(metrics: Mapping[str, Any]) -> str:
    known = [(name, metrics.get(name)) for name in _SHOWN]
    return "  ".join(f"{name} {value:.4g}" for name, value in known if value is not None)


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"
