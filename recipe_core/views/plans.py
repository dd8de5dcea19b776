"""A plan's splits as a table, for terminal and pages, and the whole plan as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.units import (
    amount_text,
    chance_text,
    plain_range_text,
    round_significant,
    significant,
)
from recipe_core.plans.confidence_prices import price_confidences
from recipe_core.plans.evaluation import band_ends
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import (
    can_bundle,
    cluster_title,
    doubt_text,
    held_text,
    plan_launch_note,
    queue_text,
    row_load_text,
    split_label,
    split_labels,
)
from recipe_core.plans.rank import TIED, beats, count_ties, front_of_measures, nearest_row
from recipe_core.plans.splits import refusal_reasons, row_keys, row_reasons
from recipe_core.request.split_key import split_name
from recipe_core.views.columns import Column, terminal
from recipe_core.views.plan_words import (
    confidence_prices_text,
    limits_text,
    objective_measures,
    unpriced_note,
)
from recipe_core.views.verdict import calibrated_lines, split_counts_text

if TYPE_CHECKING:  # importing it would slow every plan down
    from recipe_core.plans.flips import Flip

Record = Mapping[str, Any]
# Differences of splits beside their degrees, in the order in which a chart chooses.
GROUPS = {
    "device": "Device",
    "load": "Load",
    "engine": "Engine",
    "weight_dtype": "Weight format",
    "kv_dtype": "Cache format",
}
HOLDS, QUEUES, UNCERTAIN = "holds", "queues", "uncertain"
FRONT = "◆"
REFUSALS_SHOWN = 12
BEATEN_SHOWN = 5
STATE_PRICE = "State usd_per_device_hour of its hardware"
_NUMBER = re.compile(r"\d[\d.,]*")


# --- columns -------------------------------------------------------------------------------------


def split_values(
    plan: Plan, rows: Sequence[int] | Int, *, ranges: bool = False, digits: int | None = None
) -> dict[str, Any]:
    """Rows of a plan by column: key, name, what they differ in, every measure in its unit.

    ``label`` is a split in full, ``split`` its degrees alone, ``state`` its state as text; with
    limits ``sure`` is the probability that they hold, in percent.

    Args:
        plan: the plan.
        rows: its rows.
        ranges: with the ends of the 80 % band of every measure that has one, as columns of their
            own (``tpot_low``, ``tpot_high``) and as text (``tpot_likely``).
        digits: significant digits of figures; all by default.
    """
    index = np.asarray(rows, dtype=int)
    numbers = index.tolist()
    values: dict[str, Any] = {
        "key": row_keys(plan, index),
        "label": split_labels(plan, index),
        "split": [split_name(candidate) for candidate in plan.candidates(index)],
        "state": [state_text(plan, row) for row in numbers],
    }
    for name in GROUPS:
        if name in plan.differs and name not in plan.measures:
            values[name] = [group_title(plan, name, row) for row in numbers]
    if stated_limits(plan):
        values["sure"] = _to_digits(plan.chances[index] * 100, digits)
    for name in plan.measures:
        values[name] = _to_digits(plan.values(name, index), digits)
        if ranges and plan.measures[name].band is not None:
            values |= _range_values(plan, name, index, digits)
    values["front"] = np.where(front_of_devices(plan, *plan.shown.axes)[index], FRONT, "")
    return values


def _to_digits(values: Float, digits: int | None) -> Float:
    return values if digits is None else np.asarray(round_significant(values, digits))


def _range_values(plan: Plan, name: str, rows: Int, digits: int | None) -> dict[str, Any]:
    factor = plan.measures[name].factor
    low, high = (end * factor for end in band_ends(plan, name, rows))
    return {
        f"{name}_low": _to_digits(low, digits),
        f"{name}_high": _to_digits(high, digits),
        f"{name}_likely": [
            plain_range_text(ends, significant) if np.isfinite(ends).all() else ""
            for ends in zip(low.tolist(), high.tolist(), strict=True)
        ],
    }


def group_title(plan: Plan, name: str, row: int) -> str:
    """A row's group by one of ``GROUPS``: ``H100 SXM5``, ``fp8 weights``."""
    if name == "device":
        return cluster_title(plan, row)
    if name == "load":
        return row_load_text(plan, row)
    return str(plan.spec.titles_of(plan.setting(row)).get(name, ""))


def state_text(plan: Plan, row: int) -> str:
    """``holds``, or the part of its load that a queueing row holds: ``queues: 9 of 64``.

    Of one that may not start the probability that it does: ``uncertain: starts with 37 %``.
    """
    if plan.uncertain[row]:
        return f"{UNCERTAIN}: starts with {chance_text(plan.columns['start_probability'][row])}"
    return f"{QUEUES}: {held_text(plan, row)}" if plan.queues[row] else HOLDS


