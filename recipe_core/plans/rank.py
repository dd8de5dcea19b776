"""The ranking of a plan's rows by its goals, and how surely one is better than another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.errors import InputError
from recipe_core.base.intervals import NORMAL
from recipe_core.base.units import round_significant
from recipe_core.estimates.bands import better_score, normal_probability
from recipe_core.plans.evaluation import repeat_blocks
from recipe_core.plans.kind import DEGREES
from recipe_core.plans.limits import LIMITS, bounded_figures, limit_excess
from recipe_core.request.metrics import is_more_better

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan


def front_of_columns(table: Plan, *columns: str, among: Bool | None = None) -> Bool:
    """Rows on the Pareto front of two or three columns, among those that hold their load.

    ``columns``: by default the tradeoff that plans of the kind state. ``among``: and among these
    rows only.

    Raises:
        InputError: for a column that there is not, or another number of them.
    """
    columns = columns or table.spec.frontier
    comparable = _comparable_columns(table)
    if not set(columns) <= set(comparable) or len(columns) not in (2, 3):
        raise InputError(
            f"a Pareto front is of two or three columns, not {', '.join(columns)}.",
            hint=f"Columns: {', '.join(comparable)}.",
        )
    signed = [
        (-1 if is_more_better(name) else 1) * np.asarray(table.columns[name], dtype=float)
        for name in columns
    ]
    finite: Bool = np.all(np.isfinite(signed), axis=0)
    rows = table.holds & finite if among is None else table.holds & finite & among
    return pareto_front(*signed, among=rows)


def _comparable_columns(table: Plan) -> tuple[str, ...]:
    quantities = [*table.blocks[0].quantities] if table.blocks else []
    derived = [measure.column for measure in table.measures.values()]
    return tuple(dict.fromkeys([*quantities, *derived, "gpus", "load"]))


def front_of_measures(table: Plan, *names: str, among: Bool | None = None) -> Bool:
    """Rows on the Pareto front of two or three measures; as ``front_of_columns``."""
    return front_of_columns(table, *(table.measures[name].column for name in names), among=among)


def front_with_accuracy(table: Plan) -> Bool | None:
    """Rows that no other beats in cost, time per output token or accuracy without losing one.

    Of devices without a price output per device stands for cost. None where rows do not differ in
    accuracy.
    """
    accuracy = table.columns["accuracy"][table.holds] if table.blocks else np.zeros(0)
    if len(np.unique(accuracy[np.isfinite(accuracy)])) < 2:
        return None
    cost = "usd_per_million_output_tokens"
    if not all(block.setting.cluster.usd_per_device_hour for block in table.blocks):
        cost = table.spec.unpriced[cost]
    return front_of_columns(table, cost, "tpot_s", "accuracy")


def pareto_front(*columns: Float, among: Bool) -> Bool:
    """Rows of ``among`` on the Pareto front of two or three quantities, of which less is better.

    No other row beats them in one without losing in another. Rows are walked from the best in the
    first quantity on. With two quantities one is on the front when it is better in the second than
    all before; with three when it is not beaten in both others by one before (kept as a staircase).
    Of equal rows the first counts.
    """
    on = np.zeros(len(among), dtype=bool)
    rows = np.flatnonzero(among)
    order = rows[np.lexsort(tuple(column[rows] for column in reversed(columns)))]
    if not len(order):
        return on
    if len(columns) == 2:
        second = columns[1][order]
        on[order[second < np.r_[np.inf, np.minimum.accumulate(second)[:-1]]]] = True
        return on
    stairs: list[tuple[float, float]] = []  # second rising, third falling
    for row, second, third in zip(order, columns[1][order], columns[2][order], strict=True):
        k = bisect_right(stairs, (second, np.inf))
        if k and stairs[k - 1][1] <= third:
            continue
        on[row] = True
        end = k
        while end < len(stairs) and stairs[end][1] >= third:
            end += 1
        start = k - 1 if k and stairs[k - 1][0] == second else k
        stairs[start:end] = [(float(second), float(third))]
    return on


# Splits whose goal agrees to so many significant digits are equally good.
TIE_DIGITS = 4
# Least gain, as a logarithm, with which a split of a kind that nobody measured comes first.
UNMEASURED_GAIN = 0.02
# Probability of beating the best split from which a split ties with it: estimates do not tell which
# of the two is better.
TIED = 0.4

# How a tie is said beside a figure.
NO_DIFFERENCE = "no measurable difference"

EVERY = slice(None)


def is_tie(chance: float) -> bool:
    """Return whether a probability of being better says that nobody can tell which is."""
    return TIED <= chance <= 1 - TIED


def score_rows(table: Plan) -> Float:
    """Score every row, less is better: the goals' quantities, their weights as powers.

    Of several goals it is the logarithm.
    """
    goals = table.request.objective.goals
    if len(goals) > 1:
        return log_score(table, EVERY, at_least=0.0)
    (goal,) = goals  # a single quantity as it is, so that ties are those of the quantity
    column, sign = table.spec.goals[goal]
    return np.asarray(np.sign(sign * goals[goal]) * _priced_column(table, column, EVERY))


def log_score(table: Plan, rows: Any, *, at_least: float | None = None) -> Float:
    """The logarithm of what rows are ranked by, goals weighed, less is better."""
    weighed = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for goal, weight in table.request.objective.goals.items():
            column, sign = table.spec.goals[goal]
            values = _priced_column(table, column, rows)
            if at_least is not None:
                values = np.maximum(values, at_least)
            weighed.append(np.asarray(sign * weight * np.log(values)))
        return add(weighed)


def _priced_column(table: Plan, name: str, rows: Any) -> Float:
    """A column; cost of devices without a price is counted in devices, beside no priced one."""
    values = np.asarray(table.columns[name][rows], dtype=float)
    if name not in table.spec.unpriced:
        return values
    rate = np.maximum(table.columns[table.spec.unpriced[name]][rows], 1e-12)
    return np.where(lacks_price(table)[rows], 1 / rate, values)


def counts_cost(table: Plan) -> bool:
    """Return whether a goal of the objective is about cost."""
    spec = table.spec
    return any(spec.goals[goal][0] in spec.unpriced for goal in table.request.objective.goals)


def lacks_price(table: Plan) -> Bool:
    """Rows whose score lacks a price, ranked after the others; none where cost is no goal."""
    if not counts_cost(table) or not table.blocks:
        return np.zeros(len(table), dtype=np.bool_)
    lacks = repeat_blocks(table, lambda block: block.setting.cluster.usd_per_device_hour is None)
    return np.asarray(lacks, dtype=np.bool_)


def is_row_priced(table: Plan, row: int) -> bool:
    return table.setting(row).cluster.usd_per_device_hour is not None


def rank_rows(table: Plan) -> Int:
    """Feasible rows, best first; equal ones by simplicity.

    Where cost counts, those without a price come after all others.
    """
    rows = np.flatnonzero(table.feasible)
    ranking = table.spec.ranking
    keys = [np.asarray(key)[rows] for key in ranking.simplicity(table)]
    keys.append(round_significant(table.score[rows], TIE_DIGITS))
    first = (*ranking.precedence(table), lacks_price(table))
    keys += [np.asarray(key)[rows] for key in first]
    order = np.asarray(rows[np.lexsort(keys)], dtype=np.int64)
    return _put_measured_first(table, order, [np.asarray(key) for key in first])


def _put_measured_first(table: Plan, order: Int, precedence: Sequence[Any]) -> Int:
    """The order, led by a row of a measured kind where the first one is not clearly better."""
    unmeasured = np.asarray(table.spec.ranking.unmeasured(table))
    if not len(order) or not unmeasured[order[0]]:
        return order
    gain = log_score(table, order) - log_score(table, order[:1])
    alike = (gain < UNMEASURED_GAIN) & ~unmeasured[order]
    for key in precedence:
        alike &= key[order] == key[order[0]]
    place = int(np.argmax(alike))
    return np.concatenate([order[[place]], np.delete(order, place)])


def beats(table: Plan, rows: Sequence[int] | Int, beside: int) -> list[float | None]:
    """The probability that each of some rows is better than another row, if both were measured.

    Better by the goals of the objective. Errors that all splits on one device and engine have in
    common cancel; of two engines on one device those that both share. None where only one of the
    two has a price, and cost is a goal.
    """
    index = np.asarray(rows, dtype=np.int64)
    chances = normal_probability(_better_scores(table, index, beside)).tolist()
    comparable = _alike_priced(table, index, beside).tolist()
    return [chance if alike else None for chance, alike in zip(chances, comparable, strict=True)]


def beats_elsewhere(
    table: Plan, row: int, beside: Plan, row_beside: int, *, gain: float | None = None
) -> float | None:
    """The probability that a row is better than one of another plan of the same objective.

    As ``beats``; None where only one of the two has a price, and the goals count it. ``gain``: by
    how much the logarithm of its score is better where both are sized to their estimates; None: as
    the plans count it.
    """
    if counts_cost(table) and is_row_priced(table, row) != is_row_priced(beside, row_beside):
        return None
    plain = log_score(beside, [row_beside]) - log_score(table, [row])
    gains = plain if gain is None else np.array([gain])
    sized = gain is not None
    score = _gain_scores(table, np.array([row]), gains, beside, row_beside, sized=sized)
    return float(normal_probability(score)[0])


def ties_elsewhere(table: Plan, row: int, beside: Plan, row_beside: int) -> bool:
    """Return whether nobody can tell which of two feasible rows of two plans measures better.

    A row that queues ties with none that holds its load, one that may not start with none that
    does.
    """
    states = ("feasible", "queues", "uncertain")
    alike = all(getattr(table, name)[row] == getattr(beside, name)[row_beside] for name in states)
    chance = beats_elsewhere(table, row, beside, row_beside) if alike else None
    return chance is not None and bool(table.feasible[row]) and is_tie(chance)


def tied_rows(table: Plan, rows: Int) -> Bool:
    """Mark rows that tie with the best: measured, each may as well be better (``TIED``)."""
    if not len(table.order):
        return np.zeros(len(rows), dtype=np.bool_)
    best = int(table.order[0])
    alike = table.feasible[rows] & (rows != best) & _alike_priced(table, rows, best)
    alike &= table.queues[rows] == table.queues[best]
    alike &= table.uncertain[rows] == table.uncertain[best]
    return np.asarray(alike & (_better_scores(table, rows, best) >= NORMAL.inv_cdf(TIED)))


def count_ties(table: Plan) -> int:
    """Return how many rows tie with the best."""
    return int(tied_rows(table, table.order).sum())


def _alike_priced(table: Plan, rows: Int, beside: int) -> Bool:
    lacks = lacks_price(table)
    return np.asarray(lacks[rows] == lacks[beside])


def _better_scores(table: Plan, rows: Int, beside: int) -> Float:
    """Normal scores of rows being better than another row by the goal, if both were measured.

    Estimates that agree to ``TIE_DIGITS`` count as equal.
    """
    gain = log_score(table, [beside]) - log_score(table, rows)
    equal = round_significant(table.score[rows], TIE_DIGITS) == round_significant(
        table.score[[beside]], TIE_DIGITS
    )
    return _gain_scores(table, rows, np.where(equal, 0.0, gain), table, beside)


def _gain_scores(
    table: Plan, rows: Int, gain: Float, beside: Plan, row_beside: int, *, sized: bool = False
) -> Float:
    """Normal scores of rows whose logarithmic scores are better by ``gain`` than another's."""
    ranking, setting = table.spec.ranking, beside.setting(row_beside)
    device, *engine = ranking.software(setting)
    moves = ranking.moves(beside, np.array([row_beside]), sized=sized)[0]
    out = np.zeros(len(rows))
    for block, places, _ in table.split_rows(rows):
        own_device, *own_engine = ranking.software(block.setting)
        own_moves = ranking.moves(table, rows[places], sized=sized)
        gains, errors = gain[places], ranking.errors
        same_device, same_engine = own_device == device, own_engine == engine
        if same_device and not same_engine and ranking.engine_errors and ranking.gap_shares:
            errors = ranking.engine_errors
            same = _same_layouts(table, rows[places], beside, row_beside)
            gains = np.where(same, gains * _measured_share(own_moves, ranking.gap_shares()), gains)
        out[places] = better_score(
            gains,
            own_moves,
            moves,
            (errors(block.setting), errors(setting)),
            shared=same_device and same_engine,
        )
    return out


