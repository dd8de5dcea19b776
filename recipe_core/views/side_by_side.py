"""Kept choices beside each other: facts, figures with differences to one of them, commands.

Choices may be of different models, devices, loads and kinds of workload; each is one row of a plan
of its own. What cannot be compared is said, and no figure is best that was not asked the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.units import band_ends_text, chance_text, round_significant, share_text
from recipe_core.engines.training_programs import training_engine
from recipe_core.hardware.cluster import chip_title
from recipe_core.hardware.prices import price_month
from recipe_core.plans.alternatives import goal_measure
from recipe_core.plans.evaluation import band_ends
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import doubt_text, queue_text
from recipe_core.plans.rank import NO_DIFFERENCE, beats_elsewhere, is_tie, ties_elsewhere
from recipe_core.plans.splits import row_reasons
from recipe_core.request.describe import METHODS, load_name
from recipe_core.request.link import link_omissions
from recipe_core.request.metrics import Metric
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import base_model_name
from recipe_core.request.split_key import split_name
from recipe_core.request.training_workload import TrainingWorkload
from recipe_core.views.columns import UNKNOWN as NOTHING
from recipe_core.views.plan_words import used_devices_text
from recipe_core.views.verdict import goals_text, split_formats_text

# Share of a figure up to which a difference is called none.
SAME = 0.005
# Times a figure from which a difference is said as a factor, not in percent.
FACTOR = 10.0
_PER_HOUR = "usd_per_hour"
# Measures that stand among the facts.
_IN_FACTS = frozenset({"gpus", "load"})


@dataclass(frozen=True, slots=True)
class Choice:
    """A kept choice, evaluated: a row of a plan; ``error`` says why there is none."""

    name: str
    request: PlanRequest
    plan: Plan | None = None
    row: int = 0
    error: str = ""

    @property
    def holds(self) -> bool:
        return self.plan is not None and bool(self.plan.holds[self.row])


@dataclass(frozen=True, slots=True)
class Cell:
    """A fact or figure of one choice; ``difference`` is to the baseline's."""

    text: str
    band: str = ""
    difference: str = ""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A fact or figure of every choice."""

    title: str
    cells: tuple[Cell, ...]
    help: str = ""

    @property
    def differs(self) -> bool:
        return len({cell.text for cell in self.cells}) > 1


# --- facts


def compare_facts(choices: Sequence[Choice]) -> list[Line]:
    """Facts of each choice: model, devices, split, engine, formats, load, and whether it runs."""
    columns = [_choice_facts(choice) for choice in choices]
    titles = dict.fromkeys(title for column in columns for title in column)
    if len(set(_workload_kinds(choices))) == 1:
        titles.pop("Kind", None)
    return [
        Line(title, tuple(Cell(column.get(title, NOTHING)) for column in columns))
        for title in titles
    ]


def _choice_facts(choice: Choice) -> dict[str, str]:
    plan, row, request = choice.plan, choice.row, choice.request
    if plan is None:
        return {"State": f"cannot be evaluated: {choice.error}"}
    setting, candidate = plan.setting(row), plan.candidate(row)
    out = {
        "State": choice_state(choice),
        "Kind": "Training" if request.is_training else "Serving",
        "Model": plan.problem.model.name,
        "Devices": used_devices_text(plan, row),
        "Layout": split_name(candidate),
        "Engine": _engine_with_version(plan, row),
        "Formats": split_formats_text(candidate),
        **_work(request),
        "Goal": goals_text(request),
        "Keeps its limits": "no limits",
        "Price": setting.cluster.price_text(),
    }
    if stated_limits(plan):
        chance = float(plan.chances[row])
        out["Keeps its limits"] = chance_text(chance) if np.isfinite(chance) else NOTHING
    return out


def choice_state(choice: Choice) -> str:
    """The state of a choice with its reason: holds its load, starts and queues, or cannot run."""
    plan, row = choice.plan, choice.row
    if plan is None:
        return f"cannot be evaluated: {choice.error}"
    reasons = "; ".join(row_reasons(plan, row))
    if not plan.runs[row]:
        return f"cannot run: {reasons}"
    if not plan.feasible[row]:
        return f"beyond its limits: {reasons}"
    if plan.uncertain[row]:
        return doubt_text(plan, row)
    if plan.queues[row]:
        return f"starts and queues: {queue_text(plan, row)}"
    return "can run" if choice.request.is_training else "holds the load"


def _engine_with_version(plan: Plan, row: int) -> str:
    title = plan.spec.titles_of(plan.setting(row))["engine"]
    return f"{title} {_choice_engine_version(plan, row)}".strip()


def _choice_engine_version(plan: Plan, row: int) -> str:
    setting = plan.setting(row)
    if plan.kind == "training":
        return str(training_engine(setting.engine).version)
    return str(setting.engine.as_of or setting.engine.version)


def _work(request: PlanRequest) -> dict[str, str]:
    workload = request.workload
    if isinstance(workload, TrainingWorkload):
        step = f"{workload.global_batch:,} × {workload.sequence_length:,} tokens per step"
        return {"Load": step, "Method": METHODS.get(workload.method, workload.method)}
    lengths = f"{workload.input_tokens:,} → {workload.output_tokens:,} tokens"
    return {"Load": load_name(workload), "Lengths": lengths}


def _workload_kinds(choices: Sequence[Choice]) -> list[str]:
    return [choice.request.workload.kind for choice in choices]


# --- figures


def measures(choices: Sequence[Choice]) -> dict[str, Metric]:
    """Every measure that any choice has a figure of, by title, serving's first."""
    plans = [choice.plan for choice in choices if choice.plan is not None]
    out: dict[str, Metric] = {}
    for plan in sorted(plans, key=lambda plan: plan.kind):
        for name, measure in plan.measures.items():
            if name in _IN_FACTS:
                continue
            out.setdefault(measure.title, measure)
    return {
        title: measure
        for title, measure in out.items()
        if any(np.isfinite(value(choice, title)) for choice in choices)
    }


