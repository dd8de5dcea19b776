"""Fit what engines themselves cost, the ``overheads`` and ``kernels`` of
``recipe_core/engines/serving/*.yaml``, to measured serving runs.

    python scripts/fit_serving.py TRUTH_DIR [--write] [--leave-out]

Nine numbers an engine and runtime (see ``Overheads``), and the time of an engine's kernels on a
generation of devices over that of the devices' own rooflines (see ``KernelTimes``), all at once:
the weighted mean of ``log(1 + (ln(estimated / measured) / scale)²)`` is least, with a faint pull of
the overheads to ``PRIOR`` for what the runs do not tell, and one of the kernels to 1 that lets one
move by as much as kernels differ (ridge regression: the posterior mode of a normal prior). Each
source × device × model cell counts once per figure, and runs that are off by much more than the
last scale pull little: those are mostly set-ups that the data do not state (prefix caches, engines
without graphs).

``--leave-out`` fits again without each source, without each fold of models and without each version
of an engine, and writes what the fits say of the runs left out to
``docs/reference/accuracy/leave_one_out.json``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from publish_runs import as_runs
from publish_runs import published_serving_runs as published
from scipy.optimize import least_squares

from recipe_core.base.documents import write_whole
from recipe_core.base.errors import RecipeError
from recipe_core.calibration.validation.comparison import CELL, QUANTITIES
from recipe_core.calibration.validation.validate import SCORED, primary_score
from recipe_core.engines.spec import Engine, KernelTimes
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.measured.runs import Run, listing_ids
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.rates import solve_serving
from recipe_core.hardware.profile import Device
from recipe_core.models.spec import CompressedAttention, LatentAttention, LinearAttention, MoeMlp
from recipe_core.plans.plans import shared_key
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.serving_candidates import stated_serving_case
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest

Array = NDArray[np.float64]
Int = NDArray[np.int64]

ROOT = Path(__file__).parent.parent
ENGINES = ROOT / "recipe_core" / "engines" / "serving"
LEFT_OUT = ROOT / "docs" / "reference" / "accuracy" / "leave_one_out.json"
# Orders of magnitude.
PRIOR = {
    "step_s": 0.6e-3,
    "sequence_s": 4e-6,
    "layer_s": 10e-6,
    "launch_s": 70e-6,
    "expert_row_s": 10e-9,
    "request_s": 10e-3,
    "input_token_s": 2e-6,
}
SCALES, STEP = (0.3, 0.15), 0.05  # first forgiving, so that a fit does not settle where it starts
ROUNDS, ROUNDS_LEFT_OUT = 16, 4
# What a squared step of a logarithm costs, in squared errors of all runs. The second is the ratio
# of the variances of a cell's error (0.12²) and of a kernel's time (0.3²), over 250 cells.
PULL, KERNEL_PULL = 3e-5, 6e-4
WORTH_KEEPING = 0.02  # a kernel's time that differs by less from the profile's is the profile's
LEAST_MODELS = 2  # that tell a kernel's time: one model's might be the model's own
# What a figure counts: throughput under load says the same as the time per token, and the time to
# the first token is the noisiest.
WEIGHT = {
    "tpot_ms": 1.0,
    "ttft_ms": 0.6,
    "request_latency_ms": 0.5,
    "output_tokens_per_s": 0.7,
    "total_tokens_per_s": 0.0,
}
# What a run over a data set (MLPerf) counts: submitters tune kernels and limits, and reach 0.15 to
# 0.25 more (as a logarithm) than runs of the same engine, devices and format by its documentation.
TUNED = 0.25
# Load of an open loop beyond which it is not fitted to: its queue makes much of small errors.
ROOM = 0.5
FOLDS = 8
FITS = "source: fits, status: fitted"  # of a file's numbers those that are written here


@dataclass(frozen=True)
class Parameter:
    """A number of an engine: an overhead on a runtime, or a kernel's time on an architecture."""

    engine: str
    scope: str
    name: str
    dtype: str = ""

    @property
    def start(self) -> float:
        """The prior, on the scale that is searched."""
        return 0.0 if self.dtype else float(np.log(PRIOR[self.name]))

    @property
    def pull(self) -> float:
        return KERNEL_PULL if self.dtype and self.name != "request" else PULL

    def shipped(self, engine: Engine) -> float:
        """Return what the engine's file has, on the scale that is searched."""
        if self.dtype:
            return float(np.log(engine.kernel_time(self.scope, self.name, self.dtype)))
        return float(np.log(getattr(engine.overheads[self.scope], self.name)))

    def value(self, x: float) -> float:
        return float(np.exp(x))


