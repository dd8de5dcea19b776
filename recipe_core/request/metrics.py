"""Every quantity that splits are compared by: the one registry that names, shows and bounds them.

A formula and a column of the plan give a quantity its values. Its row in ``metrics.yaml`` gives it
a title, a unit, a band, a limit and a goal, which tables, axes, sliders, refusals, the glossary and
the pages' help take from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.units import (
    DAY_S,
    GIB,
    HOUR_S,
    accuracy_bound,
    accuracy_text,
    amount_text,
    days,
    gib,
    in_days,
    in_hours,
    joules,
    per_second,
    seconds_text,
    share_text,
    significant,
    token_rate_text,
    usd,
    utilisation,
    watts,
)
from recipe_core.hardware.prices import HOURS_PER_MONTH, price_month

FILE = Path(__file__).with_name("metrics.yaml")

Goal = Literal["throughput", "latency", "ttft", "tpot", "cost", "gpus", "energy", "accuracy"]
# Kinds of work: the modes of serving, and training.
Kind = Literal["closed", "open", "static", "offline", "training"]

SERVING: tuple[Kind, ...] = ("closed", "open", "static", "offline")

# Round numbers in a decade.
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of display: its symbol, units in one of SI, and a value (SI) as a sentence has it."""

    symbol: str
    factor: float
    show: Callable[[float], str]


# Functions with names, which workers send as such.
def _usd_monthly(usd_per_hour: float) -> str:
    return usd(price_month(usd_per_hour))


def _flop_rate(value: float) -> str:
    return per_second(value, "FLOP")


UNITS: Mapping[str, Unit] = {
    "number": Unit("", 1.0, amount_text),
    "per_second": Unit("1/s", 1.0, significant),
    "milliseconds": Unit("ms", 1e3, seconds_text),
    "seconds": Unit("s", 1.0, seconds_text),
    "hours": Unit("h", 1 / HOUR_S, in_hours),
    "days": Unit("days", 1 / DAY_S, in_days),
    "days_or_hours": Unit("", 1.0, days),
    "tokens_per_s": Unit("tok/s", 1.0, token_rate_text),
    "flops_per_s": Unit("FLOP/s", 1.0, _flop_rate),
    "usd": Unit("$", 1.0, usd),
    "usd_monthly": Unit("$", HOURS_PER_MONTH, _usd_monthly),
    "gibibytes": Unit("GiB", 1 / GIB, gib),
    "percent": Unit("%", 100.0, share_text),
    "utilisation": Unit("%", 100.0, utilisation),
    "accuracy": Unit("%", 100.0, accuracy_text),
    "accuracy_bound": Unit("%", 100.0, accuracy_bound),
    "watts": Unit("W", 1.0, watts),
    "joules": Unit("J/tok", 1.0, joules),
}


def _unit_named(name: str | Unit) -> Unit:
    if isinstance(name, str) and name not in UNITS:
        raise ValueError(f"is none of the units {', '.join(UNITS)}")
    return UNITS[name] if isinstance(name, str) else name


def _work_kinds(names: Sequence[str]) -> frozenset[str]:
    """Kinds of work; ``serving`` stands for its modes."""
    return frozenset(name for part in names for name in (SERVING if part == "serving" else [part]))


UnitName = Annotated[Unit, PlainValidator(_unit_named)]
Kinds = Annotated[frozenset[Kind], BeforeValidator(_work_kinds)]


