"""Plans and estimates as text for a terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Bool, Int
from recipe_core.base.columns import aligned
from recipe_core.base.labels import RUN_SHARES, TRAINING_CAUSES, TRAINING_MEMORY, split_name
from recipe_core.base.text_rows import cost_text, is_pooled, memory_rows, text_rows
from recipe_core.base.units import chance_text, duration, gib, rate, significant, usd
from recipe_core.base.units import count as count_text
from recipe_core.plans.measures import days, kept
from recipe_core.plans.plan import Plan
from recipe_core.plans.rows import TIED
from recipe_core.views.calibrated import calibrated_lines
from recipe_core.views.reinforcement_text import reinforcement_lines
from recipe_core.views.verdict import counts

if TYPE_CHECKING:  # importing these would triple the time until a plan is printed
    from recipe_core.plans.sensitivity import Flip
    from recipe_core.recipe import Recipe
    from recipe_core.recipe.convert import Conversion
    from recipe_core.recipe.lockcheck import Difference
    from recipe_core.recipe.resolve import Resolved

REFUSALS_SHOWN = 12
LEAST_FAILURES = 0.001
"""Expected failures below which nobody cares how many."""
BEATEN_SHOWN = 5
STATE_PRICE = "State usd_per_device_hour of its hardware"
_NUMBER = re.compile(r"\d[\d.,]*")


def plan_text(plan: Plan, top: int, flips: Sequence[Flip] | None = None) -> str:
    """The ``top`` splits as a table, the ``flips`` of a sensitivity if any, reasons of refusals."""
    problem = plan.problem
    devices = " or ".join(f"{c.devices} × {c.device.title}" for c in problem.clusters)
    parts = [f"{problem.model.name} on {devices}: {counts(plan)}"]
    for c in problem.clusters:
        parts.append(f"price of {c.device.name}: {c.price_text()}")
        if c.price_note and c.usd_per_device_hour is not None:
            parts.append(f"  {c.price_note}")
        parts.append(c.device.announcement or "")
    if len(plan.order):
        parts.append(_best(plan, top))
        parts += [
            *_queueing(plan),
            *_sure(plan),
            *_beaten(plan, top),
            *_tied(plan),
            *_unpriced(plan),
            plan.launch_note or "",
        ]
        parts += calibrated_lines(plan.problem.corrections)
        if plan.uncertain[plan.order[0]]:
            first = plan.candidate(int(plan.order[0]))
            parts += change_lines((change.to_json() for change in plan.changes()), first)
    else:
        parts += _nearest(plan)
    if flips is not None:
        parts += ["what would change the choice:", *map(_flip, flips)]
    parts.append(_refused(plan))
    return "\n".join(part for part in parts if part)


def _beaten(plan: Plan, top: int) -> list[str]:
    """With what probability the first split beats the next ones."""
    others = plan.order[1 : min(top, BEATEN_SHOWN + 1)]
    if not len(others):
        return []
    chances = enumerate(plan.beats(others, int(plan.order[0])), 2)
    beaten = [f"{rank}: {chance_text(1 - one)}" for rank, one in chances if one is not None]
    if not beaten:
        return []
    return [f"probability that 1 measures better (by {_goals(plan)}) than {', '.join(beaten)}"]


def _queueing(plan: Plan) -> list[str]:
    """That the first split queues, and how much it holds; or that it may not start."""
    first = int(plan.order[0])
    if plan.uncertain[first]:
        return [f"no split surely starts: 1 {plan.doubt(first)}"]
    text = plan.queue_text(first)
    return [f"no split holds the whole load: 1 starts and queues, it {text}"] if text else []


def _mark(plan: Plan, row: int) -> str:
    """A point on the front, or that a row queues or may not start: those are on none."""
    if plan.uncertain[row]:
        return "uncertain"
    if plan.queues[row]:
        return "queues"
    if not (plan.launch_note or plan.bundled(row)):
        return "no bundle"
    return "●" if plan.frontier[row] else ""


def _sure(plan: Plan) -> list[str]:
    """With which probability the first split keeps the limits."""
    sure = plan.confidence_text(int(plan.order[0]))
    return [f"1 {sure[0].lower()}{sure[1:]}"] if sure else []


def _goals(plan: Plan) -> str:
    return " and ".join(plan.request.objective.goals)


def _tied(plan: Plan) -> list[str]:
    if not plan.tied:
        return []
    many = plan.tied > 1
    return [
        f"{plan.tied} more {'tie' if many else 'ties'} with the first: "
        f"{'each' if many else 'it'} measures better than it with a probability of {TIED:.0%} or "
        "more. Of equal estimates the simplest is first: fewest devices, no pipeline, smallest tp"
    ]


def _unpriced(plan: Plan) -> list[str]:
    """Devices without a price, and how they rank."""
    return [f"{plan.price_note} {STATE_PRICE}"] if plan.price_note else []


def _flip(flip: Flip) -> str:
    if flip.candidate is None:
        return f"  {flip.what}: nothing can run"
    outcome = f"{split_name(flip.candidate)} is better" if flip.flips else "stays"
    return f"  {flip.what}: {outcome}"


def _nearest(plan: Plan) -> list[str]:
    row = plan.nearest_row()
    if row is None:
        return []
    from recipe_core.plans.changes import advice

    reasons = [*plan.reasons(row)]
    if changes := plan.changes():
        reasons.append(advice(changes, plan.candidate(row)))
    return [f"nearest: {plan.label(row)}", *(f"  {reason}" for reason in reasons)]


def _best(plan: Plan, top: int) -> str:
    """A table of the first ranked splits: degrees, engine, format, then the plan's measures."""
    options = plan.request.options
    texts: dict[str, Callable[[int], str]] = {"split": lambda row: split_name(plan.candidate(row))}
    if options.hardware:
        texts["device"] = lambda row: str(plan.setting(row).cluster.device.name)
    texts["engine"] = lambda row: str(plan.candidate(row)["engine"])
    texts["weights"] = lambda row: _format(plan.candidate(row))
    if "kv_dtype" in plan.differs:
        texts["cache"] = lambda row: str(plan.candidate(row)["kv_dtype"])
    numbers: dict[str, Callable[[int], str]] = {}
    if plan.loads_differ:
        numbers[plan.measures["load"].head] = partial(plan.text, "load")
    for name in dict.fromkeys((*plan.tabled, *plan.asked)):
        numbers[plan.measures[name].head] = partial(plan.text, name)
    if plan.limited:
        numbers["Sure"] = lambda row: chance_text(float(plan.confidence([row])[0]))
    rows = []
    for rank, row in enumerate(map(int, plan.order[:top]), 1):
        cells = [write(row) for write in (*texts.values(), *numbers.values())]
        rows.append([str(rank), *cells, _mark(plan, row)])
    width = max(shutil.get_terminal_size((140, 40)).columns, 100)
    return aligned(["rank", *texts, *numbers, "front"], rows, left=tuple(texts), width=width)