def value(choice: Choice, title: str) -> float:
    """A figure of a choice by its measure's title, SI; NaN where there is none.

    Of a measure in another unit than its column's (cost per month) it is the column's.
    """
    return value_with_band(choice, title)[0]


def value_with_band(choice: Choice, title: str) -> tuple[float, float, float]:
    """The same, and the ends of the range that eight of ten measured runs are expected in."""
    plan, row = choice.plan, choice.row
    if plan is not None:
        for name, measure in plan.measures.items():
            if measure.title == title:
                low, high = band_ends(plan, name, [row])
                return float(plan.raw(name)[row]), float(low[0]), float(high[0])
    return np.nan, np.nan, np.nan


def compare_figures(choices: Sequence[Choice], baseline: int = 0) -> list[Line]:
    """Every figure of every choice, each with its band and its difference to the baseline's.

    ``baseline``: the place of the choice that differences are to. The best of those that hold their
    load is marked where all with that figure are of one kind of workload. Of what both optimise a
    tie is said in place of a difference, and marked like the best.
    """
    return [
        Line(title, _cells(choices, measure, baseline), measure.help)
        for title, measure in measures(choices).items()
    ]


def _cells(choices: Sequence[Choice], measure: Metric, baseline: int) -> tuple[Cell, ...]:
    amounts = np.array([value(choice, measure.title) for choice in choices])
    best = _mark_best_choices(choices, measure, amounts)
    cells = []
    for n, choice in enumerate(choices):
        if not np.isfinite(amounts[n]):
            cells.append(Cell(NOTHING))
            continue
        _, low, high = value_with_band(choice, measure.title)
        has_band = np.isfinite(low) and np.isfinite(high)
        cells.append(
            Cell(
                measure.show(amounts[n]),
                band_ends_text((low, high), measure.show) if has_band else "",
                "" if n == baseline else _difference(choices, n, baseline, measure, amounts),
                best=bool(best[n]),
            )
        )
    return tuple(cells)


