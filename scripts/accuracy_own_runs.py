"""Errors of estimates with a few runs of one's own, against those before any run.

    python scripts/accuracy_own_runs.py TRUTH_DIR          print the table of accuracy.md
    python scripts/accuracy_own_runs.py TRUTH_DIR --write  also write own_runs.yaml

A cell is a source x device x model. Of each, 0, 1, 3 and 10 runs are drawn at random, the library
is told of them, and the others are estimated. Runs that the data exclude take no part.

What is known before any run (``Prior``: of each scale shares of variance by scope, and how fast the
effect of alike loads and lengths fades) is chosen by cross-validation: of ``CANDIDATES`` random
shares the mean of the ``BEST`` with the least errors, on runs drawn in the same way and on runs of
a cell that is told of another model of the same source and device. Errors
of a source are tested with the shares of all other sources. Moments and likelihoods of residuals
give similar shares, but trust one run too much: some residuals are ten times as large as most.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import publish_runs

from recipe_core.base.arrays import Float
from recipe_core.base.documents import to_yaml
from recipe_core.base.intervals import BAND
from recipe_core.calibration import residuals as own_runs
from recipe_core.calibration.residuals import learn_corrections, measured_of_rows
from recipe_core.estimates.bands import narrow_interval
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.corrections import (
    Corrections,
    DeviceRuns,
    OwnRun,
)
from recipe_core.estimates.columns.prior import (
    WIDE_TO_NARROW,
    Prior,
    ScalePrior,
    Scopes,
    Shares,
)
from recipe_core.estimates.measured.runs import Run
from recipe_core.estimates.serving.bands import bands_of
from recipe_core.estimates.serving.corrections import EITHER
from recipe_core.estimates.serving.estimates import estimate_serving

SEED = 1
GIVEN = (0, 1, 3, 10)
DRAWS = 5
CANDIDATES = 400
BEST = 20
LEAST_NOISE = 0.02
FADES, PROMPT_FADES = (0.15, 0.3), (0.3, 0.6, 1.2)
CAP = 2.0  # standard deviations beyond which a figure is cut; 3 and Student's t were no better
MOST_TESTED = 60  # runs of a cell that are estimated for one choice of shares

FIGURES = {
    "tpot_ms": "time per output token",
    "ttft_ms": "time to first token",
    "output_tokens_per_s": "throughput, all queued",
}
# The figures that each scale is chosen by: every one has steps in it.
SCALES = {"steps": tuple(FIGURES), "prompts": ("ttft_ms",)}
QUANTITY = {
    "tpot_ms": ("tpot_s", 1e3),
    "ttft_ms": ("ttft_s", 1e3),
    "output_tokens_per_s": ("output_tokens_per_s", 1.0),
}

Cell = tuple[str, str, str]


@dataclass(frozen=True)
class Told:
    """Measured runs of a cell as own runs, and what was measured of each figure (NaN: not)."""

    cell: Cell
    runs: list[OwnRun]
    measured: dict[str, Float]

    def rows(self, figure: str) -> Float:
        """Runs that measured a figure."""
        return np.flatnonzero(np.isfinite(self.measured[figure]))


def cells(truth: Path) -> list[Told]:
    """Every cell of the data, without the runs that the data exclude."""
    everything = publish_runs.as_runs(publish_runs.published_serving_runs(truth))
    runs = {run.id: run for run in everything if not run.exclude}
    by_source: dict[str, list[Run]] = defaultdict(list)
    for run in runs.values():
        by_source[run.source].append(run)
    grouped: dict[Cell, list[OwnRun]] = defaultdict(list)
    for source, of_source in by_source.items():
        for own_run in learn_corrections(measured_of_rows(of_source)).runs:
            run = runs[own_run.name]
            grouped[source, run.device, run.model].append(own_run)
    return [
        Told(cell, own_run, _measured(own_run, runs)) for cell, own_run in sorted(grouped.items())
    ]


def _measured(own_runs: Sequence[OwnRun], runs: dict[str, Run]) -> dict[str, Float]:
    out = {}
    for figure in FIGURES:
        queued = figure == "output_tokens_per_s"
        values = [
            getattr(runs[run.name], figure) if not queued or run.setting.mode == "offline" else None
            for run in own_runs
        ]
        out[figure] = np.array([np.nan if value is None else value for value in values])
    return out


def draws(
    cell_runs: Told, figure: str, count: int, rng: np.random.Generator
) -> Iterator[tuple[Float, Float]]:
    """Runs that are given and those that are tested, of the runs that measured a figure."""
    rows = cell_runs.rows(figure)
    if len(rows) <= count:
        return
    for _ in range(DRAWS if count else 1):
        drawn = rng.choice(rows, count, replace=False)
        yield drawn, np.setdiff1d(rows, drawn)


# What is known before


def spread(all_cells: Sequence[Told]) -> tuple[float, float]:
    """Standard deviations of the logarithms of both scales: of their residuals, cells alike."""
    out = []
    for scale in ("steps", "prompts"):
        squares = [
            np.mean(shown)
            for cell_runs in all_cells
            if (
                shown := [
                    residual.log_ratio**2
                    for run in cell_runs.runs
                    for residual in run.residuals
                    if getattr(residual, scale) > 0.5
                ]
            )
        ]
        out.append(float(np.sqrt(np.mean(squares))))
    return out[0], out[1]


def _log_ratio(run: OwnRun, figure: str) -> float:
    """Return what a run shows of a figure; a rate counts as the time that goes with it."""
    place = "prompts" if figure == "ttft_ms" else "steps"
    return max(run.residuals, key=lambda residual: getattr(residual, place)).log_ratio


@dataclass(frozen=True)
class Trial:
    """Runs given and tested: what they have in common by scope, and what they show."""

    cell: Cell
    kind: str
    among: Scopes
    between: Scopes
    shown: Float
    tested: Float

    def losses(self, shares: Float, fades: Fades) -> Float:
        """Median |error| of the tested runs for each choice of shares (rows; the last is noise)."""
        n = len(self.shown)
        among = np.einsum("lab,cl->cab", fades.layers(self.among), shares[:, :-1])
        among += shares[:, -1][:, None, None] * np.eye(n)
        solved = np.linalg.solve(among, np.broadcast_to(self.shown, (len(shares), n))[..., None])
        between = fades.layers(self.between)
        predicted = np.einsum("lrb,cl,cb->cr", between, shares[:, :-1], solved[..., 0])
        return np.median(np.abs(np.expm1(predicted - self.tested)), axis=1)


class Fades(NamedTuple):
    """The fading of what alike loads share, by doublings of load or answer, and of prompt."""

    other: float
    prompt: float

    def layers(self, scopes: Scopes) -> Float:
        """Return what runs have in common of each scope, narrowest last."""
        fades = np.array([self.other, self.prompt, self.other])
        alike = scopes.of_model * np.exp(-np.abs(scopes.apart) @ fades)
        return np.concatenate([scopes.same, alike[None]])


Place = tuple[str, str]


def by_place(all_cells: Sequence[Told]) -> dict[Place, list[Told]]:
    """Cells of each source and device."""
    places: dict[Place, list[Told]] = defaultdict(list)
    for cell_runs in all_cells:
        places[cell_runs.cell[:2]].append(cell_runs)
    return places


def trials(all_cells: Sequence[Told], figure: str, common: dict[Place, _Common]) -> list[Trial]:
    """Draws within each cell, and with ten runs of another model of the source and device."""
    rng, out = np.random.default_rng(SEED), []
    places = by_place(all_cells)
    for cell_runs in all_cells:
        place = common[cell_runs.cell[:2]]
        for count in GIVEN[1:]:
            for drawn, rest in draws(cell_runs, figure, count, rng):
                tested = rest if len(rest) <= MOST_TESTED else rng.choice(rest, MOST_TESTED, False)
                out.append(place.trial(f"{count}", cell_runs, drawn, cell_runs, tested, figure))
        neighbours = [
            candidate
            for candidate in places[cell_runs.cell[:2]]
            if candidate is not cell_runs and len(candidate.rows(figure))
        ]
        rows = cell_runs.rows(figure)
        if not neighbours or not len(rows):
            continue
        for _ in range(DRAWS):
            neighbour = neighbours[rng.integers(len(neighbours))]
            drawn = rng.permutation(neighbour.rows(figure))[: GIVEN[-1]]
            tested = rows if len(rows) <= MOST_TESTED else rng.choice(rows, MOST_TESTED, False)
            out.append(place.trial("other model", neighbour, drawn, cell_runs, tested, figure))
    return out


@dataclass(frozen=True)
class _Common:
    """Common parts of the runs of one source and device, and the first row of each cell."""

    scopes: Scopes
    starts: dict[Cell, int]

    def between(self, rows: Float, runs: Float) -> Scopes:
        """Return what some rows have in common with some runs."""
        same, of_model, apart = self.scopes
        place = (rows[:, None], runs)
        return Scopes(same[:, *place], of_model[place], apart[place])

    def trial(
        self, kind: str, of: Told, drawn: Float, tested_cell: Told, tested: Float, figure: str
    ) -> Trial:
        """The trial of some runs of a cell, given some of a cell (maybe the same)."""
        a, b = self.starts[of.cell] + drawn, self.starts[tested_cell.cell] + tested
        return Trial(
            tested_cell.cell,
            kind,
            self.between(a, a),
            self.between(b, a),
            np.array([_log_ratio(of.runs[i], figure) for i in drawn]),
            np.array([_log_ratio(tested_cell.runs[i], figure) for i in tested]),
        )


def _common(members: Sequence[Told], prior: Prior) -> _Common:
    runs = [run for cell_runs in members for run in cell_runs.runs]
    starts = np.cumsum([0, *(len(cell_runs.runs) for cell_runs in members)])
    cells = dict(zip((cell_runs.cell for cell_runs in members), starts.tolist(), strict=False))
    return _Common(DeviceRuns(prior, runs).with_each_other(), cells)


@dataclass(frozen=True)
class Choice:
    """Errors of every candidate for the shares, by figure, kind of trial and cell."""

    shares: Float
    errors: dict[Fades, pd.DataFrame]

    def best(self, scale: str, without: str | None = None) -> tuple[Fades, Float]:
        """Return how fast loads fade, and the shares: by all sources or all but one.

        Kinds of trials count alike, each in units of its least error.
        """
        means = {}
        for fades, errors in self.errors.items():
            index = errors.index
            of_scale = index.get_level_values("figure").isin(SCALES[scale])
            mask = of_scale & (index.get_level_values("source") != without)
            means[fades] = errors[mask].groupby(["figure", "kind"]).mean()
        lowest = pd.concat([table.min(axis=1) for table in means.values()], axis=1).min(axis=1)
        scores = {f: table.div(lowest, axis=0).mean().to_numpy() for f, table in means.items()}
        fades = min(scores, key=lambda f: float(np.sort(scores[f])[:BEST].mean()))
        order = np.argsort(scores[fades])[:BEST]
        return fades, self.shares[order].mean(axis=0)


def choose(all_cells: Sequence[Told], base_prior: Prior) -> Choice:
    """The errors of random candidates for the shares."""
    rng = np.random.default_rng(SEED)
    shares = rng.dirichlet(np.full(len(WIDE_TO_NARROW) + 1, 0.5), CANDIDATES)
    shares[:, -1] = np.maximum(shares[:, -1], LEAST_NOISE)
    shares /= shares.sum(axis=1, keepdims=True)
    places = by_place(all_cells).items()
    common = {place: _common(members, base_prior) for place, members in places}
    drawn = {figure: trials(all_cells, figure, common) for figure in FIGURES}
    errors = {}
    for fades in starmap(Fades, product(FADES, PROMPT_FADES)):
        parts = []
        for figure, of_figure in drawn.items():
            table = pd.DataFrame([trial.losses(shares, fades) for trial in of_figure])
            table["figure"] = figure
            table["kind"] = [trial.kind for trial in of_figure]
            table["source"] = [trial.cell[0] for trial in of_figure]
            table["cell"] = ["/".join(trial.cell) for trial in of_figure]
            parts.append(table.groupby(["figure", "kind", "source", "cell"]).mean())
        errors[fades] = pd.concat(parts)
    return Choice(shares, errors)


def prior_of(
    choice: Choice, spreads: tuple[float, float], without: str | None, cells: int
) -> Prior:
    """Return what is known before any run, by all sources or all but one."""
    scales = {}
    for name, spread_before in zip(SCALES, spreads, strict=True):
        fades, shares = choice.best(name, without)
        rounded = np.round(shares, 2)
        rounded[-1] = round(1 - float(rounded[:-1].sum()), 2)
        numbers_by_name = dict(zip((*WIDE_TO_NARROW, "noise"), rounded.tolist(), strict=True))
        scales[name] = ScalePrior(
            spread=round(spread_before, 2),
            fades=fades.other,
            prompt_fades=fades.prompt,
            shares=Shares.model_validate(numbers_by_name),
        )
    return Prior(
        schema_version=2,
        source=f"least errors over {cells} cells of published runs; scripts/accuracy_own_runs.py",
        cap=CAP,
        **scales,
    )


# What it is worth


@dataclass(frozen=True)
class Predicted:
    """Estimates of runs in a figure's unit, with bands.

    ``alike``: 1 where own runs are of its deployment.
    """

    values: Float
    low: Float
    high: Float
    alike: Float


def predicted(runs: Sequence[OwnRun], corrections: Corrections, figure: str) -> Predicted:
    """The library's estimates, as if the version that ran were the one that estimates assume."""
    quantity, unit = QUANTITY[figure]
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for k, run in enumerate(runs):
        groups[id(run.setting), run.version].append(k)
    values, remaining, alike = (np.empty(len(runs)) for _ in range(3))
    low, high = np.empty(len(runs)), np.empty(len(runs))
    for (_, version), members in groups.items():
        setting = runs[members[0]].setting
        engine = setting.engine.model_copy(update={"version": version, "as_of": None})
        setting = replace(setting, engine=engine)
        setting = replace(setting, correction=corrections.of(setting))
        estimates = estimate_serving(setting, stack_columns([runs[k].case for k in members]))
        values[members] = getattr(estimates.serving, quantity) * unit
        remaining[members], alike[members] = 1.0, 0.0
        if estimates.corrected is not None:
            remaining[members] = estimates.corrected.width_shares[quantity]
            alike[members] = estimates.corrected.scales.runs[:, EITHER, 0] > 0
        band = bands_of(setting)[quantity].factors[BAND]
        for k in members:
            own_band = narrow_interval(band, float(remaining[k]))
            low[k], high[k] = values[k] * own_band[0], values[k] * own_band[1]
    return Predicted(values, low, high, alike)


