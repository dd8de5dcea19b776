"""Measured figures beside the estimate's parts, each with a verdict.

*Match*: inside the band. *Explained by*: outside, and inside the band of the estimate that is made
again with what the files state differently than the request; every explanation is tested in this
way, alone first, then together, and the fewest that suffice are named. *Not explained*: outside
with all of them.

Bands of times are the estimate's own, 80 %. Those of memory are ±3 % for weights and ±10 % for the
cache: of logged start-ups of engines 100 % and 90 % are within these (docs/reference/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import combinations
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.calibration.importers.measurement import Imported
from recipe_core.calibration.validation.facts import (
    PARTS,
    Fact,
    Planned,
    Values,
    as_logged,
    logged_parts,
    measured_facts,
    other_model,
)
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.results import Estimate
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.serving_settings import served_context
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload

# Half widths of the bands of memory, as shares of the estimate.
SHARES = {
    "weights_bytes": 0.03,
    "kv_cache_bytes": 0.10,
    "kv_cache_tokens": 0.10,
    "max_concurrency": 0.10,
}
# Figures that are compared, in this order.
FIGURES = (
    *("weights_bytes", "kv_cache_bytes", "kv_cache_tokens", "max_concurrency"),
    *("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"),
    *("step_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes"),
)
# What is kept of a split that was chosen; its limits are the engine's defaults.
SETTLED = ("engine", "tp", "pp", "dp", "ep", "cp", "weight_dtype", "kv_dtype")
MATCH, EXPLAINED, OPEN = "match", "explained", "not explained"
# Facts of which pairs are tried too.
PAIRS = 8

Ends = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One figure: measured, estimated with its band, and the verdict.

    ``explained_by`` are titles of facts; ``again`` and ``again_band`` the estimate with them (with
    all facts where they do not suffice; None without facts).
    """

    figure: str
    measured: float
    estimated: float
    band: Ends
    verdict: str
    explained_by: tuple[str, ...] = ()
    again: float | None = None
    again_band: Ends | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "figure": self.figure,
            "measured": self.measured,
            "estimated": self.estimated,
            "band": list(self.band),
            "verdict": self.verdict,
        }
        if self.again is not None and self.again_band is not None:
            out |= {"explained_by": list(self.explained_by)}
            out |= {"estimated_again": self.again, "band_again": list(self.again_band)}
        return out