def _mark_best_choices(choices: Sequence[Choice], measure: Metric, amounts: Any) -> Any:
    """Marks of the best figures, to three digits; none where there is nothing to choose."""
    finite = np.isfinite(amounts)
    kinds = {
        kind for kind, has_value in zip(_workload_kinds(choices), finite, strict=True) if has_value
    }
    compared = finite & np.array([choice.holds for choice in choices])
    shown = round_significant(np.where(compared, amounts, np.nan))
    if measure.better == "neither" or len(kinds) > 1 or len(set(shown[compared])) < 2:
        return np.zeros(len(choices), dtype=bool)
    place = np.nanargmax(shown) if measure.more_is_better else np.nanargmin(shown)
    first = choices[int(place)]
    best = [of is first or _ties_by(measure, of, first) for of in choices]
    best = (shown == shown[place]) | (compared & np.array(best))
    return best & ~best[compared].all()


def _difference(
    choices: Sequence[Choice], n: int, baseline: int, measure: Metric, amounts: Any
) -> str:
    if _ties_by(measure, choices[n], choices[baseline]):
        return NO_DIFFERENCE
    return difference_text(amounts[n], amounts[baseline])


def _ties_by(measure: Metric, choice: Choice, base: Choice) -> bool:
    """Return whether a measure is all that two choices optimise, and they tie by it."""
    if choice.plan is None or base.plan is None or not _is_comparable(choice, base):
        return False
    goal = base.plan.measures[goal_measure(base.plan, base.row)]
    is_goal = len(base.request.objective.goals) == 1 and goal.title == measure.title
    return is_goal and ties_elsewhere(choice.plan, choice.row, base.plan, base.row)


def difference_text(amount: float, base: float) -> str:
    """A figure against the baseline's: ``−15 %``, ``× 12``, ``same``; empty where unknown."""
    if not (np.isfinite(amount) and np.isfinite(base)) or base == 0:
        return ""
    share = amount / base - 1
    if abs(share) < SAME:
        return "same"
    if amount / base >= FACTOR:
        return f"× {amount / base:,.0f}"
    return share_text(share, signed=True).replace("-", "−")


def chances(choices: Sequence[Choice], baseline: int = 0) -> Line | None:
    """Probabilities that each choice measures better than the baseline by its goal.

    Only for choices with the baseline's goal and kind of workload; None where there is none.
    """
    base = choices[baseline]
    cells = [Cell(NOTHING) if n != baseline else Cell("baseline") for n in range(len(choices))]
    for n, choice in enumerate(choices):
        if n == baseline or not (choice.holds and base.holds) or not _is_comparable(choice, base):
            continue
        assert choice.plan is not None and base.plan is not None  # noqa: S101, PT018 - they hold
        chance = beats_elsewhere(choice.plan, choice.row, base.plan, base.row)
        if chance is not None:
            tie = f" · {NO_DIFFERENCE}" if is_tie(chance) else ""
            cells[n] = Cell(chance_text(chance) + tie)
    if all(cell.text in (NOTHING, "baseline") for cell in cells):
        return None
    goal = goals_text(base.request).lower()
    return Line(
        f"Measures better by: {goal}",
        tuple(cells),
        "Probability that it is better than the baseline, if both were measured",
    )


def _is_comparable(first: Choice, second: Choice) -> bool:
    goals = first.request.objective.goals == second.request.objective.goals
    return goals and first.request.workload.kind == second.request.workload.kind


def cautions(choices: Sequence[Choice]) -> list[str]:
    """Reasons why figures of these choices do not mean the same, as sentences."""
    out = []
    if len(set(_workload_kinds(choices))) > 1:
        out.append(
            "Serving and training share devices, cost per hour and month, and power; their times, "
            "rates and costs per token are of different things."
        )
    for training in (False, True):
        alike = [choice.request for choice in choices if choice.request.is_training == training]
        questions = [_question(request) for request in alike]
        names = questions[0] if questions else {}
        parts = [name for name in names if len({str(question[name]) for question in questions}) > 1]
        if parts:
            listed = " and ".join(parts)
            who = "The runs" if training else "Choices of serving"
            out += [f"{who} differ in {listed}: a better figure may answer another question."]
    omitted = [sentence for choice in choices if (sentence := link_omissions(choice.request))]
    return [*out, *dict.fromkeys(omitted)]


