"""Residuals of one's own measured runs, from which estimates learn, and their priors.

Every run is estimated by the same formulas. Of its figures count the time per output token and the
time to first token; the latency of a request where one of these is missing; throughput, which in a
closed loop, a batch or a full queue is a time by Little's law, where there is neither a time per
output token nor a latency. How residuals become scales is said in
``estimates/columns/corrections.py``.
"""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.base.documents import read_shipped, to_json
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.corrections import (
    Corrections,
    LeftOut,
    OwnRun,
    Residual,
    assumed_version,
    version_in_text,
)
from recipe_core.estimates.columns.prior import Prior
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.measured.runs import Run
from recipe_core.estimates.serving.corrections import request_time_shares
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import estimate_batch, find_stated_case, plan_cases, shared_key
from recipe_core.plans.problem import ServingProblem, resolve_problem
from recipe_core.request.schema import PlanRequest

# Own runs of one question: what they teach takes a matrix of so many rows.
MAX_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured run: its request, the engine that really ran, and means in SI units.

    ``version``: empty for the version that estimates assume. ``excluded``: why it is not to count.
    ``date``: day of the measurement. ``requests`` were answered, ``failed`` were not; None where
    the source does not say. ``driver`` and ``machine``: what it ran on, empty where unknown.
    """

    name: str
    request: Mapping[str, Any]
    version: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    request_latency_s: float | None = None
    output_tokens_per_s: float | None = None
    step_s: float | None = None
    excluded: str = ""
    date: datetime.date | None = None
    requests: int | None = None
    failed: int | None = None
    driver: str = ""
    machine: str = ""

    @staticmethod
    def of(run: Run) -> Measured:
        rate = run.output_tokens_per_s
        if rate is None and run.total_tokens_per_s is not None:
            share = run.output_tokens / (run.input_tokens + run.output_tokens)
            rate = run.total_tokens_per_s * share
        names = ("ttft", "tpot", "request_latency")
        times_ms = {name: getattr(run, f"{name}_ms") for name in names}
        times: dict[str, Any] = {f"{name}_s": ms / 1e3 for name, ms in times_ms.items() if ms}
        return Measured(
            name=run.id,
            request=run.request(),
            version=run.version,
            output_tokens_per_s=rate,
            excluded=run.exclude,
            date=_parse_table_date(run.date),
            **times,
        )


def _parse_table_date(text: str) -> datetime.date | None:
    """The day that a table states; None for another text, as tables may hold any."""
    try:
        return datetime.date.fromisoformat(text[:10])
    except ValueError:
        return None


@cache
def shipped_prior() -> Prior:
    return Prior.model_validate(read_shipped(Path(__file__).with_suffix(".yaml")))


def learn_corrections(
    measured: Iterable[Measured | MeasuredCompression],
    *,
    folders: bool = True,
    prior_belief: Prior | None = None,
) -> Corrections:
    """Return what runs teach. Runs that cannot be estimated are left out, each with its reason.

    Args:
        measured: the runs, in any order; a run that is there twice counts once. Checkpoints that
            were made here change accuracy, not times.
        folders: whether a model may be named by a path on this machine.
        prior_belief: what is known before; by default what ships.

    Raises:
        InputError: for more than ``MAX_RUNS`` runs.
    """
    measurements = list(measured)
    checkpoints = [entry for entry in measurements if isinstance(entry, MeasuredCompression)]
    runs = _drop_repeated_runs(entry for entry in measurements if isinstance(entry, Measured))
    if len(runs) > MAX_RUNS:
        raise InputError(
            f"{len(runs):,} own runs are given; at most {MAX_RUNS:,} are used.",
            field="measured",
            hint="Keep the newest runs of the deployments in question.",
        )
    left_out: dict[str, str] = {run.name: run.excluded for run in runs if run.excluded}
    pairs: dict[str, list[tuple[Measured, ServingProblem, Setting, Cases]]] = defaultdict(list)
    for run in runs:
        if run.excluded:
            continue
        try:
            problem, setting, case = _resolve_measured_case(run, folders)
        except RecipeError as error:
            left_out[run.name] = error.message
        else:
            pairs[shared_key(problem, setting)].append((run, problem, setting, case))
    own_runs: dict[str, OwnRun] = {}
    for members in pairs.values():
        _, problem, setting, _ = members[0]
        plan = plan_cases(problem, setting, stack_columns([member[-1] for member in members]))
        for row, (run, _, _, case) in enumerate(members):
            estimate = plan.estimate(row)
            if not estimate.feasible:
                left_out[run.name] = f"cannot run by the estimate: {estimate.reasons[0]}"
            elif residuals := _run_residuals(
                run, setting.mode, estimate, _queue_exponents(plan, row)
            ):
                version = version_in_text(run.version) or assumed_version(setting.engine)
                own_runs[run.name] = OwnRun(run.name, setting, case, version, residuals)
            else:
                left_out[run.name] = "measured nothing that a scale explains in this mode"
    return Corrections(
        prior_belief or shipped_prior(),
        tuple(own_runs[run.name] for run in runs if run.name in own_runs),
        tuple(LeftOut(run.name, left_out[run.name]) for run in runs if run.name in left_out),
        compressed=tuple(dict.fromkeys(checkpoints)),
    )


def _drop_repeated_runs(measured: Iterable[Measured]) -> list[Measured]:
    """Each run once, in an order of their own, so that the order of rows changes no bit.

    Runs of several tables may have the same name.
    """
    runs: dict[str, Measured] = {}
    for run in measured:
        figures = (run.ttft_s, run.tpot_s, run.request_latency_s, run.output_tokens_per_s)
        runs.setdefault(to_json([run.request, run.version, figures], indent=None), run)
    names: dict[str, int] = defaultdict(int)
    out = []
    for _, run in sorted(runs.items()):
        names[run.name] += 1
        if (times := names[run.name]) > 1:
            run = replace(run, name=f"{run.name} ({times})")
        out.append(run)
    return out


def _resolve_measured_case(run: Measured, folders: bool) -> tuple[ServingProblem, Setting, Cases]:
    """The one case that was measured.

    Raises:
        RecipeError: for a request that cannot be read, or that does not state its split.
    """
    request = PlanRequest.parse(run.request)
    if request.is_training:
        raise InputError("is a training run; own runs correct estimates of serving.", field="model")
    with without_corrections():
        problem = resolve_problem(request, folders=folders)
    pair = find_stated_case(problem, problem.candidate)
    if pair is None:
        raise InputError("does not state TP, PP and DP.", field="candidate")
    return (problem, *pair)


def _queue_exponents(plan: Plan, row: int) -> dict[str, tuple[float, float]]:
    """By figure by how much a queue carries an error on, below and above; empty without one."""
    block, place = plan.at(row)
    estimates, place = block.detail(place)
    return {
        name: (float(stretch.below[place]), float(stretch.above[place]))
        for name, stretch in estimates.stretches().items()
    }


def _run_residuals(
    run: Measured,
    mode: str,
    estimate: ServingEstimate,
    exponents: Mapping[str, tuple[float, float]],
) -> tuple[Residual, ...]:
    """Return what the run shows, one entry a figure that says more than those before.

    What a queue made of an error is taken back: a scale is of the time of a step.
    """
    served, parts = estimate.serving, estimate.breakdown_s
    if served is None or parts is None:
        return ()
    tokens = PlanRequest.parse(run.request).workload.output_tokens  # type: ignore[union-attr]
    shares = request_time_shares(parts.prefill, served.ttft_s, served.tpot_s, tokens)
    pairs: list[tuple[str, float | None, float]] = [
        ("tpot_s", run.tpot_s if tokens > 1 else None, served.tpot_s),
        ("ttft_s", run.ttft_s, served.ttft_s),
    ]
    if run.tpot_s is None or run.ttft_s is None:
        pairs.append(("request_latency_s", run.request_latency_s, served.request_latency_s))
        measured_time = run.tpot_s or run.request_latency_s
        rate = None if measured_time or mode == "open" else run.output_tokens_per_s
        # a time by Little's law
        inverse = None if rate is None else 1 / rate
        pairs.append(("output_tokens_per_s", inverse, 1 / served.output_tokens_per_s))
    out = []
    for figure, measured, estimated in pairs:
        if measured is not None and measured > 0 and estimated > 0:
            steps, rest = (float(share) for share in shares.of(figure))
            ratio = math.log(measured / estimated)
            below, above = exponents.get(figure, (1.0, 1.0))
            out.append(Residual(ratio / (above if ratio > 0 else below), steps, rest))
    return tuple(out)


def measured_of_rows(runs: Sequence[Run]) -> list[Measured]:
    return [Measured.of(run) for run in runs]


# Groups that are left out in turn; up to so many runs each is a group of its own.
FOLDS = 20

# Which breakdown of an estimate adds up to a figure.
PARTS = {"tpot_s": "decode", "ttft_s": "prefill"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A figure with the ends of its 80 % band, all in SI units; ``basis`` says what it rests on."""

    value: float
    low: float
    high: float
    basis: str

    def holds(self, measured: float) -> bool:
        return self.low <= measured <= self.high


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A measured figure of a run, in SI units.

    ``formulas``: its estimate; ``corrected``: with what the other runs teach, where they teach
    anything. ``parts``: seconds of the estimate's parts, for figures that are times of parts.
    """

    run: str
    figure: str
    measured: float
    formulas: Prediction
    corrected: Prediction
    parts: Mapping[str, float]
    model: str
    device: str
    engine: str
    version: str
    mode: str

    @property
    def error(self) -> float:
        """|estimated / measured - 1| of the formulas."""
        return abs(self.formulas.value / self.measured - 1)

    @property
    def corrected_error(self) -> float:
        """|estimated / measured - 1| with what the other runs teach."""
        return abs(self.corrected.value / self.measured - 1)


@dataclass(frozen=True, slots=True)
class RunsCompared:
    """Every measured figure that has an estimate; ``left_out``: runs without, with the reason."""

    figures: tuple[ComparedFigure, ...]
    left_out: Mapping[str, str]


def compare_runs(runs: Sequence[Measured], *, folders: bool = True) -> RunsCompared:
    """Runs beside their predictions; the names of runs must differ.

    Raises:
        InputError: for more runs than count.
    """
    with without_corrections():
        learned = learn_corrections(runs, folders=folders)
        left_out = {run.name: run.reason for run in learned.left_out}
        sound = [run for run in runs if run.name not in left_out]
        plain = estimate_batch([dict(run.request) for run in sound])
        corrected = _without_themselves(sound, learned)
    return RunsCompared(
        tuple(
            figure
            for run, before, after in zip(sound, plain, corrected, strict=True)
            for figure in _compare_run_figures(run, before, after)
        ),
        left_out,
    )


def _without_themselves(runs: Sequence[Measured], learned: Corrections) -> list[dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    for start in range(min(FOLDS, len(runs))):
        group = runs[start::FOLDS]
        names = {run.name for run in group}
        other_runs = tuple(run for run in learned.runs if run.name not in names)
        taught = Corrections(learned.prior, other_runs) if other_runs else None
        estimates = estimate_batch([dict(run.request) for run in group], taught)
        answers |= {run.name: estimate for run, estimate in zip(group, estimates, strict=True)}
    return [answers[run.name] for run in runs]


def _compare_run_figures(
    run: Measured, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[ComparedFigure]:
    for figure in ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s", "step_s"):
        measured = getattr(run, figure)
        formulas, corrected = _figure_prediction(before, figure), _figure_prediction(after, figure)
        if measured is None or formulas is None or corrected is None:
            continue
        parts = (before.get("breakdown_s") or {}).get(PARTS.get(figure, ""), {})
        candidate, hardware = run.request["candidate"], run.request["hardware"]
        device = hardware["device"]
        yield ComparedFigure(
            run=run.name,
            figure=figure,
            measured=measured,
            formulas=formulas,
            corrected=corrected,
            parts={name: seconds for name, seconds in parts.items() if seconds > 0},
            model=_model_name(run.request["model"]),
            device=device if isinstance(device, str) else str(device.get("name")),
            engine=candidate["engine"],
            version=version_in_text(run.version),
            mode=str(run.request["workload"].get("mode") or "training"),
        )


def _model_name(model: Any) -> str:
    if isinstance(model, Mapping):
        return str(model.get("_name_or_path") or "unnamed")
    return str(model).rstrip("/").rpartition("/")[2]


def _figure_prediction(estimate: Mapping[str, Any], figure: str) -> Prediction | None:
    kind = "training" if figure == "step_s" else "serving"
    value = (estimate.get(kind) or {}).get(figure)
    band = (estimate.get("bands") or {}).get(figure)
    if value is None or band is None:
        return None
    return Prediction(value, band[0], band[1], (estimate.get("basis") or {}).get(figure, ""))
