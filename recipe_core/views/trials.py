"""Reports of experiments, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recipe_core.calibration.trials.tune import Tuned
from recipe_core.calibration.trials.verify import Comparison, Report

FIGURES = ("output_tokens_per_s", "tpot_s", "ttft_s", "request_latency_s")
STATES = ("measured", "given up", "failed", "not started")
# Best trials of a search that are listed.
MAX_TRIALS = 5


def verify_text(report: Report) -> str:
    """A reproducibility report: the comparisons, what was left out, the verdict."""
    recipe, choice = report.recipe, report.choice
    lines = [
        f"{recipe.name}: {recipe.engine.title} {recipe.engine.version}, "
        f"{recipe.device.count} × {recipe.device.title}; "
        f"{choice.prompts} prompts, {choice.tokens} tokens each",
        "",
    ]
    for comparison in report.comparisons:
        lines += _comparison_lines(comparison)
    if report.left_out:
        lines += ["", "not compared:"]
        lines += [f"  {name}: {reason}" for name, reason in report.left_out.items()]
    outside = sum(comparison.verdict == "outside" for comparison in report.comparisons)
    verdicts = {
        "within": "every comparison is within its tolerance",
        "outside": f"{outside} of {len(report.comparisons)} comparisons are outside tolerance",
        "not judged": "nothing could be judged",
    }
    return "\n".join([*lines, "", verdicts[report.verdict]])


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    alike, apart = comparison.alike, comparison.apart
    numbers = [f"{alike.identical} of {alike.prompts} answers identical"]
    if alike.first_divergence:
        middle, first = (alike.first_divergence[name] for name in ("median", "least"))
        numbers.append(f"others part at {alike.unit[:-1]} {middle:g} (median; first at {first:g})")
    if apart:
        numbers.append(f"log-probabilities differ {apart.mean_abs:.2g} (most {apart.max_abs:.2g})")
        if apart.kl_mean is not None:
            numbers.append(f"divergence {apart.kl_mean:.2g} nats")
    yield f"{comparison.title}: {comparison.verdict} tolerance ({comparison.kind})"
    yield f"  {'; '.join(numbers)}"
    yield from (f"  {reason}" for reason in comparison.broken)


def tune_text(outcome: Tuned, output: Path | None = None) -> str:
    """The best trials of a search, the gain over the recommended point, and the next step."""
    states = Counter(row["state"] for row in outcome.trials)
    counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    lines = [f"{outcome.base.name}, by {outcome.aim.title}: {counts}; ended by {outcome.ended}"]
    lines += [
        f"  limit {name} was not checked: {reason}"
        for name, reason in outcome.aim.unchecked.items()
    ]
    recommended = {knob.name: knob.values[knob.base] for knob in outcome.space}
    measured = [row for row in outcome.trials if row["state"] == "measured"]
    ranked = sorted(measured, key=lambda row: (not row["keeps_limits"], row["score"]))
    for row in ranked[:MAX_TRIALS]:
        point = _changed_knobs(row["values"], recommended)
        lines.append(f"  {_trial_figures(row['metrics'])}  {point}")
    if gain := outcome.gain:
        mean, low, high = (f"{ratio - 1:+.1%}" for ratio in (gain.mean, gain.low, gain.high))
        lines.append(
            f"measured again in {gain.pairs} pairs: {mean} ({low} to {high} with 90 % confidence; "
            f"the recommended point alone varies by {gain.noise:.1%})"
        )
    lines += outcome.notes
    if outcome.recipe is not None and outcome.best is not None:
        lines.append(f"better: {_changed_knobs(outcome.best['values'], recommended)}")
        again = "-o BUNDLE --resume measures both again and writes it"
        lines.append(f"wrote {output}" if output else again)
    return "\n".join(lines)


def _changed_knobs(values: Mapping[str, Any], recommended: Mapping[str, Any]) -> str:
    changed = [
        f"{name}={_knob_text(value)}"
        for name, value in values.items()
        if value != recommended[name]
    ]
    return ", ".join(changed) or "the recommended point"


def _knob_text(value: Any) -> str:
    if isinstance(value, Mapping):
        degrees = [f"{name}{degree}" for name, degree in value.items() if degree > 1]
        return "·".join(degrees) or "one device"
    return "default" if value is None else str(value)


def _trial_figures(metrics: Mapping[str, Any]) -> str:
    figures = [(name, metrics.get(name)) for name in FIGURES]
    return "  ".join(f"{name} {value:.4g}" for name, value in figures if value is not None)