def _format(candidate: Mapping[str, Any]) -> str:
    return str(candidate.get("weight_dtype") or candidate.get("precision"))


def _refused(plan: Plan) -> str:
    """Refused splits: one for each set of reasons, with the number of others like it."""
    rows = np.flatnonzero(~plan.feasible)
    if not len(rows):
        return ""
    firsts, counts = _alike([broken[rows] for broken in plan.rules().values()], len(rows))
    groups: dict[str, tuple[int, list[str], int]] = {}
    examples = rows[firsts].tolist()
    for row, reasons, count in zip(
        examples, plan.sentences(examples), counts.tolist(), strict=True
    ):
        pattern = _NUMBER.sub("#", "; ".join(reasons))
        first, sentences, counted = groups.get(pattern, (row, reasons, 0))
        groups[pattern] = first, sentences, counted + count
    lines = [f"refused: {len(rows)}"]
    for row, reasons, count in list(groups.values())[:REFUSALS_SHOWN]:
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        lines.append(f"  {plan.label(row)}{more}: {'; '.join(reasons)}")
    rest = len(groups) - REFUSALS_SHOWN
    if rest > 0:
        lines.append(f"  … and {rest} more reasons (--json or --all FILE for all)")
    return "\n".join(lines)


def _alike(rules: Sequence[Bool], n: int) -> tuple[Int, Int]:
    """Groups of the ``n`` rows by the rules they break: their first rows, in order, and counts."""
    # The bits of a group's number are the rules that its rows break.
    groups = np.zeros(n, dtype=np.int64)
    for broken in rules:
        if groups.max() >> 61:  # no bit left: renumber the groups
            groups = np.unique(groups, return_inverse=True)[1]
        groups = 2 * groups + broken
    firsts, counts = np.unique(groups, return_index=True, return_counts=True)[1:]
    order = np.argsort(firsts)
    return firsts[order], counts[order]