def _measured_share(moves: Float, gap_shares: Float) -> Float:
    """The share of a gain that is measured, by the figures that move it (rows × figures)."""
    weights = np.abs(moves)
    return np.asarray(weights @ gap_shares / np.maximum(weights.sum(axis=1), 1e-12))


def _same_layouts(table: Plan, rows: Int, beside: Plan, row_beside: int) -> Bool:
    """Mark rows of the same devices, degrees and formats as another row."""
    alike = np.ones(len(rows), dtype=np.bool_)
    for name in (*DEGREES, "gpus"):
        alike &= np.asarray(table.columns[name])[rows] == beside.columns[name][row_beside]
    formats = _format_names(beside, row_beside)
    return np.asarray(alike & np.array([_format_names(table, int(row)) == formats for row in rows]))


def _format_names(table: Plan, row: int) -> tuple[str, ...]:
    names = table.spec.names_of(table.setting(row))
    return tuple(value for name, value in names.items() if name != "engine")


# refused rows

# Codes of refusals of which no load, limit, format, device or price is a cure: numbers that do not
# divide, and pipelines that a shorter one equals.
NEVER = frozenset(
    (
        *("heads", "kv-heads", "output-groups", "hidden", "width", "block", "layers"),
        *("no-experts", "experts", "expert-ranks", "ep-divides", "cp-divides"),
        *("idle-stages", "uneven-nodes", "virtual-stages", "schedule", "shard"),
        *("packing", "global-batch", "sequence"),
    )
)


