"""Fit what engines themselves cost, the ``overheads`` of ``recipe_core/engines/serving/*.yaml``, to
measured serving runs.

    python scripts/fit_serving.py TRUTH_DIR [--write] [--leave-out]

Seven numbers an engine and runtime (see ``Overheads``), all at once, on top of the operators'
rooflines: the weighted mean of ``log(1 + (ln(estimated / measured) / scale)²)`` is least, with a
faint pull to ``PRIOR`` for what the runs do not tell. Each source × device × model cell counts once
per figure (excluded runs and example listings not at all), and runs that are off by much more than
the last scale pull little: those are mostly set-ups that the data do not state (prefix caches,
engines without graphs).

``--leave-out`` fits again without each source, and without each fold of models, and writes what the
fits say of the runs left out to ``docs/leave_one_out.json``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from publish_runs import as_runs
from publish_runs import runs as published
from scipy.optimize import least_squares

from recipe_core.base.documents import write_whole
from recipe_core.base.errors import RecipeError
from recipe_core.calibration.validate import CELL, QUANTITIES
from recipe_core.measured.serving_runs import Run, listings
from recipe_core.physics.serving.estimates import estimate
from recipe_core.physics.serving.memory import Memory
from recipe_core.physics.serving.rates import serving
from recipe_core.request.schema import CandidateRequest, PlanRequest
from recipe_core.search.plans import shared_key
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import one_case
from recipe_core.space.serving import Cases, Setting, stack

Array = NDArray[np.float64]
Key = tuple[str, str]  # engine and runtime

ROOT = Path(__file__).parent.parent
ENGINES = ROOT / "recipe_core" / "engines" / "serving"
LEFT_OUT = ROOT / "docs" / "leave_one_out.json"
NAMES = ("step_s", "sequence_s", "layer_s", "launch_s", "request_s", "input_token_s", "bunched")
# Orders of magnitude, and a closed loop that sends ten times as many requests as run at once.
PRIOR = {
    "step_s": 0.6e-3,
    "sequence_s": 4e-6,
    "layer_s": 10e-6,
    "launch_s": 700e-6,
    "request_s": 10e-3,
    "input_token_s": 2e-6,
    "bunched": 0.1,
}
SCALES, PULL, STEP = (
    (0.3, 0.15),
    3e-5,
    0.05,
)  # first forgiving, so that a fit does not settle where it starts
# What a figure counts: throughput under load says the same as the time per token, and the time to
# the first token is the noisiest.
WEIGHT = {
    "tpot_ms": 1.0,
    "ttft_ms": 0.4,
    "request_latency_ms": 0.5,
    "output_tokens_per_s": 0.7,
    "total_tokens_per_s": 0.0,
}
# InferenceX starts SGLang with --scheduler-recv-interval 10 (30 from 16 requests in flight): new
# requests wait for as many steps.
POLLED = {"inferencex_aic", "inferencex_together"}
FOLDS = 8


@dataclass(frozen=True)
class Block:
    """Runs that are columns of one estimate, and their places among all runs."""

    setting: Setting
    cases: Cases
    memory: Memory
    places: NDArray[np.int64]

    @property
    def key(self) -> Key:
        return self.setting.engine.name, self.setting.cluster.device.runtime


def blocks(runs: Sequence[Run]) -> list[Block]:
    """The runs that can be estimated, grouped; those not covered or refused are left out."""
    groups = defaultdict(list)
    for place, run in enumerate(runs):
        try:
            request = PlanRequest.parse(run.request())
            problem = resolve(request)
            exact = one_case(problem, request.candidate or CandidateRequest())
        except RecipeError:
            continue
        if exact is not None:
            groups[shared_key(problem, exact[0])].append((place, problem, *exact))
    out = []
    for members in groups.values():
        setting = members[0][2]
        judgement = estimate(setting, stack([columns for *_, columns in members]))
        rows = np.flatnonzero(judgement.feasible)
        if len(rows):
            memory = Memory(
                **{
                    name: getattr(judgement.memory, name)[rows]
                    for name in Memory.__dataclass_fields__
                }
            )
            out.append(
                Block(
                    setting,
                    judgement.cases.take(rows),
                    memory,
                    np.array([members[i][0] for i in rows]),
                )
            )
    return out


class Problem:
    """The runs as residuals of the overheads."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.blocks = blocks(runs)
        self.keys = sorted({block.key for block in self.blocks})
        self.parameters = [(key, name) for key in self.keys for name in NAMES]
        self.start = np.array([_inner(name, PRIOR[name]) for _, name in self.parameters])
        estimated = {place for block in self.blocks for place in block.places}
        rows = [
            (
                place,
                run.source,
                run.device,
                run.model,
                run.mode,
                figure,
                *QUANTITIES[figure],
                getattr(run, figure),
                run,
            )
            for place, run in enumerate(runs)
            if place in estimated
            for figure in QUANTITIES
            if getattr(run, figure) is not None
        ]
        self.rows = pd.DataFrame(
            rows, columns=["place", *CELL, "mode", "figure", "quantity", "unit", "measured", "run"]
        )
        both = [1 + run.input_tokens / run.output_tokens for run in self.rows.run]
        self.rows["total"] = np.where(self.rows.figure == "total_tokens_per_s", both, 1.0)
        self.quantities = list(dict.fromkeys(quantity for quantity, _ in QUANTITIES.values()))
        self.at = (
            self.rows.quantity.map(self.quantities.index).to_numpy(),
            self.rows.place.to_numpy(),
        )
        self.runs = len(runs)
        excluded = self.rows.run.map(lambda run: run.exclude).ne("")
        unscored = excluded | self.rows.source.isin(listings())
        in_cell = self.rows[~unscored].groupby([*CELL, "mode", "figure"]).place.transform("size")
        polled = (
            self.rows.source.isin(POLLED)
            & (self.rows.figure == "ttft_ms")
            & self.rows.run.map(lambda run: run.engine == "sglang")
        )
        self.weights = np.where(
            polled | unscored, 0.0, (self.rows.figure.map(WEIGHT) / in_cell).to_numpy(dtype=float)
        )

    def quantities_of(self, x: Array, only: Key | None = None, base: Array | None = None) -> Array:
        """Estimated quantities × runs; ``base`` has those of unchanged engines."""
        out = np.full((len(self.quantities), self.runs), np.nan) if base is None else base.copy()
        values = {
            key: {
                name: _outer(name, x[i]) for i, (k, name) in enumerate(self.parameters) if k == key
            }
            for key in self.keys
        }
        for block in self.blocks:
            if only not in (None, block.key):
                continue
            engine, runtime = block.setting.engine, block.key[1]
            overhead = engine.overhead(block.setting.cluster.device.runtime).model_copy(
                update=values[block.key]
            )
            setting = replace(
                block.setting, engine=engine.model_copy(update={"overheads": {runtime: overhead}})
            )
            served = serving(setting, block.cases, block.memory)
            out[:, block.places] = [getattr(served, name) for name in self.quantities]
        return out

    def estimated(self, quantities: Array) -> Array:
        """Per row, in the row's unit."""
        return np.asarray(quantities[self.at] * self.rows.unit * self.rows.total, dtype=float)

    def solve(self, rows: NDArray[np.bool_], start: Array | None = None) -> Array:
        """The numbers that fit the chosen rows best; from a ``start`` that is nearly right, a few
        rounds at the last scale.
        """
        if start is not None:
            return self._solve(rows, start, SCALES[-1], 5)
        x = self.start
        for scale in SCALES:
            x = self._solve(rows, x, scale, 8)
        return x

    def _solve(self, rows: NDArray[np.bool_], start: Array, scale: float, rounds: int) -> Array:
        measured, weights = (
            np.log(self.rows.measured.to_numpy(dtype=float)),
            np.where(rows, self.weights, 0.0),
        )
        weights, free = weights / weights.sum(), len(self.start)

        def residuals(x: Array) -> Array:
            return np.append(
                np.log(self.estimated(self.quantities_of(x))) - measured, x - self.start
            )

        def slopes(x: Array) -> Array:
            base = self.quantities_of(x)
            zero = np.log(self.estimated(base))
            out = np.zeros((len(zero) + len(x), len(x)))
            for i, (key, _) in enumerate(self.parameters):
                moved = x + STEP * np.eye(len(x))[i]
                out[: len(zero), i] = (
                    np.log(self.estimated(self.quantities_of(moved, key, base))) - zero
                ) / STEP
                out[len(zero) + i, i] = 1.0
            return out

        def loss(z: Array) -> Array:
            scaled = 1 + z[:-free] / scale**2
            robust = [
                weights * scale**2 * np.log(scaled),
                weights / scaled,
                -weights / scale**2 / scaled**2,
            ]
            plain = [PULL * z[-free:], np.full(free, PULL), np.zeros(free)]
            return np.hstack([robust, plain])

        solution = least_squares(
            residuals, start, jac=slopes, loss=loss, x_scale="jac", max_nfev=rounds
        )
        return np.asarray(solution.x)

    def errors(self, x: Array, rows: NDArray[np.bool_]) -> pd.DataFrame:
        """Rows with their relative errors at ``x``."""
        estimated = self.estimated(self.quantities_of(x))
        return self.rows.assign(
            estimated=estimated, error=np.abs(estimated / self.rows.measured - 1)
        )[rows]


