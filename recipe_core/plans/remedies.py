"""Changes to a request, each really planned.

Such that help a plan with nothing feasible, or one refused split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.errors import RecipeError
from recipe_core.base.intervals import NORMAL, factor_at
from recipe_core.base.units import significant
from recipe_core.engines.options import COLUMNS
from recipe_core.plans.kind import DEGREES, Fields
from recipe_core.plans.launch_facts import DATA_TITLES, METHODS
from recipe_core.plans.limits import LIMITS, bounded_figures, limit_excess, stated_limits
from recipe_core.plans.rank import rows_beyond_limits
from recipe_core.plans.splits import broken_rules, row_key, row_request
from recipe_core.request.edit import change
from recipe_core.request.metrics import limits_by_name
from recipe_core.request.objective import BY_ESTIMATE
from recipe_core.request.split_key import split_name

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

AT_MOST = 3
# Feasible rows with the nearest degrees whose other choices are compared.
CLOSE = 50

# Options of which a split has the one value.
_OF_SPLIT = {
    "options.weight_dtypes": "candidate.weight_dtype",
    "options.kv_dtypes": "candidate.kv_dtype",
}

# What follows from a split rather than makes it another.
_ENGINE_LIMITS = ("shard", *COLUMNS, "batch_window_ms", "instances")


@dataclass(frozen=True, slots=True)
class Change:
    """Edits to a request (dotted fields and values), and the split that runs after them.

    ``fields`` is empty for the nearest split that runs already.
    """

    fields: Mapping[str, Any]
    candidate: Mapping[str, Any]
    key: str

    @property
    def split(self) -> str:
        return split_name(self.candidate)

    def to_json(self) -> dict[str, Any]:
        """``{"set": {field: value}, "candidate": {…}}``."""
        return {"set": dict(self.fields), "candidate": dict(self.candidate)}

    def __str__(self) -> str:
        return change_text(self.fields)


def change_text(
    fields: Mapping[str, Any],
    candidate: Mapping[str, Any] | None = None,
    beside: Mapping[str, Any] | None = None,
) -> str:
    """Say edits, and the split that runs after them where it is another than the one ``beside``."""
    edits = " and ".join(
        f"{field}: {list(value) if isinstance(value, tuple) else value}"
        for field, value in fields.items()
    )
    if candidate is None or beside is None:
        return edits
    names = ("engine", "weight_dtype", "kv_dtype")
    differing = [candidate[name] for name in names if candidate.get(name) != beside.get(name)]
    split = split_name(candidate)
    if split == split_name(beside) and not differing:
        return edits
    return f"{edits} ({', '.join([split, *differing])})"


def advice_text(changes: Sequence[Change], beside: Mapping[str, Any]) -> str:
    """Changes after which something fits, as a sentence that names other splits than ``beside``."""
    texts = (change_text(change.fields, change.candidate, beside) for change in changes)
    return f"It works with {'; or '.join(texts)}."


# A plan with nothing feasible


def helpful_changes(plan: Plan) -> list[Change]:
    """Up to ``AT_MOST`` changes that let a split in; none where one surely starts.

    Looser limits where only those refuse, else what the kind of workload offers: other number
    formats, a shorter context, states on the host, more devices.
    """
    if len(plan.order) and plan.certain[plan.order[0]]:
        return []
    looser = looser_limits(plan) if not len(plan.order) else []
    if looser:
        return [*_finer_format_change(plan), *looser][:AT_MOST]
    out: list[Change] = []
    tried: set[str] = set()
    for topic, fields in plan.spec.cures.remedies(plan):
        if len(out) == AT_MOST:
            break
        if topic not in tried and (best := _best_after(plan, fields)):
            tried.add(topic)  # the smallest change of each topic is enough
            out.append(best)
    return out


def _finer_format_change(plan: Plan) -> list[Change]:
    """The smallest number formats that keep the limit on accuracy; none where others are broken."""
    row = rows_beyond_limits(plan)[0]
    finer = plan.spec.cures.row_reliefs(plan, row, broken_rules(plan, row) & {"limit-accuracy"})
    after = (_best_after(plan, fields) for fields in finer)
    return [change for change in [next(filter(None, after), None)] if change is not None]


def looser_limits(plan: Plan) -> list[Change]:
    """Limits that would let a row in.

    Each alone where that is enough, else all that the nearest row breaks.
    """
    rows = rows_beyond_limits(plan)
    codes = {row: broken_rules(plan, row) for row in rows}
    alone = {}
    for row in reversed(rows):  # the nearest of each comes last
        if len(codes[row]) == 1:
            alone[next(iter(codes[row]))] = row
    nearest = [alone[code] for code in (*LIMITS, "confidence") if code in alone] or rows[:1]
    if plan.request.objective.judges_by_estimate:
        return [
            Change(_loosened_limits(plan, row, codes[row]), plan.candidate(row), row_key(plan, row))
            for row in nearest
        ]
    # what limits have to be so that they hold with the confidence is only close to what is computed
    for loosened in (_loosened_limits, _together_loosened):
        planned = (_best_after(plan, loosened(plan, row, codes[row])) for row in nearest)
        if changes := [change for change in planned if change]:
            return changes
    return []


def _together_loosened(plan: Plan, row: int, codes: frozenset[str]) -> dict[str, float]:
    """The limits that a row must have so that all hold together with the confidence asked for.

    Those among ``codes``, and those that it keeps too narrowly: of n limits each holds with
    1 − (1 − c) / n, which is enough whatever their errors share (Bonferroni).
    """
    bounded, limits = stated_limits(plan), plan.request.objective.limits
    needed = 1 - (1 - plan.request.objective.required_confidence) / len(bounded)
    narrow = {
        code
        for code in bounded
        if limit_excess(LIMITS[code], bounded_figures(plan, code)[[row]], limits)[0]
        * _limit_margin(plan, code, row, needed) ** (-1 if LIMITS[code].at_least else 1)
        > 1
    }
    return _loosened_limits(plan, row, (codes - {"confidence"}) | narrow, needed)


def _loosened_limits(
    plan: Plan, row: int, codes: frozenset[str], needed: float | None = None
) -> dict[str, float]:
    """The limits among ``codes`` at the row's own figures, or as it holds them with confidence.

    ``needed``: the confidence of each; the one asked for by default. Without those that are
    unknown.
    """
    figures = {
        code: float(bounded_figures(plan, code)[row]) * _limit_margin(plan, code, row, needed)
        for code in sorted(codes & set(LIMITS))
    }
    out = {
        f"objective.limits.{LIMITS[code].name}": LIMITS[code].loosened(figure)
        for code, figure in figures.items()
        if math.isfinite(figure)
    }
    if "confidence" in codes:
        chance = math.floor(float(plan.chances[row]) * 100) / 100
        if chance >= BY_ESTIMATE:
            return {**out, "objective.confidence": chance}
        return _loosened_limits(plan, row, frozenset(stated_limits(plan)))
    return out


def _limit_margin(plan: Plan, code: str, row: int, needed: float | None = None) -> float:
    """Return how many times a row's figure a limit must be to hold with a confidence.

    The ``needed`` one, else the one asked for; 1 where none is.
    """
    objective, block = plan.request.objective, plan.at(row)[0]
    errors = block.physics.uncertain(block.setting, LIMITS[code].column)
    if objective.judges_by_estimate or errors is None:
        return 1.0
    confidence = objective.required_confidence if needed is None else needed
    score = NORMAL.inv_cdf(1 - confidence if LIMITS[code].at_least else confidence)
    return float(factor_at(errors.factors, score))


def buildable_changes(plan: Plan, at_most: int = AT_MOST) -> list[Change]:
    """Changes after which a bundle can be made, each really planned; none where one can already."""
    out: list[Change] = []
    for fields in plan.spec.cures.launches(plan):
        if len(out) < at_most and (best := _best_after(plan, fields, bundled=True)):
            out.append(best)
    return out


def _best_after(plan: Plan, fields: Mapping[str, Any], *, bundled: bool = False) -> Change | None:
    """The change with the best split after it, None when there is still none.

    ``bundled``: one of which a bundle can be made.
    """
    best_plan = plan.replan_best(fields)
    if best_plan is None:
        return None
    after, row = best_plan
    if after.uncertain[row]:
        return None
    if _loses_bundle(plan, after) or (bundled and after.spec.launch_note(after)):
        return None
    return Change(fields, after.candidate(row), row_key(after, row))


def _loses_bundle(plan: Plan, after: Plan) -> bool:
    """Return whether a change leaves estimates only, where a bundle could be made before."""
    return after.spec.launch_note(after) is not None and plan.spec.launch_note(plan) is None


# One refused split


def fixes(plan: Plan, row: int, at_most: int = AT_MOST) -> list[Change]:
    """Changes that let this very split run, then the nearest split that runs already.

    None for a row that surely starts.
    """
    if plan.feasible[row] and plan.certain[row]:
        return []
    out: list[Change] = []
    for fields in _worth_trying(plan, row):
        if len(out) == at_most - 1:
            break
        if _runs_after(plan, row, fields):
            out.append(Change(fields, plan.candidate(row), row_key(plan, row)))
    nearest = nearest_feasible(plan, row)
    if nearest is not None:
        out.append(Change({}, plan.candidate(nearest), row_key(plan, nearest)))
    return out


def _worth_trying(plan: Plan, row: int) -> Iterator[Fields]:
    """Changes for the rules that a row breaks, the least intrusive first.

    Several rules are met together.
    """
    codes = broken_rules(plan, row) | ({"memory"} if plan.uncertain[row] else set())
    yield from plan.spec.cures.row_reliefs(plan, row, codes)
    limits = _loosened_limits(plan, row, codes)
    if codes and codes <= set(LIMITS):
        yield limits
    for fields in plan.spec.cures.row_cures(plan, row, codes):
        yield {**limits, **fields}


def _runs_after(plan: Plan, row: int, fields: Mapping[str, Any]) -> bool:
    carried = {name: fields[option][0] for option, name in _OF_SPLIT.items() if option in fields}
    try:
        request = change(row_request(plan, row), {**fields, **carried})
        after = plan.replan_stated(request)
    except RecipeError:
        return False
    return after is not None and bool(after.certain[0]) and not _loses_bundle(plan, after)


def nearest_feasible(plan: Plan, row: int) -> int | None:
    """The row that surely starts with the nearest degrees, by their logarithms.

    Of close ones the most alike; None when nothing surely starts.
    """
    starting = plan.order[plan.certain[plan.order]]
    if not len(starting):
        return None
    target = plan.candidate(row)
    ratios = [plan.columns[name][starting] / target[name] for name in DEGREES]
    distance = np.abs(np.log2(ratios)).sum(axis=0)
    close = starting[np.argsort(distance, kind="stable")[:CLOSE]]
    rows = map(int, close)
    return min(rows, key=lambda row: _candidate_distance(target, plan.candidate(row)))


def _candidate_distance(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Return how far two candidates are apart.

    Doublings of degrees, and one for every other choice that differs.
    """
    out = 0.0
    for name, value in a.items():
        value_b = b.get(name)
        if isinstance(value, bool) or not (
            isinstance(value, int | float) and isinstance(value_b, int | float)
        ):
            out += value != value_b
        elif name not in _ENGINE_LIMITS:
            out += abs(math.log2(max(value, 0.5) / max(value_b, 0.5)))
    return out