def legal_rows(plan: Plan) -> Bool:
    """Rows that no rule of divisibility refuses; nobody could choose the others."""
    out = np.ones(len(plan), dtype=np.bool_)
    for code, broken in plan.rules.items():
        if code in NEVER:
            out &= ~broken
    return out


def refused_rows(table: Plan) -> Int:
    """Rows that are refused, those with the fewest problems first."""
    rows = np.flatnonzero(~table.feasible)
    problems = np.sum([broken[rows] for broken in table.rules.values()], axis=0)
    return np.asarray(rows[np.argsort(problems, kind="stable")], dtype=np.int64)


def rows_beyond_limits(table: Plan) -> list[int]:
    """Rows that only break limits of the objective, the smallest relative excess first.

    Those that may not start come after those that do.
    """
    if not len(table):
        return []
    objective = table.request.objective
    excess = np.zeros(len(table))
    by_limits = np.zeros(len(table), dtype=np.bool_)
    curable = table.runs.copy()
    for code, broken in table.rules.items():
        if code in LIMITS:
            by_limits |= broken
            times = limit_excess(LIMITS[code], bounded_figures(table, code), objective.limits)
            curable &= ~broken | np.isfinite(times)  # without a price no limit would let it in
            excess = np.where(broken, np.maximum(excess, times), excess)
        elif code == "confidence":
            by_limits |= broken
            chances = np.maximum(np.nan_to_num(table.chances), 1e-3)
            times = objective.required_confidence / chances
            excess = np.where(broken, np.maximum(excess, times), excess)
        elif code == "unsimulated":  # its percentile is unknown, so no limit would let it in
            curable &= ~broken
    rows = np.flatnonzero(by_limits & curable)
    return [int(row) for row in rows[np.lexsort((excess[rows], table.uncertain[rows]))]]


def nearest_row(table: Plan) -> int | None:
    """Return when nothing is feasible: the row that misses the limits by least.

    Where none only misses limits, the one with the fewest problems and the least memory lacking.
    """
    if len(table.order) or not len(table):
        return None
    if rows := rows_beyond_limits(table):
        return rows[0]
    problems = np.sum(list(table.rules.values()), axis=0)
    lacking = np.nan_to_num(np.maximum(table.columns["shortfall_bytes"], 0), nan=np.inf)
    return int(np.lexsort((table.columns["gpus"], lacking, problems))[0])
