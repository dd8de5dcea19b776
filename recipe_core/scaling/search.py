"""The cheapest parameters of each policy at a wanted share of requests within the limits.

A policy is an Optuna study that is asked for points twice: points spread evenly first, then points
near those that were good. All points of all policies are columns of one simulation by flows, the
same for every column (same arrivals, same starts), so that a difference between two is one of the
policies. Among those that reach the wanted share the cheapest is the best; where none does, the one
that is nearest to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import optuna
from optuna.trial import Trial, TrialState

from recipe_core.base import budget
from recipe_core.request.scaling import Policy, Scaling
from recipe_core.scaling.bounds import Simulate
from recipe_core.scaling.outcome import rank_outcome
from recipe_core.scaling.parameter_spaces import Space

# Points of a policy in each round; one that was met before is not simulated again.
ROUNDS = (32, 40)
SEED = 1
# Best points of a policy that are simulated again.
FINALISTS = 2
# And the best of those that miss so many times the requests that may be missed: a busy part of the
# time, over which is searched, misses more of them than the rest.
MARGINS = (4.0, 2.5, 1.6, 0.7, 0.4)
# What is told of a point that misses the share is beyond any cost, in seconds of devices.
FAR_S = 1e15


@dataclass(frozen=True, slots=True)
class Tried:
    """A policy that was simulated: what it reached, at what cost."""

    scaling: Scaling
    attainment: float
    rented_s: float

    def order(self, attainment: float) -> tuple[float, ...]:
        return rank_outcome(self.attainment, self.rented_s, attainment)


def search_policies(
    spaces: Sequence[Space], simulate: Simulate, attainment: float
) -> dict[Policy, list[Tried]]:
    """Return the best of each policy, the first one first; none where it is nothing of its own.

    With them come some that reach more than the wanted share, for whoever simulates them again
    under other chances.

    Args:
        spaces: of the policies.
        simulate: simulates policies, one a column.
        attainment: share of requests that must keep the limits.

    Raises:
        Cancelled, LimitError: where the request's budget ends it (``base/budget``).
    """
    studies = [_new_study(space) for space in spaces]
    tried: dict[Scaling, Tried] = {}
    for count in ROUNDS:
        trials = [
            (study, trial, space.scaling(trial.params))
            for study, space in zip(studies, spaces, strict=True)
            for trial in _ask_trials(study, space, count)
        ]
        scalings = dict.fromkeys(scaling for *_, scaling in trials if scaling is not None)
        new = [scaling for scaling in scalings if scaling not in tried]
        for column, outcome in zip(new, simulate(new) if new else (), strict=True):
            tried[column] = Tried(column, outcome.attainment, outcome.rented_s)
        for study, trial, scaling in trials:
            if scaling is None:
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, _value_of(tried[scaling], attainment))
        budget.count_step()
    return {
        space.policy: _choose_finalists(
            [trial for trial in tried.values() if trial.scaling.policy == space.policy], attainment
        )
        for space in spaces
    }


def _new_study(space: Space) -> optuna.Study:
    """Return a study that begins with points spread evenly.

    Parameters are sampled together, as the right target depends on the delays, and points that are
    still asked for repel others, so that a round holds few twice.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=SEED, n_startup_trials=ROUNDS[0], multivariate=True, constant_liar=True
        )
    study = optuna.create_study(sampler=sampler)
    for places in spread_places([len(values) for values in space.values.values()], ROUNDS[0]):
        study.enqueue_trial(dict(zip(space.values, places, strict=True)))
    return study


def _ask_trials(study: optuna.Study, space: Space, count: int) -> list[Trial]:
    return [study.ask(space.distributions) for _ in range(count)]


def spread_places(sizes: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Yield points spread evenly over axes of so many places.

    Each axis is walked in steps of another power of the golden ratio's kin for as many axes, the
    root of ``x ** (axes + 1) = x + 1``.
    """
    ratio = 2.0
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (len(sizes) + 1))
    for number in range(1, count + 1):
        shares = ((0.5 + number / ratio**axis) % 1 for axis in range(1, len(sizes) + 1))
        yield tuple(int(share * size) for share, size in zip(shares, sizes, strict=True))


def _value_of(tried: Tried, attainment: float) -> float:
    """Return one number with the order of outcomes: all that a study looks at."""
    missed, *rest = tried.order(attainment)
    return FAR_S * (2 + rest[0]) if missed else rest[0]


def _choose_finalists(tried: Sequence[Tried], attainment: float) -> list[Tried]:
    """Return the best ones, and the best of those that miss fewer requests by margins."""
    best = sorted(tried, key=lambda trial: trial.order(attainment))[:FINALISTS]
    if best:
        for margin in MARGINS:
            share = max(1 - (1 - attainment) * margin, 0.0)
            best.append(min(tried, key=lambda trial: trial.order(share)))
    return list(dict.fromkeys(best))