class Metric(DataRow):
    """One quantity, whose values stand in ``column`` of a plan or in that field of an estimate.

    Attributes:
        name: the row's name in pages and links; once for each kind of work.
        column: the values, in SI units.
        title: what it is called; ``head`` stands over a narrow column.
        kinds: the kinds of work whose layouts are compared by it; none, where only reports name it.
        better: whether larger or smaller values are better, or neither.
        per: what follows a value in a phrase: ``34.8 ms per token``.
        abbreviation: what else the field calls it.
        limit: the field of the objective's limits that bounds it.
        goal: the goal that is about it; ``ranked`` is the column that ranks, where not its own.
        band: the figure of an estimate whose band is also this one's, upside down if ``inverse``.
        help: its meaning for a reader.
    """

    name: str
    column: str
    title: str
    head: str
    unit: UnitName
    kinds: Kinds = frozenset()
    better: Literal["more", "less", "neither"] = "less"
    per: str = ""
    abbreviation: str | None = None
    limit: str | None = None
    goal: Goal | None = None
    ranked: str | None = None
    band: str | None = None
    inverse: bool = False
    help: str = ""

    @property
    def more_is_better(self) -> bool:
        return self.better == "more"

    @property
    def factor(self) -> float:
        """Units of display in one of SI."""
        return self.unit.factor

    @property
    def show(self) -> Callable[[float], str]:
        """A value (SI) as a sentence has it."""
        return self.unit.show

    @property
    def axis(self) -> str:
        return f"{self.title} ({self.unit.symbol})" if self.unit.symbol else self.title

    @property
    def column_title(self) -> str:
        return f"{self.head} ({self.unit.symbol})" if self.unit.symbol else self.head

    @property
    def label(self) -> str:
        return self.title if self.title[1:2].isupper() else self.title[0].lower() + self.title[1:]

    def phrase(self, value: float) -> str:
        """A value (SI) with what it is of: ``34.8 ms per token``."""
        return f"{self.show(value)} {self.per}".rstrip()


class Limit(DataRow):
    """The objective's bound on a metric: that whose ``limit`` is this ``name``.

    Attributes:
        name: its field of the objective's limits, in ``stated_in`` or SI units.
        code: the rule that refuses what is beyond it.
        unit: the unit in which pages ask for it.
        shown_in: how a sentence shows it, where the metric's own way has too few digits.
        ends: the first and the last of the steps to choose from, in the field's unit; any other
            number can be typed. ``steps``: those to choose from where no decades are.
        timed: it bounds a time of every request, which has percentiles.
        priced: what an amount of money is for; it needs a price.
    """

    name: str
    code: str = ""
    unit: UnitName
    stated_in: UnitName | None = None
    shown_in: UnitName | None = None
    ends: tuple[float, float] | None = None
    steps: tuple[float, ...] = ()
    timed: bool = False
    priced: str | None = None

    @property
    def metric(self) -> Metric:
        """Return what it bounds; the first of those of several kinds of work."""
        return next(metric for metric in metrics() if metric.limit == self.name)

    @property
    def column(self) -> str:
        return self.metric.column

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(
            kind for metric in metrics() if metric.limit == self.name for kind in metric.kinds
        )

    @property
    def at_least(self) -> bool:
        return self.metric.more_is_better

    @property
    def direction(self) -> str:
        """``at least`` or ``at most``."""
        return "at least" if self.at_least else "at most"

    @property
    def label(self) -> str:
        return self.metric.label

    @property
    def refusal_title(self) -> str:
        return f"{'Below' if self.at_least else 'Over'} the limit on {self.label}"

    @property
    def factor(self) -> float:
        """The field's units in one of SI."""
        return self.stated_in.factor if self.stated_in else 1.0

    @property
    def field_symbol(self) -> str:
        return (self.stated_in or self.unit).symbol

    @property
    def scale(self) -> float:
        return self.unit.factor / self.factor

    @property
    def show(self) -> Callable[[float], str]:
        """A value of the metric (SI) as a sentence has it."""
        return (self.shown_in or self.metric.unit).show

    def change_text(self, value: float) -> str:
        """A looser limit, in the field's unit, as the label of a button."""
        verb = "Require only" if self.at_least else "Allow"
        return f"{verb} {self.show(value / self.factor)} {self.metric.per}".rstrip()

    def bound(self, limits: Any) -> float | None:
        """The limit in SI units, None when ``limits`` state none."""
        value = getattr(limits, self.name)
        return None if value is None else float(value) / self.factor

    def loosened(self, value: float) -> float | int:
        """The limit that a value (SI) just keeps: three significant digits in the field's unit."""
        value *= self.factor
        step = 10.0 ** (math.floor(math.log10(value)) - 2)
        to = math.floor if self.at_least else math.ceil
        # rounding first keeps a value that is a multiple of the step but for its last bits
        rounded = to(round(value / step, 6)) * step
        return int(rounded) if self.name == "gpus" else float(f"{rounded:.10g}")

    def steps_up_to(self, devices: int, stated_step: float | None = None) -> tuple[float, ...]:
        """The round steps in the field's unit, ascending; ``stated_step`` is always among them.

        They depend neither on the splits nor on other limits, so that a slider over them stays what
        it is while it is moved. Those of a count of devices are powers of two up to ``devices``.
        """
        if self.ends is not None:
            low, high = self.ends
            decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            round_steps = (
                float(f"{step * 10.0**decade:.6g}") for decade in decades for step in _STEPS
            )
            steps = {step for step in round_steps if low <= step <= high}
        elif self.steps:
            steps = set(self.steps)
        else:
            steps = {*(float(1 << n) for n in range(devices.bit_length())), float(devices)}
        return tuple(sorted(steps | ({float(stated_step)} if stated_step is not None else set())))