@dataclass(frozen=True)
class Block:
    """Runs that are columns of one estimate, and their places among all runs."""

    setting: Setting
    cases: Cases
    memory: Memory
    places: NDArray[np.int64]

    @property
    def parameters(self) -> list[Parameter]:
        """The numbers that its estimates depend on."""
        engine, device = self.setting.engine.name, self.setting.cluster.device
        overheads = [Parameter(engine, device.runtime, name) for name in PRIOR]
        kernels = [("host", "any"), *kernels_of(self.setting)]
        if self.setting.mode != "static":
            kernels.append(("request", "any"))
        if (self.cases.tp > 1).any():
            kernels.append(("all_reduce", "any"))
        return overheads + [Parameter(engine, device.architecture, *kernel) for kernel in kernels]


def kernels_of(setting: Setting) -> list[tuple[str, str]]:
    """The kernels that a model's steps run, each with the dtype that chooses it."""
    kernels = [
        ("gemm", setting.stored_dtype("linear")),
        ("gemm", setting.stored_dtype("attention")),
    ]
    if any(isinstance(mlp, MoeMlp) for mlp, _ in setting.model.mlps):
        dtype = setting.stored_dtype("experts")
        kernels += [("moe", dtype), ("expert_rows", dtype)]
    for attention, _ in setting.model.mixers:
        if isinstance(attention, LatentAttention | CompressedAttention):
            kernels += [("mla_prefill", "any"), ("mla_decode", "any")]
            if attention.index_heads:
                kernels.append(("indexer", "any"))
        elif not isinstance(attention, LinearAttention):
            kernels += [("attention_prefill", "any"), ("attention_decode", "any")]
    return list(dict.fromkeys(kernels))


def blocks(runs: Sequence[Run]) -> list[Block]:
    """The runs that can be estimated, grouped; those not covered or refused are left out."""
    groups = defaultdict(list)
    for place, run in enumerate(runs):
        try:
            request = PlanRequest.parse(run.request())
            problem = resolve_problem(request)
            exact = stated_serving_case(problem, request.candidate or CandidateRequest())
        except RecipeError:
            continue
        if exact is not None:
            groups[shared_key(problem, exact[0])].append((place, problem, *exact))
    out = []
    for members in groups.values():
        setting = members[0][2]
        judgement = estimate_serving(setting, stack_columns([columns for *_, columns in members]))
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


def with_numbers(engine: Engine, device: Device, values: Mapping[Parameter, float]) -> Engine:
    """The engine with other overheads and kernels on a device."""
    engine_values = {p: v for p, v in values.items() if p.engine == engine.name}
    overheads = {
        p.name: v for p, v in engine_values.items() if p.scope == device.runtime and not p.dtype
    }
    times: dict[str, dict[str, float]] = defaultdict(dict)
    for p, v in engine_values.items():
        if p.dtype and p.scope == device.architecture:
            times[p.name][p.dtype] = v
    kernels = KernelTimes.model_construct(times=times, source="fits", status="fitted")
    overhead = engine.overhead(device.runtime).model_copy(update=overheads)
    return engine.model_copy(
        update={
            "overheads": {device.runtime: overhead},
            "kernels": {device.architecture: kernels},
        }
    )