# One estimate


def estimate_text(
    candidate: Mapping[str, Any],
    answer: Mapping[str, Any],
    rows: Iterable[tuple[str, str]] = (),
) -> str:
    """The estimate of one split for serving or training, with bands.

    ``rows``: what stands below it, such as what a device-hour costs.
    """
    head = [split_name(candidate), candidate["engine"], f"{_format(candidate)} weights"]
    if "kv_dtype" in candidate:
        head.append(f"{candidate['kv_dtype']} cache")
    lines = [", ".join(head)]
    if not answer["feasible"]:
        return "\n".join([*lines, "cannot run:", *(f"  {reason}" for reason in answer["reasons"])])
    lines += _training_lines(answer) if "training" in answer else _serving_lines(answer)
    beside = [f"  {name:26} {text}" for name, text in rows]
    return "\n".join([*lines, *beside, *(f"  note: {note}" for note in answer["notes"])])


def _serving_lines(answer: Mapping[str, Any]) -> list[str]:
    """Memory, cache, times and throughput with bands, cost."""
    lines, cached = _pairs(memory_rows(answer)), answer["memory"]["kv_cache_tokens"]
    if cached or not is_pooled(answer):
        lines.append(f"  {'KV cache holds':26} {cached:>14,} tokens")
    lines += _banded("serving", answer)
    if price := cost_text(answer):
        lines.append(f"  {'Cost':26} {price}")
    return lines + _accuracy_lines(answer.get("accuracy"))


def _accuracy_lines(accuracy: Mapping[str, Any] | None) -> list[str]:
    """What narrower formats keep, with its band and basis; nothing where none is narrower."""
    if not accuracy or not accuracy["techniques"]:
        return []
    names = " and ".join(accuracy["techniques"])
    if accuracy["value"] is None:
        return [f"  {'Accuracy kept':26} {'unknown':>14}   {names}: {accuracy['basis']}"]
    ends = f"{kept(accuracy['low'])} – {kept(accuracy['high'])}"
    return [f"  {'Accuracy kept':26} {kept(accuracy['value']):>14}   {ends}, {names}"]


def _banded(kind: str, answer: Mapping[str, Any]) -> list[str]:
    return [
        f"  {row.label:26} {row.value:>14}   {row.low} – {row.high}, {row.basis}"
        for row in text_rows(kind, answer)
    ]


def _pairs(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"  {label:26} {value:>14}" for label, value in rows]


