"""The record of a kind of workload: data and functions in which serving and training differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.plans.evaluation import EvaluatedCases
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.metrics import Goal, Metric

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

Block = EvaluatedCases[Any, Any, Any]
# What a split is cut by, of both kinds.
DEGREES = ("tp", "pp", "dp", "ep", "cp")
# Edits to a request: values by dotted field.
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """Measures that rows are compared by, and which of them stand where.

    ``axes`` are drawn first, ``listed`` stand in tables, ``tabled`` in a terminal, ``headline`` are
    shown large, ``phrased`` say a split in one phrase.
    """

    measures: Mapping[str, Metric]
    axes: tuple[str, str]
    listed: tuple[str, ...]
    tabled: tuple[str, ...]
    headline: tuple[str, ...]
    phrased: tuple[str, ...]


class ScoreMoves(Protocol):
    """The ``moves`` of a ranking."""

    def __call__(self, table: Plan, rows: Int, *, sized: bool = False) -> Float:
        """Return the moves of rows."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ranking of a kind's rows, and how their errors move the score.

    precedence: columns that order rows before their score does. simplicity: columns that order rows
    of equal score, simpler first; the last one counts first. unmeasured: rows of a kind that no run
    showed, which come first only where they are clearly better. errors: covariances of measured
    figures' errors in a setting, the common part and the rest. moves: by how much the logarithm of
    the score of some rows moves with each figure's: rows × figures, in the order of ``errors``;
    ``sized`` where the number of devices follows from the estimate, too.
    software: of a setting, to which the common part belongs: device, engine and version.
    engine_errors: as errors, of a setting beside another engine on the same device. gap_shares:
    by figure, the share of an estimated difference between engines on one layout that is measured.
    Without them engines are compared as other devices are.
    """

    precedence: Callable[[Plan], tuple[Any, ...]]
    simplicity: Callable[[Plan], tuple[Any, ...]]
    unmeasured: Callable[[Plan], Any]
    errors: Callable[[Any], tuple[Float, Float]]
    moves: ScoreMoves
    software: Callable[[Any], tuple[str, ...]]
    engine_errors: Callable[[Any], tuple[Float, Float]] | None = None
    gap_shares: Callable[[], Float] | None = None


def _no_changes(*_: Any) -> Iterator[Fields]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Cures:
    """Changes that a kind of workload knows to try, the least intrusive first.

    remedies: by topic, that may let a split in. row_cures: that may let a refused row run, by the
    rules that it breaks; row_reliefs: changes to its own choices that may keep its limits.
    launches: after which a bundle can be made. moved: lengths and loads of the workload that a
    decision may depend on. identity: fields of a candidate whose values make a row another choice.
    """

    remedies: Callable[[Plan], Iterator[tuple[str, Fields]]]
    row_cures: Callable[[Plan, int, frozenset[str]], Iterator[Fields]]
    moved: Callable[[Plan], tuple[tuple[str, ...], tuple[str, ...]]]
    identity: tuple[str, ...]
    row_reliefs: Callable[[Plan, int, frozenset[str]], Iterator[Fields]] = _no_changes
    launches: Callable[[Plan], Iterator[Fields]] = _no_changes


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of workload, as a plan needs it.

    parts: titles of a device's memory. goals: the column that each goal is about,
    and whether less (1) or more (-1) of it is better. unpriced: columns that stand for cost where a
    price is unknown. frontier: columns of the tradeoff that every plan states. shown_as: columns
    that people read in place of those that rank. settled: options that the request of one row no
    longer has.
    """

    name: Literal["serving", "training"]
    parts: Mapping[str, str]
    goals: Mapping[Goal, tuple[str, int]]
    unpriced: Mapping[str, str]
    frontier: tuple[str, str]
    settled: tuple[str, ...]
    ranking: Ranking
    cures: Cures
    search_cases: Callable[[Kind, Any, CandidateRequest | None], tuple[Any, list[Any]]]
    """Every case that agrees with a candidate, judged, and the problem as narrowed by it."""
    find_case: Callable[[Kind, Any, CandidateRequest], tuple[Any, Any] | None]
    """Setting and case of a candidate that states its layout in full, else None."""
    judge_cases: Callable[[Kind, Any, Any, Any], list[Any]]
    """Cases of one setting, one after another."""
    shown: Callable[[Plan], Shown]
    is_uncertain: Callable[[Float], Bool]
    """Probabilities of a start between the bounds that tell whether it does."""
    names_of: Callable[[Any], Mapping[str, str]]
    """Names that tell settings on one cluster apart: engine, formats."""
    titles_of: Callable[[Any], Mapping[str, str]]
    split_columns: Callable[[Plan], Mapping[str, Any]]
    """Columns that tell rows apart beside the table's: device, engine, formats …"""
    describe: Callable[[Plan, Block, Int], list[dict[str, Any]]]
    """Layouts of some cases of a block, as the contract writes them."""
    workload: Callable[[Plan, int], Any]
    """The workload of a row, under its load."""
    is_same_split: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
    """Return whether a candidate is what a key names, where degrees, cluster and load agree."""
    memory: Callable[[Plan, Sequence[int]], dict[str, Float]]
    held_memory: Callable[[Plan, Sequence[int]], dict[str, Float]]
    detailed: Callable[[Plan, int], Any]
    """The estimate of a row with everything that is left out where many are listed."""
    shown_as: Mapping[str, str] = field(default_factory=dict)
    add_columns: Callable[[dict[str, Any]], None] = lambda _columns: None
    overloaded: Callable[[Plan], Bool] = lambda table: np.zeros(len(table), dtype=np.bool_)
    trim_reasons: Callable[[Plan, list[list[str]]], list[list[str]]] = lambda _table, rows: rows
    launch_note: Callable[[Plan], str | None] = lambda _table: None
    unlaunchable: Callable[[Plan, int], list[str]] = lambda _table, _row: []
