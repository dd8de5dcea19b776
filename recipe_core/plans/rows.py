"""The rows of a plan: columns over all candidates, what refuses them, how they rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.errors import InputError
from recipe_core.base.intervals import NORMAL, factor_at
from recipe_core.base.units import band, chance_text, range_text, rounded
from recipe_core.estimates.bands import better_score, probability
from recipe_core.hardware.cluster import chip_title, short_title
from recipe_core.plans.confidence import confidence
from recipe_core.plans.evaluated import EvaluatedCases
from recipe_core.plans.limits import LIMITS, bounded_values, limit_excess, rule_title
from recipe_core.plans.problem import Problem
from recipe_core.request.metrics import Goal, Metric, is_more_better, limits_by_name
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import split_key, split_name

if TYPE_CHECKING:
    from recipe_core.estimates.results import Estimate

Answer = TypeVar("Answer")

TIE_DIGITS = 4
"""Splits whose goal agrees to so many significant digits are equally good."""
TIED = 0.4
"""Probability of beating the best split from which a split ties with it: estimates do not tell
which of the two is better."""


COIN = (0.35, 0.65)
"""Probabilities between which keeping the limits is called a coin toss."""


class PlanRows(ABC):
    """Candidates of a request, evaluated.

    Rows are numbered through all ``blocks``, each of one setting.

    A kind of workload says: ``measures``, what rows are compared by, of which ``axes`` are drawn
    first, ``listed`` stand in tables, ``tabled`` in a terminal, ``headline`` are shown large and
    ``phrased`` say a split in one phrase; ``parts`` of a device's memory as a person
    calls them; ``goals``, the column that each goal of an objective is about and whether
    less (1) or more (-1) of it is better; ``unpriced``, what stands for cost where a price is
    unknown; ``frontier_columns``, the tradeoff that every plan states; ``shown_as``, the columns
    that people read in place of those that rank.
    """

    measures: Mapping[str, Metric]
    axes: tuple[str, str]
    listed: tuple[str, ...]
    tabled: tuple[str, ...]
    headline: tuple[str, ...]
    phrased: tuple[str, ...]
    parts: ClassVar[Mapping[str, str]]
    goals: ClassVar[Mapping[Goal, tuple[str, int]]]
    unpriced: ClassVar[Mapping[str, str]]
    frontier_columns: ClassVar[tuple[str, str]]
    shown_as: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self, problem: Problem[Any], blocks: Sequence[EvaluatedCases[Any, Any, Any]]
    ) -> None:
        self.problem = problem
        self.blocks = tuple(blocks)

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: numbers by identity hold in the process that counted."""
        return {name: value for name, value in vars(self).items() if name != "_cluster_numbers"}

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks)

    @property
    def request(self) -> PlanRequest:
        """The request that was planned."""
        return self.problem.request

    # columns

    @cached_property
    def _ends(self) -> Int:
        """Past the last row of each block."""
        return np.cumsum([len(block) for block in self.blocks])

    def at(self, row: int) -> tuple[EvaluatedCases[Any, Any, Any], int]:
        """The block of a row, and the row's place in it."""
        k = int(np.searchsorted(self._ends, row, side="right"))
        return self.blocks[k], row - int(self._ends[k]) + len(self.blocks[k])

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """Degrees, quantities (SI, units in the names) and ``feasible``, each over all rows.

        Memory is per device, throughput of the whole deployment or run. NaN where a rule leaves a
        row without an estimate.
        """
        names = self.blocks[0].columns if self.blocks else {"feasible": None}
        return {
            name: np.concatenate(
                [np.asarray(block.columns[name]) for block in self.blocks] or [np.zeros(0)]
            )
            for name in names
        }

    @cached_property
    def feasible(self) -> Bool:
        """Rows that nothing refuses."""
        return np.asarray(self.columns["feasible"], dtype=np.bool_)

    @cached_property
    def runs(self) -> Bool:
        """Rows that nothing but a limit of the objective refuses."""
        return np.concatenate([block.runs for block in self.blocks])

    @cached_property
    def overloaded(self) -> Bool:
        """Rows that do not hold their whole load at once, should they start."""
        return np.zeros(len(self), dtype=np.bool_)

    @cached_property
    def queues(self) -> Bool:
        """Rows that start, but do not hold their whole load at once: the rest waits in a queue."""
        return self.overloaded & ~self.uncertain

    @cached_property
    def uncertain(self) -> Bool:
        """Rows that no rule but a limit refuses, and that may not start for all estimates tell.

        Their probability is between two bounds, those of ``is_uncertain``.
        """
        if not self.blocks:
            return np.zeros(len(self), dtype=np.bool_)
        return self.runs & self.is_uncertain(self.columns["start_probability"])

    @staticmethod
    def is_uncertain(probability: Float) -> Bool:
        """Which probabilities of a start do not tell whether it does."""
        raise NotImplementedError

    @cached_property
    def certain(self) -> Bool:
        """Rows that start, beyond the error of estimates: they hold their load, or queue."""
        return self.feasible & ~self.uncertain

    @cached_property
    def holds(self) -> Bool:
        """Rows that start and hold their whole load at once."""
        return self.certain & ~self.queues

    @cached_property
    def holds_once_started(self) -> Bool:
        """Rows that hold their whole load at once, those among them that may not start too."""
        return self.feasible & ~self.overloaded

    @cached_property
    def pooled(self) -> Bool:
        """Rows with a prefill pool of their own."""
        return np.zeros(len(self), dtype=np.bool_)

    def queue_text(self, _row: int) -> str:
        """How much of its load a queueing row holds, as a phrase; empty for any other row."""
        return ""

    def doubt(self, row: int) -> str:
        """Why it is uncertain whether a row starts, with the probability; empty for others."""
        if not self.uncertain[row]:
            return ""
        estimates, place = self.detail(row)
        return str(estimates.doubts(np.array([place]))[0])

    @property
    def load_searched(self) -> bool:
        """Whether every row is under the best load that it holds within the limits."""
        return False

    @property
    def loads_differ(self) -> bool:
        """Whether rows may be under different loads: each has to say its own."""
        return False

    def state(self, row: int) -> str:
        """``holds``, ``queues``, ``uncertain`` or ``cannot run``."""
        if not self.feasible[row]:
            return "cannot run"
        if self.uncertain[row]:
            return "uncertain"
        return "queues" if self.queues[row] else "holds"

    def degree(self, name: str) -> Int:
        """A degree (tp, pp, dp, ep or cp) of every row."""
        return np.asarray(self.columns[name], dtype=np.int64)

    # one row

    @property
    def device_title(self) -> str:
        """What one device is called: a GPU, or a machine where the processor computes."""
        return "machine" if self.problem.cluster.device.runtime == "cpu" else "GPU"

    @property
    def basis(self) -> str:
        """What the figures of the request's device rest on."""
        from recipe_core.estimates.measured.support import support

        return support(self.problem.cluster.device).level

    def setting(self, row: int) -> Any:
        """What the split of a row shares with its block: model, cluster, engine, formats."""
        return self.at(row)[0].setting

    @cached_property
    def _cluster_numbers(self) -> dict[int, int]:
        """Numbers of clusters by identity, those of other problems after the request's."""
        clusters = (*self.problem.clusters, *(block.setting.cluster for block in self.blocks))
        numbers: dict[int, int] = {}
        for place in clusters:
            numbers.setdefault(id(place), len(numbers))
        return numbers

    def cluster_number(self, row: int) -> int:
        """Which of the plan's clusters a row is on.

        0 is the request's, those of its options follow.
        """
        return self._cluster_numbers[id(self.setting(row).cluster)]

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """The measures that the objective is about, with those that it limits.

        Energy is told by the power of the devices too.
        """
        objective = self.request.objective
        columns = {self.goals[goal][0] for goal in objective.goals}
        if "energy" in objective.goals:
            columns.add("watts")
        limited = objective.limits.model_dump(exclude_none=True)
        return tuple(
            name
            for name, measure in self.measures.items()
            if measure.column in columns or measure.limit in limited
        )

    @staticmethod
    @abstractmethod
    def names_of(setting: Any) -> Mapping[str, str]:
        """What tells settings on one cluster apart: engine, formats."""

    @staticmethod
    @abstractmethod
    def titles_of(setting: Any) -> Mapping[str, str]:
        """What ``names_of`` says, as people call it."""

    @cached_property
    def differs(self) -> frozenset[str]:
        """What of device and ``names_of`` this plan has several of, and of the loads stated."""
        shared = [block.setting for block in self.blocks]
        values = [
            {"device": self._cluster_numbers[id(one.cluster)], **self.names_of(one)}
            for one in shared
        ]
        names = values[0] if values else ()
        several = {name for name in names if len({one[name] for one in values}) > 1}
        return frozenset(several | ({"load"} if self.several_loads else set()))

    @property
    def several_loads(self) -> bool:
        """Whether one split has a row for each of several loads."""
        return False

    def load_text(self, _row: int) -> str:
        """The load of a row, with what it counts; empty where no load is part of a row."""
        return ""

    @cached_property
    def _cluster_titles(self) -> tuple[str, ...]:
        """What tells the plan's clusters apart, in the order of their numbers: titles of devices.

        With their number where several clusters are of one device, and counted where that too is
        the same.
        """
        clusters = (*self.problem.clusters, *(block.setting.cluster for block in self.blocks))
        distinct = list({id(one): one for one in clusters}.values())
        titles = [chip_title(one.device) for one in distinct]
        counted = [
            title if titles.count(title) == 1 else f"{one.devices} × {title}"
            for one, title in zip(distinct, titles, strict=True)
        ]
        return tuple(
            title if counted.count(title) == 1 else f"{title} ({counted[: n + 1].count(title)})"
            for n, title in enumerate(counted)
        )

    def cluster_title(self, row: int) -> str:
        """The device of a row as its title, and what else tells its cluster apart."""
        return self._cluster_titles[self.cluster_number(row)]

    @cached_property
    def clusters_of_rows(self) -> Int:
        """The number of every row's cluster, as ``cluster_number``."""
        numbers = [self._cluster_numbers[id(block.setting.cluster)] for block in self.blocks]
        return np.repeat(np.array(numbers, dtype=np.int64), [len(block) for block in self.blocks])

    def devices_text(self, row: int) -> str:
        """Devices that a row uses of those there: ``4 of 8 × H100 SXM``; all of them: ``8 × …``."""
        place, used = self.setting(row).cluster, int(self.columns["gpus"][row])
        count = f"{used:,}" if used == place.devices else f"{used:,} of {place.devices:,}"
        return f"{count} × {chip_title(place.device)}"

    def candidate(self, row: int) -> dict[str, Any]:
        """The split of a row, as the contract writes it."""
        return self.candidates([row])[0]

    def candidates(self, rows: Sequence[int] | Int) -> list[dict[str, Any]]:
        """The splits of some rows. Many at once cost little more than one."""
        return self._of_blocks(rows, self._describe)

    @abstractmethod
    def _describe(self, block: EvaluatedCases[Any, Any, Any], cases: Int) -> list[dict[str, Any]]:
        """The splits of some cases of a block."""

    def estimate(self, row: int) -> Estimate:
        """The estimate of a row."""
        return self.estimates([row])[0]

    def estimates(self, rows: Sequence[int] | Int) -> list[Estimate]:
        """The estimates of some rows. Many at once cost little more than one."""
        return self._of_blocks(rows, EvaluatedCases.rows)

    def _of_blocks(
        self,
        rows: Sequence[int] | Int,
        answer: Callable[[EvaluatedCases[Any, Any, Any], Int], Iterable[Answer]],
    ) -> list[Answer]:
        """What blocks answer about their cases, in the order of ``rows``."""
        index = np.asarray(rows, dtype=np.int64)
        if len(index) == 1:  # one row is asked for most often
            block, i = self.at(int(index[0]))
            return list(answer(block, np.array([i])))
        numbers = np.searchsorted(self._ends, index, side="right")
        out: dict[int, Answer] = {}
        for k in np.unique(numbers).tolist():
            block, places = self.blocks[k], np.flatnonzero(numbers == k)
            inside = index[places] - self._ends[k] + len(block)
            out.update(zip(places.tolist(), answer(block, inside), strict=True))
        return [out[place] for place in range(len(index))]

    def detail(self, row: int) -> tuple[Any, int]:
        """The columns of physics that hold a row, and its place in them."""
        block, i = self.at(row)
        return block.detail(i)

    def detailed(self, row: int) -> Estimate:
        """The estimate of a row with everything that is left out where many are listed."""
        return self.estimate(row)

    @abstractmethod
    def request_of(self, row: int) -> PlanRequest:
        """The request of a row alone.

        On its hardware, under its load, with its split as the candidate.
        """

    def key(self, row: int) -> str:
        """The name of a row in links and charts."""
        return split_key(self.candidate(row), self.cluster_number(row))

    @abstractmethod
    def find(self, key: str) -> int | None:
        """The row that a key names, None when the plan has no such split."""

    def label(self, row: int, *, device: bool = True) -> str:
        """The degrees, and what else a split is.

        Device (unless that is said elsewhere), engine, formats and load where the plan has several.
        """
        return self.labels([row], device=device)[0]

    def labels(self, rows: Sequence[int] | Int, *, device: bool = True) -> list[str]:
        """The same of some rows. Many at once cost little more than one."""
        names = [split_name(candidate) for candidate in self.candidates(rows)]
        named = self.differs if device else self.differs - {"device"}
        if not named:
            return names
        return [
            " · ".join([name, *self._named(int(row), named)])
            for name, row in zip(names, rows, strict=True)
        ]

    def _named(self, row: int, named: frozenset[str]) -> list[str]:
        """What a row is besides its degrees, of what is ``named``."""
        setting = self.setting(row)
        place = setting.cluster
        extra = {
            "device": f"{place.devices} × {chip_title(place.device)}",
            **self.titles_of(setting),
            "load": self.load_text(row),
        }
        return [text for name, text in extra.items() if name in named]

    def held_text(self, _row: int) -> str:
        """How much of its load a queueing row holds: ``9 of 64``; empty for any other row."""
        return ""

    # ranking

    @cached_property
    def score(self) -> Float:
        """What rows are ranked by, less is better.

        The goals' quantities, multiplied by their weights as powers.
        """
        weighed = []
        for goal, weight in self.request.objective.goals.items():
            column, sign = self.goals[goal]
            weighed.append((sign * weight, self._priced(column)))
        if len(weighed) == 1:  # as it is, so that ties are those of the quantity
            weight, values = weighed[0]
            return np.asarray(np.sign(weight) * values)
        with np.errstate(divide="ignore"):
            return add(weight * np.log(np.maximum(values, 0)) for weight, values in weighed)

    def _priced(self, name: str) -> Float:
        """A column; cost of devices without a price is counted in devices, beside no priced one."""
        values = np.asarray(self.columns[name], dtype=float)
        if name not in self.unpriced:
            return values
        rate = np.maximum(self.columns[self.unpriced[name]], 1e-12)
        return np.where(self._without_price, 1 / rate, values)

    @cached_property
    def _without_price(self) -> Bool:
        """Rows whose score lacks a price, ranked after the others; none where cost is no goal."""
        if not self._counts_cost:
            return np.zeros(len(self), dtype=np.bool_)
        lacks = [block.setting.cluster.usd_per_device_hour is None for block in self.blocks]
        return np.repeat(np.array(lacks, dtype=np.bool_), [len(block) for block in self.blocks])

    @property
    def _counts_cost(self) -> bool:
        return any(self.goals[goal][0] in self.unpriced for goal in self.request.objective.goals)

    @property
    def unpriced_devices(self) -> list[str]:
        """Names of the plan's devices of which no price is known."""
        clusters = self.problem.clusters
        names = [c.device.name for c in clusters if c.usd_per_device_hour is None]
        return list(dict.fromkeys(names))

    @property
    def price_note(self) -> str | None:
        """How splits rank whose price is unknown, as sentences; None where none lacks a price."""
        lacking = [c for c in self.problem.clusters if c.usd_per_device_hour is None]
        if not lacking or not self._counts_cost:
            return None
        known = len(lacking) < len(self.problem.clusters)
        titles = list(dict.fromkeys(short_title(c.device) for c in lacking))
        listed, its = " and ".join(titles), "its" if len(titles) == 1 else "their"
        order = f"{its} splits come last" if known else "splits rank by output per device"
        return f"No price of {listed} is known: {order}."

    @property
    def launch_note(self) -> str | None:
        """Why no bundle of any split can be made, as sentences; None where one can."""
        return None

    def bundled(self, _row: int) -> bool:
        """Whether a bundle of a split can be made; else its figures are estimates only."""
        return True

    @abstractmethod
    def _simplicity(self) -> tuple[Any, ...]:
        """Columns that order rows of equal score, simpler first; the last one counts first."""

    def _precedence(self) -> tuple[Any, ...]:
        """Columns that order rows before their score does."""
        return ()

    @cached_property
    def order(self) -> Int:
        """Feasible rows, best first; equal ones by simplicity.

        Where cost counts, those without a price come after all others.
        """
        rows = np.flatnonzero(self.feasible)
        keys = [np.asarray(key)[rows] for key in self._simplicity()]
        keys.append(rounded(self.score[rows], TIE_DIGITS))
        keys += [np.asarray(key)[rows] for key in (*self._precedence(), self._without_price)]
        return np.asarray(rows[np.lexsort(keys)], dtype=np.int64)

    # comparisons

    @abstractmethod
    def _moves_with_errors(self, rows: Int) -> Float:
        """By how much the logarithm of the score of some rows moves with each measured figure's.

        Rows × figures, in the order of ``_errors``.
        """

    @abstractmethod
    def _errors(self, setting: Any) -> tuple[Float, Float]:
        """Covariances of measured figures' errors in a setting: the common part, the rest."""

    @abstractmethod
    def _software(self, setting: Any) -> tuple[str, ...]:
        """What the common part of errors belongs to: device, engine and version."""

    @cached_property
    def _log_score(self) -> Float:
        """The logarithm of what rows are ranked by, goals weighed, less is better."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return add(
                np.asarray(sign * weight * np.log(self._priced(column)))
                for weight, (column, sign) in (
                    (weight, self.goals[goal])
                    for goal, weight in self.request.objective.goals.items()
                )
            )

    def _better_score(self, rows: Int, other: int) -> Float:
        """Normal scores of rows being better than another row by the goal, if both were measured.

        Estimates that agree to ``TIE_DIGITS`` count as equal.
        """
        gain = self._log_score[other] - self._log_score[rows]
        equal = rounded(self.score[rows], TIE_DIGITS) == rounded(self.score[[other]], TIE_DIGITS)
        gain = np.where(equal, 0.0, gain)
        block, _ = self.at(other)
        theirs, software = self._errors(block.setting), self._software(block.setting)
        moves = self._moves_with_errors(np.array([other]))[0]
        numbers = np.searchsorted(self._ends, rows, side="right")
        out = np.zeros(len(rows))
        for k in np.unique(numbers).tolist():
            inside, setting = numbers == k, self.blocks[k].setting
            out[inside] = better_score(
                gain[inside],
                self._moves_with_errors(rows[inside]),
                moves,
                (self._errors(setting), theirs),
                shared=self._software(setting) == software,
            )
        return out

    def beats(self, rows: Sequence[int] | Int, other: int) -> list[float | None]:
        """The probability that each of some rows is better than another row, if both were measured.

        Better by the goals of the objective. Errors that all splits on one device and engine have
        in common cancel. None where only one of the two has a price, and cost is a goal.
        """
        index = np.asarray(rows, dtype=np.int64)
        chances = probability(self._better_score(index, other))
        known = self._alike_priced(index, other).tolist()
        return [chance if told else None for chance, told in zip(chances, known, strict=True)]

    def _alike_priced(self, rows: Int, other: int) -> Bool:
        """Rows that have a price where another has one."""
        return np.asarray(self._without_price[rows] == self._without_price[other])

    def beats_other(
        self, row: int, other: PlanRows, other_row: int, *, dearer: float = 1.0
    ) -> float | None:
        """The probability that a row is better than one of another plan of the same objective.

        As ``beats``; None where only one of the two has a price, and the goals count it.
        ``dearer``: what else makes its score so many times the other's.
        """
        gain = other._log_score[[other_row]] - self._log_score[[row]] - np.log(dearer)
        mine, theirs = self.setting(row), other.setting(other_row)
        counted = {self.goals[goal][0] for goal in self.request.objective.goals}
        unpriced = counted & set(self.unpriced)
        if unpriced and (self.priced(row) != other.priced(other_row)):
            return None
        score = better_score(
            gain,
            self._moves_with_errors(np.array([row])),
            other._moves_with_errors(np.array([other_row]))[0],
            (self._errors(mine), other._errors(theirs)),
            shared=self._software(mine) == other._software(theirs),
        )
        return probability(score)[0]

    def priced(self, row: int) -> bool:
        """Whether the price of a row's devices is known."""
        return self.setting(row).cluster.usd_per_device_hour is not None

    def against_best(self, row: int) -> str:
        """With what probability the best split beats a feasible row, as a sentence.

        Of one that queues, or may not start, beside a best that does not: that it does. Empty for
        the best one itself, and for one whose price is unknown beside a known one.
        """
        best = self.best_row
        if best is None or row == best:
            return ""
        if self.uncertain[row] and not self.uncertain[best]:
            return f"It {self.doubt(row)}"
        if self.queues[row] and not self.queues[best]:
            return f"Starts and queues: {self.queue_text(row)}"
        chance = self.beats([row], best)[0]
        if chance is None:
            return ""
        return f"Probability that {self.label(best)} measures better: {chance_text(1 - chance)}"

    @property
    def tied(self) -> int:
        """How many rows tie with the best: measured, each may as well be better (``TIED``).

        A row that queues ties with none that holds its load, one that may not start with none that
        does.
        """
        if not len(self.order):
            return 0
        best, others = int(self.order[0]), self.order[1:]
        tied = self._better_score(others, best) >= NORMAL.inv_cdf(TIED)
        alike = self._alike_priced(others, best) & (self.queues[others] == self.queues[best])
        alike &= self.uncertain[others] == self.uncertain[best]
        return int((tied & alike).sum())

    @property
    def best_row(self) -> int | None:
        """The best row, None when nothing is feasible."""
        return int(self.order[0]) if len(self.order) else None

    # fronts

    @property
    def comparable(self) -> tuple[str, ...]:
        """Columns of which a Pareto front can be asked."""
        quantities = [*self.blocks[0].quantities] if self.blocks else []
        derived = [measure.column for measure in self.measures.values()]
        return tuple(dict.fromkeys([*quantities, *derived, "gpus", "load"]))

    def front_of(self, *columns: str, among: Bool | None = None) -> Bool:
        """Rows on the Pareto front of two or three columns, among those that hold their load.

        ``among``: and among these rows only.

        Raises:
            InputError: for a column that there is not, or another number of them.
        """
        unknown_names = [name for name in columns if name not in self.comparable]
        if unknown_names or len(columns) not in (2, 3):
            raise InputError(
                f"a Pareto front is of two or three columns, not {', '.join(columns)}.",
                hint=f"Columns: {', '.join(self.comparable)}.",
            )
        signed = []
        for name in columns:
            sign = -1 if is_more_better(name) else 1
            signed.append(sign * np.asarray(self.columns[name], dtype=float))
        known: Bool = np.all(np.isfinite(signed), axis=0)
        rows = self.holds & known if among is None else self.holds & known & among
        return pareto_front(*signed, among=rows)

    def front(self, *names: str, among: Bool | None = None) -> Bool:
        """Rows on the Pareto front of two or three measures; ``among`` as in ``front_of``."""
        return self.front_of(*(self.measures[name].column for name in names), among=among)

    @cached_property
    def frontier(self) -> Bool:
        """Rows on the Pareto front of the two ``frontier_columns``."""
        return self.front_of(*self.frontier_columns)

    # refusals

    @cached_property
    def _rules(self) -> dict[str, Bool]:
        out: dict[str, Bool] = {}
        start = 0
        for block in self.blocks:
            for code, broken in block.rules():
                rows = out.setdefault(code, np.zeros(len(self), dtype=np.bool_))
                rows[start : start + len(block)] |= broken
            start += len(block)
        return out

    def rules(self) -> dict[str, Bool]:
        """For each rule's code the rows that it refuses."""
        return self._rules

    def codes(self, row: int) -> frozenset[str]:
        """The codes of the rules that a row breaks."""
        return frozenset(code for code, broken in self._rules.items() if broken[row])

    def title(self, codes: Iterable[str]) -> str:
        """Codes of rules as a person calls them."""
        return "; ".join(sorted(rule_title(code) for code in codes))

    def reasons(self, row: int) -> list[str]:
        """Why a row is refused; empty when it is not."""
        return self.sentences([row])[0]

    def sentences(self, rows: Sequence[int] | Int) -> list[list[str]]:
        """The reasons of some rows."""
        return self._of_blocks(rows, EvaluatedCases.sentences)

    def every_sentence(self) -> Iterator[list[str]]:
        """The reasons of every row, in order."""
        for block in self.blocks:
            yield from block.sentences()

    def refused_rows(self) -> Int:
        """Rows that are refused, those with the fewest problems first."""
        rows = np.flatnonzero(~self.feasible)
        problems = np.sum([broken[rows] for broken in self._rules.values()], axis=0)
        return np.asarray(rows[np.argsort(problems, kind="stable")], dtype=np.int64)

    def bound(self, code: str) -> Float:
        """What a limit bounds in every row: a mean, or the percentile that the limits name."""
        percentile = self.request.objective.limits.percentile
        return np.concatenate(
            [bounded_values(LIMITS[code], block, percentile) for block in self.blocks]
        )

    @property
    def limited(self) -> bool:
        """Whether the objective states any limit."""
        return bool(self.stated_limits)

    def confidence(self, rows: Sequence[int] | Int) -> Float:
        """The probability that each of some rows keeps every limit, if it were measured.

        NaN for rows that cannot run at all.
        """
        index = np.asarray(rows, dtype=np.int64)
        return np.asarray(self._chances[index])

    @cached_property
    def _chances(self) -> Float:
        limits = self.request.objective.limits
        return np.concatenate([confidence(block, limits) for block in self.blocks] or [np.zeros(0)])

    def margin(self, code: str, row: int) -> float:
        """How many times a row's figure a limit must be to hold with the confidence asked for.

        1 where none is.
        """
        asked, block = self.request.objective.confidence, self.at(row)[0]
        known = block.physics.uncertain(block.setting, LIMITS[code].column)
        if asked is None or known is None:
            return 1.0
        score = NORMAL.inv_cdf(1 - asked if LIMITS[code].at_least else asked)
        return float(factor_at(known.factors, score))

    def is_coin_toss(self, row: int) -> bool:
        """Whether a row that runs keeps the limits about as often as not."""
        return COIN[0] <= float(self.confidence([row])[0]) <= COIN[1]

    def confidence_text(self, row: int) -> str:
        """With what probability a row keeps the limits, as a sentence; empty without limits."""
        if not self.limited or not self.runs[row]:
            return ""
        chance = float(self.confidence([row])[0])
        plural = "s" if len(self.stated_limits) > 1 else ""
        coin = ": as good as a coin toss" if self.is_coin_toss(row) else ""
        return f"Holds the limit{plural} with a probability of {chance_text(chance)}{coin}"

    @cached_property
    def stated_limits(self) -> list[str]:
        """Codes of the limits that the objective states."""
        limits = self.request.objective.limits
        return [code for code, rule in LIMITS.items() if rule.bound(limits) is not None]

    def beyond_limits(self) -> list[int]:
        """Rows that only break limits of the objective, the smallest relative excess first."""
        if not len(self):
            return []
        excess = np.zeros(len(self))
        by_limits = np.zeros(len(self), dtype=np.bool_)
        known = self.runs.copy()
        for code, broken in self._rules.items():
            if code in LIMITS:
                by_limits |= broken
                times = limit_excess(LIMITS[code], self.bound(code), self.request.objective.limits)
                known &= ~broken | np.isfinite(times)  # without a price no limit would let it in
                excess = np.where(broken, np.maximum(excess, times), excess)
            elif code == "confidence":
                by_limits |= broken
                asked = self.request.objective.confidence or 1.0
                times = asked / np.maximum(np.nan_to_num(self._chances), 1e-3)
                excess = np.where(broken, np.maximum(excess, times), excess)
            elif code == "unsimulated":  # its percentile is unknown, so no limit would let it in
                known &= ~broken
        rows = np.flatnonzero(by_limits & known)
        return [int(row) for row in rows[np.argsort(excess[rows], kind="stable")]]

    def nearest_row(self) -> int | None:
        """When nothing is feasible: the row that misses the limits by least.

        Where none only misses limits, the one with the fewest problems and the least memory
        lacking.
        """
        if len(self.order) or not len(self):
            return None
        if rows := self.beyond_limits():
            return rows[0]
        problems = np.sum(list(self._rules.values()), axis=0)
        lacking = np.nan_to_num(np.maximum(self.columns["shortfall_bytes"], 0), nan=np.inf)
        return int(np.lexsort((self.columns["gpus"], lacking, problems))[0])

    # memory of one device

    @abstractmethod
    def memory(self, rows: Sequence[int]) -> dict[str, Float]:
        """Bytes of each of ``parts`` on the fullest device of some rows.

        NaN without an estimate.
        """

    def held_memory(self, rows: Sequence[int]) -> dict[str, Float]:
        """Bytes of each of ``parts`` as they will be held, which is no more than there is.

        What a row that starts needs beyond that waits; a row that does not start is drawn with all
        that it needs.
        """
        return self.memory(rows)

    def short_bytes(self, row: int) -> float:
        """What a device lacks for the split to start at all.

        Zero or less where it starts, NaN without an estimate.
        """
        return float(self.columns["shortfall_bytes"][row])

    def usable_bytes(self, row: int) -> float:
        """What the engine or the run may use of a device."""
        usable = float(self.columns["usable_bytes"][row])
        return usable if np.isfinite(usable) else self.capacity_bytes(row)

    def capacity_bytes(self, row: int) -> float:
        """What a process can have of a device."""
        return float(self.setting(row).cluster.device.usable_memory_bytes)

    # measures

    def raw(self, name: str) -> Float:
        """A measure of every row, SI."""
        return np.asarray(self.columns[self.measures[name].column], dtype=float)

    def bounded(self, name: str) -> Float:
        """What a limit on a measure bounds, SI: the measure, or a simulated percentile of it."""
        limit = self.measures[name].limit
        return self.raw(name) if limit is None else self.bound(limits_by_name()[limit].code)

    def values(self, name: str, rows: Any = slice(None)) -> Float:
        """A measure of some rows in the unit it is shown in."""
        return np.asarray(self.raw(name)[rows] * self.measures[name].factor)

    def text(self, name: str, row: int) -> str:
        """A measure of one row as a sentence says it."""
        value = float(self.raw(name)[row])
        return self.measures[name].show(value) if np.isfinite(value) else "unknown"

    def known(self, name: str) -> bool:
        """Whether a measure is known of any row that is feasible (a price may not be)."""
        rows = self.feasible if self.feasible.any() else slice(None)
        return bool(np.isfinite(self.raw(name)[rows]).any())

    def limit(self, name: str) -> float | None:
        """The objective's limit on a measure, in the unit it is shown in."""
        measure = self.measures[name]
        if measure.limit is None:
            return None
        bound = limits_by_name()[measure.limit].bound(self.request.objective.limits)
        return None if bound is None else bound * measure.factor

    def phrase(self, row: int) -> str:
        """A row's main figures in one phrase, without what is unknown."""
        known = [name for name in self.phrased if np.isfinite(self.raw(name)[row])]
        return ", ".join(self.measures[name].phrase(float(self.raw(name)[row])) for name in known)

    def band(self, name: str, row: int) -> str | None:
        """Where eight of ten measured runs are expected, as a sentence says it.

        None where that is unknown.
        """
        ends = self._ends_of(name, row)
        return band(ends, self.measures[name].show) if ends else None

    def likely(self, name: str, row: int, *, unit: bool = True) -> str:
        """The same in words, ``24.7 to 68.5 ms likely``; empty where that is unknown.

        ``unit``: with the unit also where both ends have the same.
        """
        ends = self._ends_of(name, row)
        return f"{range_text(ends, self.measures[name].show, unit=unit)} likely" if ends else ""

    def _ends_of(self, name: str, row: int) -> tuple[float, float] | None:
        low, high = (float(end[0]) for end in self.band_ends(name, [row]))
        return (low, high) if np.isfinite(low) and np.isfinite(high) else None

    def has_band(self, name: str) -> bool:
        """Whether a range is known around the estimates of a measure."""
        return self.measures[name].band is not None

    def band_ends(self, name: str, rows: Sequence[int] | Int) -> tuple[Float, Float]:
        """Low and high ends of the 80 % band around a measure of some rows, SI.

        NaN where unknown. All rows of a block have the same factors but where runs of one's own
        narrow some, so that one estimate a block tells them.
        """
        index = np.asarray(rows, dtype=np.int64)
        measure = self.measures[name]
        low, high = np.full(len(index), np.nan), np.full(len(index), np.nan)
        if measure.band is None:
            return low, high
        numbers = np.searchsorted(self._ends, index, side="right")
        for k in np.unique(numbers).tolist():
            inside = np.flatnonzero((numbers == k) & np.isfinite(self.raw(name)[index]))
            if not len(inside):
                continue
            alike = getattr(self.blocks[k].setting, "correction", None) is None
            rows_told = index[inside[:1]] if alike else index[inside]
            factors = np.array(
                [
                    self._factors_of(int(row), k if alike else None).get(
                        measure.band, (np.nan, np.nan)
                    )
                    for row in rows_told
                ]
            )
            if measure.inverse:
                factors = 1 / factors[:, ::-1]
            values = self.raw(name)[index[inside]]
            low[inside], high[inside] = values * factors[:, 0], values * factors[:, 1]
        return low, high

    @cached_property
    def _block_factors(self) -> dict[int, dict[str, tuple[float, float]]]:
        """What ``_factors_of`` told of blocks whose rows have all the same factors."""
        return {}

    def _factors_of(self, row: int, block: int | None) -> dict[str, tuple[float, float]]:
        """The ends of the bands of a row's figures, over their estimates.

        ``block``: the number of its block, where all rows of that have the same factors.
        """
        if block is not None and block in self._block_factors:
            return self._block_factors[block]
        bands = self.estimate(row).bands or {}
        values = {name: float(self.columns[name][row]) for name in bands if name in self.columns}
        factors = {
            name: (bands[name][0] / value, bands[name][1] / value)
            for name, value in values.items()
            if value
        }
        if block is not None and factors:
            self._block_factors[block] = factors
        return factors


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