# labels of changes

_CHANGES: Mapping[str, str | Callable[[Any], str]] = {
    "options.weight_dtypes": "Use {0[0]} weights",
    "options.engines": "Use {0[0]}",
    "candidate.stream_interval": "Stream tokens {} at a time",
    "candidate.scheduler_recv_interval": lambda value: (
        "Check for requests " + ("in every step" if value == 1 else f"every {value:,} steps")
    ),
    "candidate.batch_window_ms": lambda value: f"Wait {significant(value)} ms to fill a batch",
    "candidate.instances": "Run {:,} instances a device",
    "candidate.offload": lambda value: (
        f"Keep {value}{'' if value == 'parameters' else ' states'} in host memory"
    ),
    "candidate.engine": "Train with {}",
    "workload.method": lambda value: f"Use {METHODS.get(value, value)}",
    "workload.data_format": lambda value: f"Train on {DATA_TITLES.get(value, value)}",
    "workload.tokens": "Train on {:,.0f} tokens",
    "workload.phases": "Train without phases",
    "workload.document_tokens": "Leave the length of documents out",
    "hardware.per_node": "Use {} devices per node",
    "hardware.nodes": "Use {} nodes",
    "workload.max_context": "Serve at most {:,} tokens",
    "workload.input_tokens": "Send prompts of {:,} tokens",
    "workload.output_tokens": "Generate {:,} tokens",
    "workload.concurrency": "Serve {:,} users at once",
    "workload.batch": "Use a batch of {:,}",
    "workload.request_rate": lambda value: f"Send {significant(value)} requests a second",
    "workload.sequence_length": "Train on sequences of {:,} tokens",
    "workload.global_batch": "Use a global batch of {:,} sequences",
    "workload.optimizer": "Use {}",
    "options.kv_dtypes": "Keep the cache in {0[0]}",
}


def change_label(changes: Mapping[str, Any]) -> str:
    """Changes to a request as the label of a button.

    Fields that are removed along with other changes are not mentioned.
    """
    shown = {field: value for field, value in changes.items() if value is not None} or changes
    words = [_change_text(field, value) for field, value in shown.items()]
    return " and ".join([words[0], *(word[0].lower() + word[1:] for word in words[1:])])


def _change_text(field: str, value: Any) -> str:
    limit = limits_by_name().get(field.removeprefix("objective.limits."))
    if limit is not None and value is not None:
        return limit.change_text(value)
    text = _CHANGES.get(field, f"Set {field} to {{}}")
    return text.format(value) if isinstance(text, str) else text(value)