def front_of_devices(plan: Plan, x: str, y: str) -> Bool:
    """Rows on the front of two measures; of several devices each on that of its own."""
    clusters = plan.clusters_of_rows
    fronts = [
        front_of_measures(plan, x, y, among=clusters == number) for number in np.unique(clusters)
    ]
    return np.asarray(np.any(fronts, axis=0))


def split_columns(plan: Plan) -> list[Column[Record]]:
    """Every column of a plan's splits; rows are records of ``split_values``."""
    columns = [Column[Record]("Layout", "split", align="left", name="split")]
    for name, title in GROUPS.items():
        if name not in plan.measures:
            columns.append(Column(title, name, align="left", name=name))
    states = "Holds the whole load at once, starts and queues, or may not start"
    sure = "Probability that all limits hold, if the layout were measured"
    columns += [
        Column("State", "state", align="left", help=states, name="state"),
        Column("Sure", "sure", _sure_text, help=sure, name="sure"),
    ]
    for name, measure in plan.measures.items():
        title = measure.column_title
        show = amount_text if measure.show is amount_text else significant
        columns.append(Column(title, name, show, help=measure.help, name=name))
        if plan.measures[name].band is not None:
            likely = f"{name}_likely"
            text = "Eight of ten measured runs are expected there"
            title = f"{measure.head}, likely"
            columns.append(Column(title, likely, align="left", help=text, name=likely))
    return [*columns, Column("Front", "front", align="left", name="front")]


def _sure_text(value: float) -> str:
    return chance_text(value / 100)


# --- the whole plan ------------------------------------------------------------------------------


def plan_text(plan: Plan, top: int, flips: Sequence[Flip] | None = None) -> str:
    """The ``top`` splits as a table, the ``flips`` of a sensitivity if any, reasons of refusals."""
    problem = plan.problem
    devices = " or ".join(f"{c.devices} × {c.device.title}" for c in problem.clusters)
    parts = [f"{problem.model.name} on {devices}: {split_counts_text(plan)}"]
    for cluster in problem.clusters:
        parts.append(f"price of {cluster.device.name}: {cluster.price_text()}")
        if cluster.price_note and cluster.usd_per_device_hour is not None:
            parts.append(f"  {cluster.price_note}")
        parts.append(cluster.device.caveat or "")
    parts += _ranked_lines(plan, top) if len(plan.order) else _nearest_lines(plan)
    if flips is not None:
        parts += ["what would change the choice:", *map(_flip_text, flips)]
    parts += _refused_split_lines(plan)
    return "\n".join(part for part in parts if part)


def _ranked_lines(plan: Plan, top: int) -> Iterator[str]:
    first = int(plan.order[0])
    yield _split_table(plan, top)
    if plan.uncertain[first]:
        yield f"no layout surely starts: 1 {doubt_text(plan, first)}"
    elif text := queue_text(plan, first):
        yield f"no layout holds the whole load: 1 starts and queues, it {text}"
    if sure := limits_text(plan, first):
        yield f"1 {sure}"
    if prices := price_confidences(plan):
        confidence = plan.request.objective.required_confidence
        yield f"price of certainty: {confidence_prices_text(prices, confidence)}"
    yield _beaten_text(plan, top)
    yield ties_text(plan)
    yield f"{unpriced_note(plan)} {STATE_PRICE}" if unpriced_note(plan) else ""
    yield plan_launch_note(plan) or ""
    yield from calibrated_lines(plan.problem.corrections)
    yield plan.own_runs_effect.text if plan.own_runs_effect else ""
    if plan.uncertain[first]:
        yield from change_lines(
            (change.to_json() for change in plan.changes()), plan.candidate(first)
        )


def _split_table(plan: Plan, top: int) -> str:
    rows = plan.order[:top].tolist()
    groups = {"engine", "weight_dtype", *plan.differs}
    values = split_values(plan, rows)
    for name in groups & GROUPS.keys() - values.keys():
        values[name] = [group_title(plan, name, row) for row in rows]
    values["state"] = [
        text if plan_launch_note(plan) or can_bundle(plan, row) else f"{text}, no bundle"
        for row, text in zip(rows, values["state"], strict=True)
    ]
    names = ["rank", "split", *(name for name in GROUPS if name in groups)]
    names += ["load"] if plan.request.loads_differ else []
    names += [*plan.shown.tabled, *objective_measures(plan)]
    names += ["sure"] if stated_limits(plan) else []
    names += ["state"] if set(values["state"]) != {HOLDS} else []
    values["rank"] = range(1, len(rows) + 1)
    records = [
        dict(zip(values, cells, strict=True)) for cells in zip(*values.values(), strict=True)
    ]
    by_name = {column.key: column for column in split_columns(plan)}
    by_name["rank"] = Column("Rank", "rank")
    columns = [by_name[name] for name in dict.fromkeys([*names, "front"])]
    return terminal(records, [column for column in columns if any(map(column.get, records))])