class Problem:
    """The runs as residuals of the overheads."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.blocks = blocks(runs)
        self.parameters = self._told()
        self.start = np.array([parameter.start for parameter in self.parameters])
        self.pulls = np.array([parameter.pull for parameter in self.parameters])
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
        self.rows["exclude"] = [run.exclude for run in self.rows.run]
        self.rows["scenario"] = [run.scenario for run in self.rows.run]
        self.rows["total"] = np.where(self.rows.figure == "total_tokens_per_s", both, 1.0)
        self.quantities = list(dict.fromkeys(quantity for quantity, _ in QUANTITIES.values()))
        self.at = (
            self.rows.quantity.map(self.quantities.index).to_numpy(),
            self.rows.place.to_numpy(),
        )
        self.runs = len(runs)
        excluded = self.rows.run.map(lambda run: run.exclude).ne("")
        unscored = excluded | self.rows.source.isin(listing_ids())
        unscored |= self._load_factors()[self.rows.place] > ROOM
        in_cell = self.rows[~unscored].groupby([*CELL, "mode", "figure"]).place.transform("size")
        self.weights = np.where(
            unscored, 0.0, (self.rows.figure.map(WEIGHT) / in_cell).to_numpy(dtype=float)
        ) * np.where(self.rows.scenario.ne(""), TUNED, 1.0)

    def _load_factors(self) -> Array:
        """Arrivals over what a full server is estimated to serve, by run; 0 without arrivals."""
        out = np.zeros(self.runs)
        for block in self.blocks:
            if block.setting.mode == "open":
                served = solve_serving(block.setting, block.cases, block.memory)
                out[block.places] = served.load_factor
        return out

    def _told(self) -> list[Parameter]:
        """The numbers to fit: of kernels those that runs of several models tell something of."""
        models = defaultdict(set)
        for block in self.blocks:
            for parameter in block.parameters:
                models[parameter].add(block.setting.model.name)
        return [
            parameter
            for parameter, models_seen in models.items()
            if not parameter.dtype or len(models_seen) >= LEAST_MODELS
        ]

    def quantities_of(
        self, x: Array, only: Parameter | None = None, base: Array | None = None
    ) -> Array:
        """Estimated quantities × runs; ``base`` has those that ``only`` does not change."""
        out = np.full((len(self.quantities), self.runs), np.nan) if base is None else base.copy()
        values = {p: p.value(x[i]) for i, p in enumerate(self.parameters)}
        for block in self.blocks:
            if only is not None and only not in block.parameters:
                continue
            setting = block.setting
            engine = with_numbers(setting.engine, setting.cluster.device, values)
            served = solve_serving(replace(setting, engine=engine), block.cases, block.memory)
            out[:, block.places] = [getattr(served, name) for name in self.quantities]
        return out

    def shipped(self) -> Array:
        """The numbers that the engines' files have, on the scale that is searched."""
        engines = {block.setting.engine.name: block.setting.engine for block in self.blocks}
        return np.array(
            [parameter.shipped(engines[parameter.engine]) for parameter in self.parameters]
        )

    def estimated(self, quantities: Array) -> Array:
        """Per row, in the row's unit."""
        return np.asarray(quantities[self.at] * self.rows.unit * self.rows.total, dtype=float)

    def solve(self, rows: NDArray[np.bool_], start: Array | None = None) -> Array:
        """The numbers that fit the chosen rows best.

        From a ``start`` that fits all rows a few rounds at the last scale, and only for the engines
        that have rows left out: the numbers of one engine say nothing of another's.
        """
        free = np.arange(len(self.start))
        if start is None:
            x = self.start
            for scale in SCALES:
                x = self._solve(rows, x, free, scale, ROUNDS)
            return x
        changed = {run.engine for run in self.rows.run[~rows]}
        of_changed = [parameter.engine in changed for parameter in self.parameters]
        return self._solve(rows, start, free[of_changed], SCALES[-1], ROUNDS_LEFT_OUT)

    def _solve(
        self, rows: NDArray[np.bool_], start: Array, free: Int, scale: float, rounds: int
    ) -> Array:
        measured = self.rows.measured.to_numpy(dtype=float)
        weights = np.where(rows, self.weights, 0.0)
        weights, pulls, size = weights / weights.sum(), self.pulls[free], len(free)

        def whole(x: Array) -> Array:
            out = start.copy()
            out[free] = x
            return out

        def residuals(x: Array) -> Array:
            estimated = self.estimated(self.quantities_of(whole(x)))
            return np.append(estimated / measured - 1, x - self.start[free])

        def slopes(x: Array) -> Array:
            base = self.quantities_of(whole(x))
            zero = self.estimated(base)
            out = np.zeros((len(zero) + size, size))
            for i, place in enumerate(free):
                moved = whole(x)
                moved[place] += STEP
                quantities = self.quantities_of(moved, self.parameters[place], base)
                out[: len(zero), i] = (self.estimated(quantities) - zero) / measured / STEP
                out[len(zero) + i, i] = 1.0
            return out

        def loss(z: Array) -> Array:
            scaled = 1 + z[:-size] / scale**2
            robust = [
                weights * scale**2 * np.log(scaled),
                weights / scaled,
                -weights / scale**2 / scaled**2,
            ]
            plain = [pulls * z[-size:], pulls, np.zeros(size)]
            return np.hstack([robust, plain])

        solution = least_squares(
            residuals, start[free], jac=slopes, loss=loss, x_scale="jac", max_nfev=rounds
        )
        print(f"loss {2 * solution.cost:.3%} with a scale of {scale}", flush=True)
        return whole(solution.x)

    def errors(self, x: Array, rows: NDArray[np.bool_]) -> pd.DataFrame:
        """Rows with their relative errors at ``x``."""
        estimated = self.estimated(self.quantities_of(x))
        return self.rows.assign(
            estimated=estimated, error=np.abs(estimated / self.rows.measured - 1)
        )[rows]