@dataclass(frozen=True)
class Reconciled:
    """One measurement beside the estimate.

    ``facts``: what it states differently than the request; ``not_estimated``: its figures that an
    estimate lacks; ``refused``: why the planned split could not run by the estimate.
    """

    source: str
    measurement: Imported
    rows: tuple[Row, ...]
    facts: tuple[str, ...] = ()
    not_estimated: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether nothing is left without an explanation."""
        return all(row.verdict != OPEN for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "format": self.measurement.format,
            "place": self.measurement.place,
            "ok": self.ok,
            "figures": [row.to_json() for row in self.rows],
            "facts": list(self.facts),
            "not_estimated": list(self.not_estimated),
            "refused": list(self.refused),
            "notes": [*self.notes, *self.measurement.notes],
        }


Estimated = tuple[dict[str, float], dict[str, Ends]]


@dataclass
class _Estimates:
    """Estimates of a request with sets of facts, each made once."""

    planned: Values
    folders: bool
    corrections: Corrections | None
    refused: tuple[str, ...] = ()
    _made: dict[frozenset[str], Estimated | None] = field(default_factory=dict)

    def of(self, facts: Sequence[Fact]) -> Estimated | None:
        """Figures and bands with these facts; None where no such split can be estimated."""
        key = frozenset(fact.name for fact in facts)
        if key not in self._made:
            self._made[key] = self._estimate(facts)
        return self._made[key]

    def figure(self, facts: Sequence[Fact], name: str) -> tuple[float, Ends] | None:
        """One figure and its band with these facts; None where it has none."""
        figures, ends = self.of(facts) or ({}, {})
        return (figures[name], ends[name]) if name in figures and name in ends else None

    def fits(self, facts: Sequence[Fact], name: str, measured: float) -> bool:
        """Return whether a measured figure is inside the band with these facts."""
        estimate = self.figure(facts, name)
        return estimate is not None and estimate[1][0] <= measured <= estimate[1][1]

    def _estimate(self, facts: Sequence[Fact]) -> Estimated | None:
        values = self.planned
        for fact in facts:
            if fact.change is not None:
                values = fact.change(values)
        try:
            plan, row = plan_candidate(
                PlanRequest.parse(values), folders=self.folders, corrections=self.corrections
            )
            estimate = plan.estimate(row)
        except RecipeError:
            return None
        if not facts:
            self.refused = tuple(estimate.reasons)
        figures, ends = comparable_figures(estimate)
        if (context := _accepted_context(plan)) is not None and "kv_cache_tokens" in figures:
            # engines count requests as long as they accept, estimates those that are planned
            figures["max_concurrency"] = figures["kv_cache_tokens"] / context
            figures |= as_logged(plan, row, figures)
        for fact in facts:
            if fact.adjust is not None:
                figures = fact.adjust(figures)
        return figures, {**ends, **_memory_ends(figures)}


def comparable_figures(estimate: Estimate) -> tuple[dict[str, float], dict[str, Ends]]:
    """The figures of an estimate that can be compared, and their bands."""
    quantities: dict[str, Any] = {}
    if isinstance(estimate, ServingEstimate):
        names = ("weights_bytes", "kv_cache_bytes", "kv_cache_tokens", *PARTS)
        quantities = {name: getattr(estimate.memory, name) for name in names}
    quantities |= {name: value for name, value in estimate.figures().items() if name in FIGURES}
    figures = {name: float(value) for name, value in quantities.items() if value and value > 0}
    ends = {name: (low, high) for name, (low, high) in (estimate.bands or {}).items()}
    if "mfu" in figures and "step_s" in ends and "step_s" in figures:
        low, high = (figures["step_s"] / end for end in reversed(ends["step_s"]))
        ends.setdefault("mfu", (figures["mfu"] * low, figures["mfu"] * high))
    return figures, {**_memory_ends(figures), **ends}


def _memory_ends(figures: Mapping[str, float]) -> dict[str, Ends]:
    return {
        name: (figures[name] * (1 - share), figures[name] * (1 + share))
        for name, share in SHARES.items()
        if name in figures
    }


def settle_request(values: Mapping[str, Any], *, folders: bool = True) -> Planned:
    """A request whose candidate states its split: what the search chooses is settled once.

    So facts change nothing else.

    Raises:
        InputError: as for any request.
    """
    request = PlanRequest.parse(values)
    plan, row = plan_candidate(request, folders=folders)
    estimated_candidate = {
        key: value for key, value in plan.candidate(row).items() if value is not None
    }
    stated_candidate = dict(values.get("candidate") or {})
    names = CandidateRequest.model_fields if request.is_training else SETTLED
    settled_fields = {key: value for key, value in estimated_candidate.items() if key in names}
    work = request.workload.model_dump(mode="json", exclude_none=True)
    settled = {**values, "workload": work, "candidate": {**settled_fields, **stated_candidate}}
    return Planned(settled, {**estimated_candidate, **stated_candidate}, _accepted_context(plan))


def _accepted_context(plan: Plan) -> int | None:
    """Tokens of the longest request that the engine of a serving plan accepts."""
    problem = plan.problem
    if isinstance(problem.workload, ServingWorkload):
        return served_context(problem.workload, problem.model)
    return None


def reconcile_measurements(
    measurements: Iterable[tuple[str, Imported]],
    values: Mapping[str, Any],
    *,
    folders: bool = True,
    corrections: Corrections | None = None,
) -> list[Reconciled]:
    """Every measurement with figures beside the estimate of a request.

    Files without a load of their own (start-up logs) also say what the others ran with.

    Args:
        measurements: what was measured, each with the name of its source.
        values: the request of what ran, as plain values.
        folders: whether a model may be named by a path on this machine.
        corrections: what runs of one's own teach; the estimate is set beside with them.

    Raises:
        InputError: for a request that cannot be read or estimated.
    """
    planned = settle_request(values, folders=folders)
    pairs = list(measurements)
    startups = [run for _, run in pairs if run.kind == "serving" and not run.teaches]
    shared = reduce(_completed, startups, Imported(format=""))
    out = []
    for source, run in pairs:
        facts = measured_facts(run if run.kind == "training" else _completed(run, shared), planned)
        estimates = _Estimates(planned.values, folders, corrections)
        out.append(_reconcile_measurement(source, run, facts, estimates, planned.values))
    return out


def _completed(run: Imported, other: Imported) -> Imported:
    """A measurement with what another says of how the engine ran; its own statements go first."""
    return replace(
        run,
        engine=run.engine or other.engine,
        version=run.version or other.version,
        figures={**other.figures, **run.figures},
        split={**other.split, **run.split},
        settings={**other.settings, **run.settings},
    )


def _reconcile_measurement(
    source: str, run: Imported, facts: Sequence[Fact], estimates: _Estimates, planned: Values
) -> Reconciled:
    base = estimates.of(())
    names = [name for name in FIGURES if name in run.figures]
    rows = [
        _judge_figure(name, run.figures[name], estimate, facts, estimates)
        for name in names
        if (estimate := estimates.figure((), name))
    ]
    compared = {row.figure for row in rows}
    notes = logged_parts(run, estimates.of([fact for fact in facts if not fact.guess]) or base)
    if (model := other_model(run, planned)) is not None:
        notes.append(f"the file names {model}, the request {planned['model']}")
    if run.excluded:
        notes.append(f"it is not to be learned from: {run.excluded}")
    return Reconciled(
        source,
        run,
        tuple(rows),
        tuple(fact.title for fact in facts if not fact.guess),
        tuple(name for name in names if name not in compared),
        estimates.refused,
        tuple(notes),
    )


def _judge_figure(
    name: str,
    measured: float,
    estimate: tuple[float, Ends],
    facts: Sequence[Fact],
    estimates: _Estimates,
) -> Row:
    row = Row(name, measured, *estimate, MATCH)
    if estimates.fits((), name, measured):
        return row
    about = [fact for fact in facts if name in fact.about]
    stated_facts = [fact for fact in about if not fact.guess]
    for group in _fact_sets(stated_facts, [fact for fact in about if fact.guess]):
        if estimates.fits(group, name, measured):
            fewest = _fewest_facts(estimates, group, name, measured)
            titles = tuple(fact.title for fact in fewest)
            row = replace(row, verdict=EXPLAINED, explained_by=titles)
            return _with_estimate(row, estimates.figure(fewest, name))
    with_all = estimates.figure(stated_facts, name) if stated_facts else None
    return _with_estimate(replace(row, verdict=OPEN), with_all)


def _with_estimate(row: Row, again: tuple[float, Ends] | None) -> Row:
    return replace(row, again=again[0], again_band=again[1]) if again else row


def _fact_sets(stated_facts: Sequence[Fact], guesses: Sequence[Fact]) -> Iterable[Sequence[Fact]]:
    """Sets of facts in the order in which they are tried: one, two, all, then with a guess."""
    yield from ([fact] for fact in stated_facts)
    yield from combinations(stated_facts[:PAIRS], 2)
    if len(stated_facts) > 2:
        yield stated_facts
    yield from ([*stated_facts, guess] for guess in guesses)


def _fewest_facts(
    estimates: _Estimates, facts: Sequence[Fact], name: str, measured: float
) -> Sequence[Fact]:
    """The facts without those that the figure needs not: each is left out if it still fits."""
    needed_facts = list(facts)
    for fact in facts:
        fewer = [needed for needed in needed_facts if needed is not fact]
        if fewer and estimates.fits(fewer, name, measured):
            needed_facts = fewer
    return needed_facts
