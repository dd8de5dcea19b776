"""Runs of one's own beside what is predicted of them: by the formulas, and with the other runs.

No run is predicted with itself: it is left out of what corrects it, alone where runs are few and
with a part of the others where they are many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_core.calibration.residuals import Measured, learn_corrections
from recipe_core.estimates.columns.corrections import Corrections, version_in_text
from recipe_core.estimates.columns.standing import without_corrections
from recipe_core.plans.plans import estimate_batch

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
    """The estimate of each run with what the runs of the other groups teach."""
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