def tested(all_cells: Sequence[Told], priors: dict[str, Prior]) -> pd.DataFrame:
    """Median errors of the rest of each cell by runs given, and the share inside bands.

    ``alike`` and ``before``: of those that share a deployment with a run given, with and without.
    """
    rng, rows = np.random.default_rng(SEED), []
    for cell_runs in all_cells:
        prior = priors[cell_runs.cell[0]]
        for figure in FIGURES:
            measured = cell_runs.measured[figure]
            if not len(cell_runs.rows(figure)):
                continue
            plain = predicted(cell_runs.runs, Corrections(prior, ()), figure)
            errors = np.abs(plain.values / measured - 1)
            for count in GIVEN:
                for drawn, rest in draws(cell_runs, figure, count, rng):
                    taught = Corrections(prior, tuple(cell_runs.runs[i] for i in drawn))
                    corrected = predicted([cell_runs.runs[i] for i in rest], taught, figure)
                    truth = measured[rest]
                    error = np.abs(corrected.values / truth - 1)
                    same = corrected.alike > 0
                    rows.append(
                        {
                            "figure": figure,
                            "cell": "/".join(cell_runs.cell),
                            "given": count,
                            "error": np.median(error),
                            "inside": ((truth >= corrected.low) & (truth <= corrected.high)).mean(),
                            "alike": np.median(error[same]) if same.any() else np.nan,
                            "before": np.median(errors[rest][same]) if same.any() else np.nan,
                        }
                    )
    return pd.DataFrame(rows).groupby(["figure", "cell", "given"], as_index=False).mean()