def _question(request: PlanRequest) -> dict[str, Any]:
    workload = request.workload
    if isinstance(workload, TrainingWorkload):
        step = (workload.global_batch, workload.sequence_length)
        return {
            "model": base_model_name(request),
            "step": step,
            "run": (workload.method, workload.tokens),
        }
    lengths = (workload.input_tokens, workload.output_tokens)
    return {"model": base_model_name(request), "load": load_name(workload), "lengths": lengths}


# --- commands


def by_engine(choices: Sequence[Choice]) -> dict[str, list[Choice]]:
    """Choices that a program of one version starts, by its title."""
    out: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.plan is not None:
            out.setdefault(_engine_with_version(choice.plan, choice.row), []).append(choice)
    return out


def options_of(words: Sequence[str]) -> dict[str, str]:
    """A command's words by what they set: settings, the program, then each option.

    ``words`` are those of ``start_words``: an option stands with its value in one word.
    """
    out: dict[str, list[str]] = {}
    for word in words:
        name, value = _split_option(word)
        out.setdefault(name, []).append(value)
    return {name: " ".join(filter(None, values)) for name, values in out.items()}


def _split_option(word: str) -> tuple[str, str]:
    if word.startswith("-"):
        name, _, value = word.partition(" ")
        if "=" in name:
            name, _, value = word.partition("=")
        return name, value
    name, equals, value = word.partition("=")
    if equals and name.isidentifier() and name.isupper():
        return name, value
    return "program", word


def command_lines(commands: Sequence[Sequence[str]]) -> list[Line]:
    """Commands option by option, in the order of the first that has it; given as their words.

    An option without a value is ``set``; one that a command lacks is a dash.
    """
    columns = [options_of(words) for words in commands]
    titles = dict.fromkeys(name for column in columns for name in column)
    return [
        Line(title, tuple(Cell(_option_text(column, title)) for column in columns))
        for title in titles
    ]


def _option_text(column: Mapping[str, str], title: str) -> str:
    return column[title] or "set" if title in column else NOTHING


# --- export


def choices_frame(choices: Sequence[Choice]) -> pd.DataFrame:
    """A row for each choice: facts, then every figure with its band, SI, units in the names."""
    rows = []
    for choice in choices:
        row: dict[str, Any] = {"name": choice.name, "kind": choice.request.workload.kind}
        row |= {"state": choice_state(choice)}
        if choice.plan is not None:
            row |= _choice_row(choice, choice.plan)
        rows.append(row)
    table = pd.DataFrame(rows)
    for name, kind in table.dtypes.items():
        if kind == "object":  # mixed: every format has None for what is missing
            table[name] = table[name].where(table[name].notna(), None)
    return table


def _choice_row(choice: Choice, plan: Plan) -> dict[str, Any]:
    candidate, place = plan.candidate(choice.row), plan.setting(choice.row).cluster
    split = {k: v for k, v in candidate.items() if not isinstance(v, dict | list)}
    out: dict[str, Any] = {
        "model": plan.problem.model.name,
        "device": chip_title(place.device),
        "devices": int(plan.columns["gpus"][choice.row]),
        "devices_there": place.devices,
        "split": split_name(candidate),
        **split,
        "engine_version": _choice_engine_version(plan, choice.row),
        **_work(choice.request),
    }
    for measure in plan.measures.values():
        amount, low, high = value_with_band(choice, measure.title)
        out[measure.column] = amount
        if measure.column == _PER_HOUR:
            out["usd_per_month"] = price_month(amount)
        if np.isfinite(low) and np.isfinite(high):
            out |= {f"{measure.column}_low": low, f"{measure.column}_high": high}
    return out