def _beaten_text(plan: Plan, top: int) -> str:
    rivals = plan.order[1 : min(top, BEATEN_SHOWN + 1)]
    chances = enumerate(beats(plan, rivals, int(plan.order[0])) if len(rivals) else (), 2)
    beaten = [
        f"{rank}: {chance_text(1 - chance)}" for rank, chance in chances if chance is not None
    ]
    if not beaten:
        return ""
    goals = " and ".join(plan.request.objective.goals)
    return f"probability that 1 measures better (by {goals}) than {', '.join(beaten)}"


def ties_text(plan: Plan) -> str:
    """Say how many rows tie with the first, and why it is first; empty where none does."""
    ties = count_ties(plan)
    if not ties:
        return ""
    several = ties > 1
    return (
        f"{ties} more {'tie' if several else 'ties'} with the first: "
        f"{'each' if several else 'it'} measures better than it with a probability of "
        f"{chance_text(TIED)} or more. Of equal estimates the simplest is first: fewest devices, "
        "no pipeline, smallest TP"
    )


def _flip_text(flip: Flip) -> str:
    if flip.candidate is None:
        return f"  {flip.title}: nothing can run"
    outcome = f"{split_name(flip.candidate)} is better" if flip.flips else "stays"
    return f"  {flip.title}: {outcome}"


def _nearest_lines(plan: Plan) -> list[str]:
    row = nearest_row(plan)
    if row is None:
        return []
    from recipe_core.plans.remedies import advice_text

    reasons = [*row_reasons(plan, row)]
    if changes := plan.changes():
        reasons.append(advice_text(changes, plan.candidate(row)))
    return [f"nearest: {split_label(plan, row)}", *(f"  {reason}" for reason in reasons)]


def change_lines(
    changes: Iterable[Mapping[str, Any]], beside: Mapping[str, Any] | None = None
) -> list[str]:
    """Say each change that makes a split run, in a line; the split, where another than one."""
    from recipe_core.plans.remedies import change_text

    return [
        f"it works with {change_text(change['set'], change.get('candidate'), beside)}"
        for change in changes
        if change["set"]
    ]


def _refused_split_lines(plan: Plan) -> Iterator[str]:
    """Refused splits: one for each set of reasons, with the number of others like it."""
    rows = np.flatnonzero(~plan.feasible)
    if not len(rows):
        return
    firsts, sizes = _group_alike([broken[rows] for broken in plan.rules.values()], len(rows))
    groups: dict[str, tuple[int, str, int]] = {}
    examples = rows[firsts].tolist()
    for row, reasons, size in zip(
        examples, refusal_reasons(plan, examples), sizes.tolist(), strict=True
    ):
        text = "; ".join(reasons)
        # reasons that differ in their numbers alone are one group
        pattern = _NUMBER.sub("#", text)
        first, example, number = groups.get(pattern, (row, text, 0))
        groups[pattern] = first, example, number + size
    yield f"refused: {len(rows)}"
    for row, text, number in list(groups.values())[:REFUSALS_SHOWN]:
        more = f" (and {number - 1} more like it)" if number > 1 else ""
        yield f"  {split_label(plan, row)}{more}: {text}"
    if (rest := len(groups) - REFUSALS_SHOWN) > 0:
        yield f"  … and {rest} more reasons (--json or --all FILE for all)"


def _group_alike(rules: Sequence[Bool], n: int) -> tuple[Int, Int]:
    """Groups of the ``n`` rows by the rules they break: their first rows, in order, and counts."""
    # The bits of a group's number are the rules that its rows break.
    groups = np.zeros(n, dtype=np.int64)
    for broken in rules:
        if groups.max() >> 61:  # no bit left: renumber the groups
            groups = np.unique(groups, return_inverse=True)[1]
        groups = 2 * groups + broken
    firsts, sizes = np.unique(groups, return_index=True, return_counts=True)[1:]
    order = np.argsort(firsts)
    return firsts[order], sizes[order]