def _training_memory(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Parts of the fullest stage's memory, their total, and what the run may use."""
    memory = answer["memory"]
    parts = [
        (title, gib(memory[f"{name}_bytes"]))
        for name, title in TRAINING_MEMORY.items()
        if memory[f"{name}_bytes"] > 0
    ]
    return [*parts, ("Total", gib(memory["total_bytes"])), ("Usable", gib(memory["usable_bytes"]))]


def _training_lines(answer: Mapping[str, Any]) -> list[str]:
    """Memory, times with bands, MFU, the parts of a step, the run and its checkpoints."""
    step, run, cost = answer["training"], answer["run"], answer["cost"]
    lines = _pairs(_training_memory(answer)) + _banded("training", answer)
    lines.append(f"  {'MFU':26} {step['mfu']:>14.1%}")
    if step.get("hfu") is not None:
        lines.append(f"  {'HFU, with recomputation':26} {step['hfu']:>14.1%}")
    lines.append("parts of a step:")
    parts = sorted(answer["breakdown_s"]["step"].items(), key=lambda item: -item[1])
    for name, seconds in parts:
        label, share = TRAINING_CAUSES.get(name, name), seconds / step["step_s"]
        if share > 0.001:
            lines.append(f"  {label:26} {duration(seconds):>14} {share:6.1%}")
    return [*lines, *reinforcement_lines(answer), *_run_lines(run, cost)]


def _run_lines(run: Mapping[str, Any], cost: Mapping[str, Any]) -> list[str]:
    """The whole run and its phases, what takes its time, failures and checkpoints."""
    lines, phases = [], run.get("phases") or []
    if run["wall_s"]:
        several = f" in {len(phases)} phases" if phases else ""
        price = f", {usd(cost['usd'])}" if cost["usd"] else ""
        lines.append(f"run: {run['steps']:,.0f} steps{several}, {days(run['wall_s'])}{price}")
    lines += [
        f"  {count_text(phase['tokens']):>8} tokens in steps of {phase['global_batch']:,} × "
        f"{phase['sequence_length']:,}: {phase['steps']:,.0f} steps of {duration(phase['step_s'])}"
        f", {days(phase['wall_s'])}"
        for phase in phases
    ]
    lines.append(
        f"goodput {run['goodput']:.1%}, MFU of the whole run {run['mfu']:.1%}; time goes to"
    )
    shares = sorted(run["time_shares"].items(), key=lambda item: -item[1])
    lines += [f"  {RUN_SHARES[name]:26} {part:>14.2%}" for name, part in shares if part > 0.00005]
    often = (run.get("failures") or 0.0) >= LEAST_FAILURES
    failed = f" ({significant(run['failures'])} expected in the run)" if often else ""
    lines.append(f"a failure every {days(run['mtbf_s'])}{failed}{_spares(run)}")
    size, interval = gib(run["checkpoint_bytes"]), duration(run["checkpoint_interval_s"])
    stall = duration(run["checkpoint_stall_s"])
    return [*lines, f"checkpoint of {size} every {interval}, which stops training for {stall}"]


def _spares(run: Mapping[str, Any]) -> str:
    """With what probability a spare node is there, where nodes stand by."""
    if run.get("spares_suffice") is None:
        return ""
    return f"; a spare takes over with a probability of {chance_text(run['spares_suffice'])}"


_CAN_RUN = {
    True: "yes: it can run",
    None: "uncertain: estimates do not tell whether it starts",
    False: "no: it cannot run",
}


def check_text(answer: dict[str, Any]) -> str:
    """A verdict with its reasons, a better split, and changes that make it run."""
    verdict = _CAN_RUN[answer["ok"]]
    if answer.get("confidence") is not None:
        sure = chance_text(answer["confidence"])
        verdict += f"; it keeps the limits with a probability of {sure}"
    lines = [verdict]
    if answer["ok"] is None:
        lines += [f"  why: {reason}" for reason in answer["reasons"]]
    lines.append(estimate_text(answer["candidate"], answer["estimate"]))
    if answer.get("unread"):
        lines.append(f"not checked: {' '.join(answer['unread'])}")
    better = answer["better"]
    if better is not None:
        lines.append(f"better: {split_name(better['candidate'])}: {_speed(better['estimate'])}")
    return "\n".join([*lines, *change_lines(answer["changes"], answer["candidate"])])


def change_lines(
    changes: Iterable[Mapping[str, Any]], beside: Mapping[str, Any] | None = None
) -> list[str]:
    """Say each change that makes a split run, in a line; the split, where another than one."""
    from recipe_core.plans.changes import change_text

    return [
        f"it works with {change_text(change['set'], change.get('candidate'), beside)}"
        for change in changes
        if change["set"]
    ]


def _speed(answer: Mapping[str, Any]) -> str:
    if training := answer.get("training"):
        return f"{rate(training['tokens_per_s'])}, {duration(training['step_s'])} per step"
    return serving_speed(answer)


def serving_speed(answer: Mapping[str, Any]) -> str:
    """Throughput and time per output token, or per request, of an estimate, in one phrase."""
    serving = answer["serving"]
    if is_pooled(answer):
        tokens = f"{rate(serving['input_tokens_per_s'])} of input"
        return f"{tokens}, {duration(serving['request_latency_s'])} per request"
    return f"{rate(serving['output_tokens_per_s'])}, {duration(serving['tpot_s'])} per output token"


def build_text(recipe: Recipe, output: Path, kept: str | None = None) -> str:
    """The estimate of what was built, where it is, what was ``kept`` there, and what comes next."""
    estimate = estimate_text(recipe.candidate, recipe.estimate)
    if scaling := recipe.estimate.get("scaling"):
        estimate += f"\n  {'Replicas':26} {scaling_text(scaling)}"
    written = f"{output}, {kept}" if kept else str(output)
    return f"{estimate}\nwrote {written}\nnext: recipe up {output} && recipe bench {output}"


def scaling_text(scaling: Mapping[str, Any]) -> str:
    """A policy's replicas, with what they cost a month as simulated and at most."""
    low, high = scaling["min_replicas"], scaling["max_replicas"]
    devices = scaling["devices_per_replica"]
    text = (
        f"{scaling['policy']}: {low} to {high} like this, of {devices} device{'s' * (devices > 1)}"
    )
    known, most = scaling.get("simulated"), scaling["usd_per_month_at_most"]
    if most is None:
        return text
    if known and known["current"]:
        text += f"; ${known['usd_per_month']:,.0f} a month as simulated"
    return f"{text}; ${most:,.0f} a month at most"


def lock_text(comparison: Sequence[Difference]) -> str:
    """A lock against this machine, one line per item."""
    words = {"same": "ok", "differs": "DIFFERS", "absent": "not here"}
    lines = []
    for item in comparison:
        installed = "" if item.found in (None, item.locked) else f", here {item.found}"
        lines.append(f"{words[item.level]:8}  {item.what}: {item.locked}{installed}")
    return "\n".join(lines)


_AS_IT_IS = "the recipe as it is; no variant is for these devices"


def resolved_text(recipe: Recipe, resolved: Resolved) -> str:
    """The variants that apply to other hardware, and the settings that change on it."""
    machine = f"{resolved.machine.count} × {resolved.machine.device}"
    applied = f"variants {', '.join(resolved.applied)}" if resolved.applied else _AS_IT_IS
    lines = [f"{recipe.name} on {machine}: {applied}"]
    before = {
        "candidate": recipe.candidate,
        "options": recipe.engine.options,
        "environment": recipe.environment,
    }
    for part, old in before.items():
        new = getattr(resolved.settings, part)
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                layer = resolved.provenance.get(f"{part}.{name}", "")
                origin = f" ({layer})" if name in new else ""
                change = f"{old.get(name, '–')} → {new.get(name, '–')}"
                lines.append(f"  {part}.{name}: {change}{origin}")
    return "\n".join([*lines, *(f"  note: {note}" for note in resolved.kept)])


def conversion_text(conversion: Conversion, output: Path | None) -> str:
    """The recipe of a conversion, and what it could not carry over."""
    recipe = conversion.recipe
    lines = [f"{recipe.name}: {recipe.model.id} on {recipe.device.count} × {recipe.device.title}"]
    lines.append(estimate_text(recipe.candidate, recipe.estimate))
    if conversion.carried:
        lines.append(f"carried over: {' '.join(conversion.carried)}")
    lines += [f"not carried over: {item.what} ({item.why})" for item in conversion.lost]
    if output:
        lines.append(f"wrote {output}")
    return "\n".join(lines)