class _File(DataRow):
    """The shape of ``metrics.yaml``."""

    schema_version: Literal[1]
    metrics: tuple[Metric, ...]
    limits: dict[str, Limit]


@cache
def _metrics_file() -> _File:
    return DataFile(FILE, "objective").read_as(_File)


def metrics() -> tuple[Metric, ...]:
    """All quantities; those of one kind of work stand in the order in which tables list them.

    Raises:
        InputError: naming the field and its value, where the file does not fit its schema.
    """
    return _metrics_file().metrics


@cache
def limit_rules() -> dict[str, Limit]:
    """Every limit by the code of its rule, in the order in which remedies are offered."""
    rules = _metrics_file().limits.items()
    return {code: limit.model_copy(update={"code": code}) for code, limit in rules}


@cache
def limits_by_name() -> dict[str, Limit]:
    return {limit.name: limit for limit in limit_rules().values()}


@cache
def timed_limits() -> tuple[str, ...]:
    return tuple(limit.name for limit in limit_rules().values() if limit.timed)


@cache
def kind_limits(kind: Kind) -> tuple[str, ...]:
    return tuple(limit.name for limit in limit_rules().values() if kind in limit.kinds)


def run_limits() -> tuple[str, ...]:
    """Fields of limits on the whole of what has an end: a training run, or a queue of requests."""
    return tuple(name for name in kind_limits("offline") if name not in kind_limits("closed"))


@cache
def metrics_of(kind: Kind) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics() if kind in metric.kinds}


@cache
def goals_of(kind: Kind) -> dict[Goal, tuple[str, int]]:
    """The column that each goal ranks by, and whether less (1) or more (-1) of it is better."""
    return {
        metric.goal: (metric.ranked, 1)
        if metric.ranked
        else (metric.column, -1 if metric.more_is_better else 1)
        for metric in metrics_of(kind).values()
        if metric.goal
    }


@cache
def column_metric(column: str) -> Metric:
    return next(metric for metric in metrics() if metric.column == column)


@cache
def is_more_better(column: str) -> bool:
    """Return whether larger values of a column, or of an end of its band, are better."""
    name = column.removesuffix("_low").removesuffix("_high")
    return any(metric.column == name and metric.more_is_better for metric in metrics())


def time_to_finish(fastest_s: float) -> Metric:
    """The time a run takes, in one unit for all splits: hours where the fastest takes < 2 days."""
    metric = metrics_of("training")["wall"]
    short = fastest_s < 2 * DAY_S
    return metric.model_copy(update={"unit": UNITS["hours"]}) if short else metric
