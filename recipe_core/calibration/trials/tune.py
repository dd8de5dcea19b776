"""`recipe tune`: search the settings around a recommended point on the real machine.

A trial writes the bundle of a point, starts it, measures it with its own `bench` and stops it.
Points that the estimate refuses are never started. At the end the best point and the recommended
one are measured again in alternation; only a gain that this proves becomes a recipe.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.base.documents import to_json, write_whole
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.bundle.verify import unpack_bundle
from recipe_core.bundle.write import write_bundle
from recipe_core.calibration.trials.deployment import Deployment, TrialError
from recipe_core.calibration.trials.search_problem import (
    MOST_REPEATS,
    SPLIT,
    Aim,
    Gain,
    Knob,
    Point,
    alternating_order,
    gain_of,
    median_measurement,
    point_text,
    recipe_at,
    recommended_point,
    search_aim,
    trial_figures,
    tunable_knobs,
    values_at,
)
from recipe_core.calibration.trials.study import SEED, Search, measured_score
from recipe_core.calibration.trials.workplace import (
    Experiment,
    Machine,
    experiment,
    serving_recipe,
)
from recipe_core.payload.launcher.bench import Options, plan_traffic
from recipe_core.payload.launcher.measurement import FIGURES
from recipe_core.payload.launcher.plan import load_plan
from recipe_core.recipe import Recipe, recipe_request, with_claims

if TYPE_CHECKING:
    from optuna.trial import Trial

TRIALS, MINUTES, REPEATS, PATIENCE, SPLITS = 20, 60.0, 3, 8, 3
# A warm-up sends one of so many requests of a measurement; after so many seconds none is sent.
WARM_UP_SHARE, BENCH_S = 4, 120.0
# Points that the estimate may refuse before a search ends.
REFUSED_MOST = 200
# Characters of a reason that the journal keeps.
LONGEST_REASON = 500
REPORT = "report.json"


@dataclass(frozen=True, slots=True)
class Budget:
    """The length of a search: trials that start a server, minutes in all, trials without gain.

    ``repeats``: pairs of measurements at the end; ``splits``: of the plan that are tried;
    ``bench_s``: seconds after which a measurement sends no new request.
    """

    trials: int = TRIALS
    minutes: float = MINUTES
    repeats: int = REPEATS
    patience: int = PATIENCE
    splits: int = SPLITS
    bench_s: float = BENCH_S
    timeout_s: float | None = None

    def check(self) -> None:
        """Refuse what cannot be done.

        Raises:
            InputError: naming the field.
        """
        if not 2 <= self.repeats <= MOST_REPEATS:
            raise InputError(
                f"{self.repeats} is not between 2 and {MOST_REPEATS}.",
                field="repeats",
                hint="Two pairs are the least that have a spread.",
            )


@dataclass(slots=True)
class Tuned:
    """The outcome: what was tried, the best point, its gain, and the new recipe where it is proven.

    ``ended``: why the search ended. ``measurement``: of the best point, as its bundle wrote it.
    """

    base: Recipe
    aim: Aim
    space: tuple[Knob, ...]
    trials: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    gain: Gain | None = None
    keeps_limits: bool = True
    ended: str = ""
    recipe: Recipe | None = None
    measurement: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "recipe": self.base.name,
            "recipe_digest": self.base.digest,
            "objective": dict(self.aim.goals),
            "limits": dict(self.aim.limits),
            "not_checked": dict(self.aim.unchecked),
            "space": {
                knob.name: {"values": list(knob.values), "recommended": knob.values[knob.base]}
                for knob in self.space
            },
            "trials": self.trials,
            "ended": self.ended,
            "best": self.best,
            "gain": self.gain.to_json() if self.gain else None,
            "keeps_limits": self.keeps_limits,
            "better": self.recipe is not None,
            "tuned_digest": self.recipe.digest if self.recipe else None,
            "notes": self.notes,
        }


@dataclass(slots=True)
class _Tuning:
    """A search under way: how points are measured, and the outcome so far."""

    outcome: Tuned
    search: Search
    experiment: Experiment
    budget: Budget

    def measure(
        self, name: str, recipe: Recipe, trial: Trial | None = None
    ) -> dict[str, Any] | str:
        """A whole measurement of a recipe; for a ``trial`` that its warm-up gives up, why.

        Raises:
            InputError: where a warm-up lacks a figure.
            TrialError: where it does not start, or requests fail.
        """
        budget, model = self.budget, self.experiment.model
        with self.experiment.start(name, recipe, model, None) as deployment:
            if trial is not None:
                requests = _warm_up_requests(deployment)
                warm_up = deployment.bench(requests, budget.bench_s / WARM_UP_SHARE)
                score = self.outcome.aim.score(warm_up["metrics"], recipe)
                reason = self.search.give_up(trial, score)
                if reason and recipe is not self.outcome.base:
                    return reason
            measurement = deployment.bench(limit_s=budget.bench_s)
            if failed := measurement["metrics"].get("failed"):
                raise TrialError(f"{failed} requests failed; see {deployment.folder}/run.")
            return measurement

    def run(self, deadline: float) -> str:
        """Try points until the budget, the patience or the space ends; says which it was."""
        budget, search, clock = self.budget, self.search, self.experiment.machine.clock
        if not search.done:
            splits = next((knob for knob in self.outcome.space if knob.name == SPLIT), None)
            for index in range(1, len(splits.values) if splits else 0):
                search.enqueue({**recommended_point(self.outcome.space), SPLIT: index})
        durations: list[float] = []
        while len(search.started) < budget.trials:
            spent = statistics.fmean(durations) if durations else 0.0
            if durations and clock() + spent * (1 + 2 * budget.repeats) > deadline:
                return f"{budget.minutes:g} minutes"
            if len(search.started) > budget.patience and search.since_best() >= budget.patience:
                return f"{budget.patience} trials without a better one"
            if len(search.done) - len(search.started) >= REFUSED_MOST:
                return f"the estimate refused {REFUSED_MOST} points"
            suggestion = search.ask()
            if suggestion is None:
                return "every point was tried"
            began = clock()
            if self.try_point(*suggestion):
                durations.append(clock() - began)
        return f"{budget.trials} trials"

    def try_point(self, trial: Trial, point: Point) -> bool:
        """Measure a point; False where the estimate refuses it, which takes no server's time.

        Raises:
            TrialError: where the recommended point does not start.
        """
        search, aim, space = self.search, self.outcome.aim, self.outcome.space
        values = values_at(space, point)
        text = point_text(values, values_at(space, recommended_point(space)))

        def tell(step: str) -> None:
            self.experiment.machine.tell(f"trial {trial.number}: {text}: {step}")

        recipe = recipe_at(self.outcome.base, space, point)
        if isinstance(recipe, str):
            tell(f"not started: {recipe}")
            search.tell(trial, None, refused=True, excess=1.0, reason=recipe[:LONGEST_REASON])
            return False
        tell("starting")
        try:
            measurement = self.measure(f"trial-{trial.number:03d}", recipe, trial)
            if isinstance(measurement, str):
                tell(f"given up: {measurement}")
                search.tell(trial, None, reason=measurement)
                return True
            metrics = measurement["metrics"]
            score = aim.score(metrics, recipe)
        except (TrialError, InputError) as error:
            if recipe is self.outcome.base:
                raise
            tell(f"failed: {error.message}")
            search.tell(trial, None, excess=1.0, reason=error.message[:LONGEST_REASON])
            return True
        broken = aim.broken(metrics)
        search.tell(trial, score, excess=max(broken.values(), default=0.0), metrics=dict(metrics))
        late = ", ".join(name for name, excess in broken.items() if excess > 0)
        tell(f"{trial_figures(metrics)}{late and f', misses {late}'}")
        return True

    def confirm(self) -> None:
        """Measure the best point and the recommended one in alternation, and judge."""
        outcome, best = self.outcome, self.search.best()
        if best is None:
            outcome.notes.append("no point keeps the limits")
            return
        outcome.best = _trial_row(best, outcome.space)
        recipe = recipe_at(outcome.base, outcome.space, best.params)
        if recipe is outcome.base:
            outcome.notes.append("the recommended point is the best of those tried")
            return
        if isinstance(recipe, str):  # tried before, so only another version refuses it
            outcome.notes.append(recipe)
            return
        recipes = {"base": outcome.base, "best": recipe}
        measurements: dict[str, list[Any]] = {"base": [], "best": []}
        for name in alternating_order(self.budget.repeats):
            count = len(measurements[name]) + 1
            self.experiment.machine.tell(f"again, {count} of {self.budget.repeats}: {name}")
            try:
                measurements[name].append(self.measure(f"again-{name}", recipes[name]))
            except TrialError as error:
                outcome.notes.append(f"measured again, the {name} point failed: {error.message}")
                return
        scores = {
            name: [outcome.aim.score(row["metrics"], recipes[name]) for row in rows]
            for name, rows in measurements.items()
        }
        medians = {
            name: median_measurement(rows, scores[name]) for name, rows in measurements.items()
        }
        outcome.gain = gain_of(scores["base"], scores["best"])
        outcome.keeps_limits = _mostly_keeps_limits(outcome.aim, measurements["best"])
        outcome.measurement = medians["best"]
        if not outcome.keeps_limits:
            outcome.notes.append("measured again, the best point misses the limits")
        elif outcome.gain.proven or not _mostly_keeps_limits(outcome.aim, measurements["base"]):
            outcome.recipe = _claim_gain(recipe, outcome, medians["base"])
        else:
            outcome.notes.append("the gain is within the noise: the recommended point stays")

    def write_report(self) -> None:
        data = to_json(self.outcome.to_json()).encode()
        write_whole(self.experiment.place.folder / REPORT, data)


def tune(
    bundle: Path,
    budget: Budget | None = None,
    machine: Machine | None = None,
    *,
    goal: str | None = None,
    resume: bool = False,
    output: Path | None = None,
    seed: int = SEED,
) -> Tuned:
    """Search around a bundle's recommended point; ``output`` gets the better recipe's bundle.

    ``goal`` replaces the request's objective, whose limits stay. ``resume`` goes on with a search
    that was interrupted. What was tried stays in the bundle's ``run/tune/``. ``seed`` decides which
    points come next; ``machine``: where they are measured, by default this one.

    Raises:
        InputError: for a bundle of training or of several nodes, one that runs, a goal that is not
            measured, and a search to resume that is another.
        TrialError: when the recommended point itself does not start.
    """
    budget, machine = budget or Budget(), machine or Machine()
    budget.check()
    deadline = machine.clock() + budget.minutes * 60
    folder = unpack_bundle(bundle)
    _check_output(output, folder)
    base = serving_recipe(folder)
    aim, space = search_aim(recipe_request(base), goal), tunable_knobs(base, budget.splits)
    if not space:
        raise InputError(
            f"nothing of {base.engine.title} {base.engine.version} can be varied here.",
            field="bundle",
        )
    # what a search that is resumed must share
    values = {knob.name: [list(knob.values), knob.base] for knob in space}
    identity = {"recipe": base.digest, "objective": dict(aim.goals), "space": values}
    outcome = Tuned(base, aim, space)
    with experiment(folder, base, "tune", machine, budget.timeout_s) as started:
        search = Search.opened(started.place.folder, space, identity, resume=resume, seed=seed)
        tuning = _Tuning(outcome, search, started, budget)
        try:
            outcome.ended = tuning.run(deadline)
        finally:
            outcome.trials = [_trial_row(trial, space) for trial in search.done]
            tuning.write_report()
        tuning.confirm()
        tuning.write_report()
    if output is not None and outcome.recipe is not None:
        _write_tuned_bundle(outcome, output)
    return outcome


def _check_output(output: Path | None, folder: Path) -> None:
    if output is not None and output.resolve() == folder.resolve():
        raise InputError(
            "is the bundle itself, whose runs the search needs.",
            field="output",
            hint="Choose another place.",
        )


def _warm_up_requests(deployment: Deployment) -> int:
    """A share of the requests that `bench` sends, as many at least as are in flight."""
    traffic = plan_traffic(load_plan(deployment.folder).workload, Options())
    share = max(traffic.requests // WARM_UP_SHARE, 2)
    return share if traffic.mode in ("open", "offline") else max(share, traffic.in_flight)


def _mostly_keeps_limits(aim: Aim, measurements: list[dict[str, Any]]) -> bool:
    limits_kept = [max(aim.broken(m["metrics"]).values(), default=0.0) <= 0 for m in measurements]
    return sum(limits_kept) * 2 > len(limits_kept)


def _claim_gain(recipe: Recipe, outcome: Tuned, base: Mapping[str, Any]) -> Recipe:
    """The recipe with its measurement as a claim, in which the gain and what it beats stand."""
    measurement, gain = outcome.measurement, outcome.gain
    assert measurement is not None and gain is not None  # noqa: S101, PT018 - both were just made
    beaten = {
        f"recommended_{name}": base["metrics"][name]
        for name in FIGURES["serving"]
        if base["metrics"].get(name) is not None
    }
    gains = {
        "gain_ratio": gain.mean_ratio,
        "gain_low_ratio": gain.low_ratio,
        "gain_high_ratio": gain.high_ratio,
    }
    claim_measurement = {**measurement, "metrics": {**measurement["metrics"], **beaten, **gains}}
    try:
        return with_claims(recipe, [claim_measurement])
    except RecipeError as error:
        outcome.notes.append(f"the new recipe has no claim: {error.message}")
        return recipe


def _write_tuned_bundle(outcome: Tuned, output: Path) -> None:
    """Write the better recipe's bundle, with its measurement where it is a folder."""
    assert outcome.recipe is not None  # noqa: S101 - the caller looked
    write_bundle(outcome.recipe, output)
    if output.suffix != ".zip":
        run = output / "run"
        run.mkdir(exist_ok=True)
        write_whole(run / "measurement.json", to_json(dict(outcome.measurement or {})).encode())


def _trial_row(trial: Any, space: tuple[Knob, ...]) -> dict[str, Any]:
    attributes = trial.user_attrs
    score = measured_score(trial)
    state = "measured" if score is not None else "given up"
    if "refused" in attributes:
        state = "not started"
    elif score is None and attributes.get("excess"):
        state = "failed"
    return {
        "number": trial.number,
        "state": state,
        "values": values_at(space, trial.params),
        "score": score,
        "keeps_limits": attributes.get("excess", 0.0) <= 0 if score is not None else None,
        "metrics": attributes.get("metrics"),
        "reason": attributes.get("reason"),
    }