def cell_errors(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Per mode and figure the median and p90 over cells of the cell's median error, scored runs."""
    table = primary_score(rows)
    scored = table[table.runs.eq(SCORED)]
    return {
        f"{row.mode} {row.figure}": {
            "median": round(float(row.cell_median), 3),
            "p90": round(float(row.cell_p90), 3),
        }
        for row in scored.itertuples()
    }


def serving_errors_left_out(problem: Problem, x: Array, groups: pd.Series[str]) -> pd.DataFrame:
    """The rows of each group with errors by a fit to all others, together."""
    parts = []
    for group in sorted(groups.unique()):
        out = (groups == group).to_numpy()
        parts.append(problem.errors(problem.solve(~out, x), out))
        print(
            f"without {group}: {len(parts[-1])} figures, "
            f"median error {parts[-1].error.median():.1%}",
            flush=True,
        )
    return pd.concat(parts)


def folds(labels: pd.Series[str], label_name: str) -> pd.Series[str]:
    """Labels dealt out over ``FOLDS`` folds."""
    order = {label: i % FOLDS + 1 for i, label in enumerate(sorted(labels.unique()))}
    return labels.map(lambda label: f"fold {order[label]} of {FOLDS} of the {label_name}")


def changed_numbers(values: Mapping[Parameter, float]) -> dict[Parameter, float]:
    """The numbers worth keeping: kernels whose time differs from the profile's."""
    return {p: v for p, v in values.items() if not p.dtype or abs(np.log(v)) >= WORTH_KEEPING}


def write_engine_numbers(
    name: str, values: Mapping[Parameter, float], runs: Mapping[str, int]
) -> None:
    """Put an engine's numbers into its file; ``runs`` by runtime and architecture."""
    path = ENGINES / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    scopes: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for p, v in values.items():
        scopes[p.scope][p.name][p.dtype] = v
    blocks = []
    for scope, numbers in sorted(scopes.items()):
        end = f'{FITS}, note: "{runs[scope]} runs"}}'
        if "step_s" in numbers:
            words = ", ".join(f"{n}: {v['']:.3g}" for n, v in numbers.items())
            line = f"  {scope}: {{{words}, {end}"
            text = re.sub(rf"^  {scope}: \{{step_s.*$", line, text, flags=re.MULTILINE)
        else:
            kernels = [
                f"{n}: {{{', '.join(f'{dtype}: {v:.3g}' for dtype, v in by_dtype.items())}}}"
                for n, by_dtype in sorted(numbers.items())
            ]
            blocks.append(f"  {scope}: {{times: {{{', '.join(kernels)}}}, {end}\n")
    written = re.search(r"^kernels:\n((?:  .*\n)*)", text, flags=re.MULTILINE)
    by_hand = [line for line in (written[1].splitlines() if written else []) if FITS not in line]
    blocks = [*(f"{line}\n" for line in by_hand), *blocks]
    text = re.sub(r"^kernels:\n(?:  .*\n)*", "", text, flags=re.MULTILINE)
    text = text.replace(
        "online_weight_dtypes:", f"kernels:\n{''.join(blocks)}online_weight_dtypes:"
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
        help="fit again without each source, each fold of models and each fold of versions",
    )
    arguments = parser.parse_args()
    problem = Problem(as_runs(published(arguments.truth)))
    all_rows = np.ones(len(problem.rows), dtype=bool)
    x = problem.solve(all_rows)
    values = changed_numbers({p: p.value(x[i]) for i, p in enumerate(problem.parameters)})
    for p, v in values.items():
        print(f"{p.engine} {p.scope} {p.name} {p.dtype} {v:.3g}")
    print(json.dumps(cell_errors(problem.errors(x, all_rows)), indent=1))
    if arguments.write:
        for engine in sorted({p.engine for p in values}):
            runs: dict[str, int] = defaultdict(int)
            for block in problem.blocks:
                device = block.setting.cluster.device
                if block.setting.engine.name == engine:
                    runs[device.runtime] += len(block.places)
                    runs[device.architecture] += len(block.places)
            write_engine_numbers(
                engine, {p: v for p, v in values.items() if p.engine == engine}, runs
            )
    if arguments.leave_out:
        rows = problem.rows
        versions = rows.run.map(lambda run: run.version)
        scores = {
            "plain": cell_errors(problem.errors(x, all_rows)),
            "leave_one_source_out": cell_errors(serving_errors_left_out(problem, x, rows.source)),
            "leave_one_model_out": cell_errors(
                serving_errors_left_out(problem, x, folds(rows.model, "models"))
            ),
            "leave_one_version_out": cell_errors(
                serving_errors_left_out(problem, x, folds(versions, "versions"))
            ),
        }
        write_whole(LEFT_OUT, (json.dumps(scores, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
