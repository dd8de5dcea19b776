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
from recipe_core.base.labels import TRAINING_CAUSES, TRAINING_MEMORY, split_name
from recipe_core.base.text_rows import cost_text, memory_rows, text_rows
from recipe_core.base.units import duration, gib, rate, significant, usd
from recipe_core.search.plan import Plan

if TYPE_CHECKING:  # what only names types here would triple the time until a plan is printed
    from recipe_core.recipe import Recipe
    from recipe_core.recipe.convert import Conversion
    from recipe_core.recipe.lockcheck import Difference
    from recipe_core.recipe.resolve import Resolved
    from recipe_core.search.sensitivity import Flip

REFUSALS_SHOWN = 12
_NUMBER = re.compile(r"\d[\d.,]*")


def plan_text(plan: Plan, top: int, flips: Sequence[Flip] | None = None) -> str:
    """The best splits as a table, then what would flip the decision where it was asked for, then why others are refused."""
    problem = plan.problem
    where = " or ".join(f"{c.devices} × {c.device.title}" for c in problem.clusters)
    parts = [f"{problem.model.name} on {where}: {len(plan.order)} of {len(plan)} splits can run"]
    if len(plan.order):
        parts.append(_best(plan, top))
        if plan.tied:
            parts.append(
                f"{plan.tied} more do as well as the first, which is the simplest of them: "
                "fewest devices, no pipeline, smallest tp"
            )
    else:
        parts += _nearest(plan)
    if flips is not None:
        parts += ["what would flip the decision:", *map(_flip, flips)]
    parts.append(_refused(plan))
    return "\n".join(part for part in parts if part)


def _flip(flip: Flip) -> str:
    if flip.candidate is None:
        return f"  {flip.what}: nothing can run"
    outcome = f"{split_name(flip.candidate)} is better" if flip.flips else "stays"
    return f"  {flip.what}: {outcome}"


def _nearest(plan: Plan) -> list[str]:
    row = plan.nearest_row()
    if row is None:
        return []
    from recipe_core.search.changes import advice

    changes = plan.changes()
    reasons = [*plan.reasons(row)]
    if changes:
        reasons.append(advice(changes))
    return [f"nearest: {plan.label(row)}", *(f"  {reason}" for reason in reasons)]


def _best(plan: Plan, top: int) -> str:
    """The first ranked splits: degrees, engine and format, then the measures that the kind of plan puts in tables."""
    options = plan.request.options
    texts: dict[str, Callable[[int], str]] = {"split": lambda row: split_name(plan.candidate(row))}
    if options.hardware:
        texts["device"] = lambda row: str(plan.setting(row).cluster.device.name)
    texts["engine"] = lambda row: str(plan.candidate(row)["engine"])
    texts["weights"] = lambda row: _format(plan.candidate(row))
    numbers: dict[str, Callable[[int], str]] = {}
    if options.loads:
        numbers["load"] = lambda row: significant(plan.columns["load"][row])
    for name in plan.tabled:
        numbers[plan.measures[name].head] = partial(plan.text, name)
    rows = []
    for rank, row in enumerate(map(int, plan.order[:top]), 1):
        cells = [write(row) for write in (*texts.values(), *numbers.values())]
        rows.append([str(rank), *cells, "●" if plan.frontier[row] else ""])
    width = max(shutil.get_terminal_size((140, 40)).columns, 100)
    return aligned(["rank", *texts, *numbers, "front"], rows, left=tuple(texts), width=width)


def _format(candidate: Mapping[str, Any]) -> str:
    return str(candidate.get("weight_dtype") or candidate.get("precision"))


def _refused(plan: Plan) -> str:
    """Refused splits: one of each kind of reason, with how many more there are."""
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
        first, sentences, before = groups.get(pattern, (row, reasons, 0))
        groups[pattern] = first, sentences, before + count
    lines = [f"refused: {len(rows)}"]
    for row, reasons, count in list(groups.values())[:REFUSALS_SHOWN]:
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        lines.append(f"  {plan.label(row)}{more}: {'; '.join(reasons)}")
    rest = len(groups) - REFUSALS_SHOWN
    if rest > 0:
        lines.append(f"  … and {rest} more reasons (--json or --all FILE for all)")
    return "\n".join(lines)


def _alike(rules: Sequence[Bool], n: int) -> tuple[Int, Int]:
    """Rows that break the same rules: the first row of each group, in order, and how many rows it has."""
    groups = np.zeros(n, dtype=np.int64)
    for broken in rules:
        if groups.max() >> 61:  # as many bits as there are: number the groups so far anew
            groups = np.unique(groups, return_inverse=True)[1]
        groups = 2 * groups + broken
    firsts, counts = np.unique(groups, return_index=True, return_counts=True)[1:]
    order = np.argsort(firsts)
    return firsts[order], counts[order]


# One estimate