def own_runs_section(truth: Path) -> str:
    """The section of docs/reference/accuracy.md."""
    return own_runs_report(*measure(truth))


@cache
def measure(truth: Path) -> tuple[pd.DataFrame, Prior]:
    """Errors by runs given, and what is known before by all sources."""
    all_cells = cells(truth)
    spreads, choice = spread(all_cells), choose(all_cells, own_runs.shipped_prior())
    sources = sorted({cell_runs.cell[0] for cell_runs in all_cells})
    priors = {source: prior_of(choice, spreads, source, len(all_cells)) for source in sources}
    return tested(all_cells, priors), prior_of(choice, spreads, None, len(all_cells))


def own_runs_report(table: pd.DataFrame, prior: Prior) -> str:
    """The table in Markdown, and what is known before."""
    lines = [
        "| figure | cells | own runs | error, mean of cells | median of cells | in band "
        "| same deployment, without → with |",
        "|---|---|---|---|---|---|---|",
    ]
    for figure, title in FIGURES.items():
        rows = table[table.figure == figure]
        for limit in (1, GIVEN[-1]):
            full = set(rows.cell[rows.given == limit])
            for count in (n for n in GIVEN if n <= limit):
                part = rows[(rows.given == count) & rows.cell.isin(full)]
                alike = part.dropna(subset="alike")
                shown = (
                    f"{100 * alike.before.mean():.1f} % → {100 * alike.alike.mean():.1f} %"
                    if len(alike)
                    else ""
                )
                lines.append(
                    f"| {title} | {len(full)} of over {limit} | {count} | "
                    f"{100 * part.error.mean():.1f} % | {100 * part.error.median():.1f} % | "
                    f"{100 * part.inside.mean():.0f} % | {shown} |"
                )
    shares = "\n".join(f"* {name}: {_scale_words(getattr(prior, name))}" for name in SCALES)
    table_text = "\n".join(lines)
    return f"""Of the runs of a cell (without those that the data exclude) some are drawn at random,
{DRAWS} times, and given as own runs (`--measured`, [own runs](../method/own-runs.md)); the others
are estimated. Errors are the cell's medians; the last column is of those tested runs whose very
deployment (engine version and layout) is among the given ones. What is known before any run is
chosen on the other sources. Written by `python scripts/accuracy_own_runs.py TRUTH_DIR`.

{table_text}

Shares of variance by scope, all sources, and what alike loads share less with each doubling:

{shares}"""


def _scale_words(scale: ScalePrior) -> str:
    shares = ", ".join(f"{name} {share:.2f}" for name, share in scale.shares.model_dump().items())
    fades = {"load or answer": scale.fades, "prompt": scale.prompt_fades}
    less = ", ".join(f"{100 * (1 - np.exp(-fade)):.0f} % of {name}" for name, fade in fades.items())
    return f"{shares}; {less}"


def main() -> None:
    truth = Path(sys.argv[1])
    table, prior = measure(truth)
    print(own_runs_report(table, prior))
    if "--write" in sys.argv:
        path = Path(own_runs.__file__).with_suffix(".yaml")
        path.write_text(to_yaml(prior.model_dump()))
        print(f"\n{path.name} written")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--write"]):
        sys.exit(str(__doc__))
    main()