def _inner(name: str, value: float) -> float:
    """To a scale without bounds: the logarithm, for a share the logit."""
    return float(np.log(value / (1 - value)) if name == "bunched" else np.log(value))


def _outer(name: str, x: float) -> float:
    return float(1 / (1 + np.exp(-x)) if name == "bunched" else np.exp(x))


def cell_means(rows: pd.DataFrame) -> dict[str, float]:
    """Per mode and figure the mean over cells of the cell's median error."""
    cells = (
        rows.groupby(["mode", "figure", *CELL]).error.median().groupby(["mode", "figure"]).mean()
    )
    return {f"{mode} {figure}": round(float(error), 3) for (mode, figure), error in cells.items()}


def left_out(problem: Problem, x: Array, groups: pd.Series[str]) -> dict[str, float]:
    """Errors of each group's rows by a fit to all others, together."""
    parts = []
    for group in sorted(groups.unique()):
        out = (groups == group).to_numpy()
        parts.append(problem.errors(problem.solve(~out, x), out))
        print(
            f"without {group}: {len(parts[-1])} figures, "
            f"median error {parts[-1].error.median():.1%}",
            flush=True,
        )
    return cell_means(pd.concat(parts))


def write(key: Key, values: dict[str, float], runs: int) -> None:
    """Put the numbers into the engine's file."""
    name, runtime = key
    path = ENGINES / f"{name}.yaml"
    numbers = ", ".join(f"{n}: {v:.3g}" for n, v in values.items())
    line = f'  {runtime}: {{{numbers}, source: fits, status: fitted, note: "{runs} runs"}}'
    text = re.sub(
        rf"^  {runtime}: \{{step_s.*$", line, path.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    if "\n  fits:\n" not in text:
        source = (
            "  fits:\n    title: least error on published serving runs\n"
            "    command: python scripts/fit_serving.py TRUTH_DIR --write\n"
        )
        text = text.replace("\nsources:\n", f"\nsources:\n{source}", 1)
    write_whole(path, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("truth", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="put the numbers into recipe_core/engines/serving/"
    )
    parser.add_argument(
        "--leave-out",
        action="store_true",
        help="fit again without each source and each fold of models",
    )
    arguments = parser.parse_args()
    runs = as_runs(published(arguments.truth))
    problem = Problem(runs)
    all_rows = np.ones(len(problem.rows), dtype=bool)
    x = problem.solve(all_rows)
    values = {
        key: {
            name: _outer(name, x[i]) for i, (k, name) in enumerate(problem.parameters) if k == key
        }
        for key in problem.keys
    }
    print(
        pd.DataFrame({"/".join(key): row for key, row in values.items()})
        .T.map(lambda v: f"{v:.3g}")
        .to_string()
    )
    print(json.dumps(cell_means(problem.errors(x, all_rows)), indent=1))
    if arguments.write:
        for key, row in values.items():
            write(key, row, sum(len(block.places) for block in problem.blocks if block.key == key))
    if arguments.leave_out:
        models = sorted(problem.rows.model.unique())
        fold = {
            model: f"fold {i % FOLDS + 1} of {FOLDS} of the models"
            for i, model in enumerate(models)
        }
        means = {
            "plain": cell_means(problem.errors(x, all_rows)),
            "leave_one_source_out": left_out(problem, x, problem.rows.source),
            "leave_one_model_out": left_out(problem, x, problem.rows.model.map(fold)),
        }
        write_whole(LEFT_OUT, (json.dumps(means, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