def estimate_text(candidate: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """One estimate of either kind, with bands."""
    head = [split_name(candidate), candidate["engine"], f"{_format(candidate)} weights"]
    if "kv_dtype" in candidate:
        head.append(f"{candidate['kv_dtype']} cache")
    lines = [", ".join(head)]
    if not answer["feasible"]:
        return "\n".join([*lines, "cannot run:", *(f"  {reason}" for reason in answer["reasons"])])
    training = "training" in answer
    lines += _pairs(_training_memory(answer) if training else memory_rows(answer))
    if not training:
        lines.append(f"  {'KV cache holds':26} {answer['memory']['kv_cache_tokens']:>14,} tokens")
    for row in text_rows("training" if training else "serving", answer):
        lines.append(f"  {row.label:26} {row.value:>14}   {row.low} – {row.high}, {row.basis}")
    if training:
        lines += _training_lines(answer)
    elif price := cost_text(answer):
        lines.append(f"  {'Cost':26} {price}")
    return "\n".join([*lines, *(f"  note: {note}" for note in answer["notes"])])


def _pairs(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"  {label:26} {value:>14}" for label, value in rows]


def _training_memory(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Parts of the fullest stage's memory, then their total and what the run may use."""
    memory = answer["memory"]
    parts = [
        (title, gib(memory[f"{name}_bytes"]))
        for name, title in TRAINING_MEMORY.items()
        if memory[f"{name}_bytes"] > 0
    ]
    return [*parts, ("Total", gib(memory["total_bytes"])), ("Usable", gib(memory["usable_bytes"]))]


def _training_lines(answer: Mapping[str, Any]) -> list[str]:
    """MFU, the parts of a step, the run and its checkpoints."""
    step, run, cost = answer["training"], answer["run"], answer["cost"]
    lines = [f"  {'MFU':26} {step['mfu']:>14.1%}", "a step:"]
    parts = sorted(answer["breakdown_s"]["step"].items(), key=lambda item: -item[1])
    for name, seconds in parts:
        share = seconds / step["step_s"]
        if share > 0.001:
            lines.append(
                f"  {TRAINING_CAUSES.get(name, name):26} {duration(seconds):>14} {share:6.1%}"
            )
    if run["wall_s"]:
        price = f", {usd(cost['usd'])}" if cost["usd"] else ""
        days = significant(run["wall_s"] / 86_400)
        lines.append(f"run: {run['steps']:,.0f} steps, {days} days{price}")
    size, every = gib(run["checkpoint_bytes"]), duration(run["checkpoint_interval_s"])
    return [*lines, f"checkpoint of {size} every {every}; goodput {run['goodput']:.1%}"]


def check_text(answer: dict[str, Any]) -> str:
    """A verdict with its reasons and what would be better."""
    verdict = "yes: it can run" if answer["ok"] else "no: it cannot run"
    lines = [verdict, estimate_text(answer["candidate"], answer["estimate"])]
    if answer.get("unread"):
        lines.append(f"not looked at: {' '.join(answer['unread'])}")
    better = answer["better"]
    if better is not None:
        lines.append(f"better: {split_name(better['candidate'])}: {_speed(better['estimate'])}")
    lines += [
        f"it works with {field}: {value}"
        for change in answer["changes"]
        for field, value in change["set"].items()
    ]
    return "\n".join(lines)


def _speed(answer: Mapping[str, Any]) -> str:
    if training := answer.get("training"):
        return f"{rate(training['tokens_per_s'])}, {duration(training['step_s'])} a step"
    serving = answer["serving"]
    return f"{rate(serving['output_tokens_per_s'])}, {duration(serving['tpot_s'])} per output token"


def build_text(recipe: Recipe, output: Path) -> str:
    """What was built and what comes next."""
    estimate = estimate_text(recipe.candidate, recipe.estimate)
    return f"{estimate}\nwrote {output}\nnext: recipe up {output} && recipe bench {output}"


def lock_text(found: Sequence[Difference]) -> str:
    """A lock against what is here, one line a thing."""
    words = {"same": "ok", "differs": "DIFFERS", "absent": "not here"}
    lines = []
    for each in found:
        here = "" if each.found in (None, each.locked) else f", here {each.found}"
        lines.append(f"{words[each.level]:8}  {each.what}: {each.locked}{here}")
    return "\n".join(lines)


def resolved_text(recipe: Recipe, found: Resolved) -> str:
    """What a recipe is on other hardware."""
    where = f"{found.machine.count} × {found.machine.device}"
    lines = [f"{recipe.name} on {where}: {', '.join(found.applied) or 'no variant applies'}"]
    before = {
        "candidate": recipe.candidate,
        "options": recipe.engine.options,
        "environment": recipe.environment,
    }
    for part, old in before.items():
        new = getattr(found.settings, part)
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                layer = found.provenance.get(f"{part}.{name}", "")
                lines.append(
                    f"  {part}.{name}: {old.get(name, '–')} → {new.get(name, '–')}{f' ({layer})' if name in new else ''}"
                )
    return "\n".join([*lines, *(f"  note: {said}" for said in found.kept)])


def conversion_text(found: Conversion, output: Path | None) -> str:
    """The recipe that came out, and what was lost."""
    recipe = found.recipe
    lines = [f"{recipe.name}: {recipe.model.id} on {recipe.device.count} × {recipe.device.title}"]
    lines.append(estimate_text(recipe.candidate, recipe.estimate))
    lines += [f"taken over: {' '.join(found.carried)}"] if found.carried else []
    lines += [f"not taken over: {each.what} ({each.why})" for each in found.lost]
    return "\n".join([*lines, *([f"wrote {output}"] if output else [])])
