"""The search itself: an Optuna study by ask and tell, in a journal that a kill does not damage."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from recipe_core.base.errors import InputError
from recipe_core.base.units import share_text
from recipe_core.calibration.trials.search_problem import Knob, Point, recommended_point

JOURNAL = "journal.log"
NAME = "tune"
SEED = 1
# Trials at random before the sampler has enough to go by; the recommended point is among them.
STARTED_BLIND = 6
# How often in a row the sampler may ask for points that were measured before it is overruled.
DUPLICATES = 12
# A warm-up whose score is this much above the best one's (1.5 times) is not measured further.
HOPELESS = 0.4
MOST_POINTS = 100_000


def measured_score(trial: FrozenTrial) -> float | None:
    """Score of a trial that was measured to its end; None of one that was given up or failed.

    Not ``trial.value``: Optuna gives a pruned trial the score of its warm-up as value.
    """
    return trial.value if trial.state is TrialState.COMPLETE else None


@dataclass(slots=True)
class Search:
    """One search; ``space`` its knobs. Scores are logarithms, lower is better."""

    study: optuna.Study
    space: tuple[Knob, ...]
    seed: int = SEED

    @classmethod
    def opened(
        cls,
        folder: Path,
        space: tuple[Knob, ...],
        identity: Mapping[str, Any],
        *,
        resume: bool,
        seed: int = SEED,
    ) -> Search:
        """The search in a folder: a new one, or the one that was interrupted there.

        The folder must be locked by its caller: a lock and half a line that a kill left are
        removed. An older search is kept beside a new one.

        Raises:
            InputError: for a search of another recipe, aim or space.
        """
        folder.mkdir(parents=True, exist_ok=True)
        journal = folder / JOURNAL
        journal.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
        if journal.exists() and not resume:
            backups = (journal.with_name(f"journal-{n}.log") for n in itertools.count(1))
            journal.rename(next(path for path in backups if not path.exists()))
        if journal.exists():
            os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
        with _quiet_optuna():
            lock = JournalFileOpenLock(str(journal))
            study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(journal), lock)),
                sampler=optuna.samplers.TPESampler(
                    seed=seed,
                    n_startup_trials=STARTED_BLIND,
                    multivariate=True,
                    constraints_func=lambda trial: (float(trial.user_attrs.get("excess", 0.0)),),
                ),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
                study_name=NAME,
                direction="minimize",
                load_if_exists=True,
            )
        search = cls(study, space, seed)
        search._identify(json.loads(json.dumps(dict(identity))))
        search._take_up()
        return search

    def _identify(self, identity: dict[str, Any]) -> None:
        stored_identity = self.study.user_attrs.get("identity")
        if stored_identity is None:
            self.study.set_user_attr("identity", identity)
            return
        for name, value in identity.items():
            if stored_identity.get(name) != value:
                raise InputError(
                    f"the search that was interrupted has another {name}.",
                    field="resume",
                    hint="Leave --resume out: a new search starts, and the old one is kept.",
                )

    def _take_up(self) -> None:
        """Trials that a kill cut off are asked for again; the recommended point comes first."""
        for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
            self.study.tell(trial.number, state=TrialState.FAIL)
            if set(trial.params) == {knob.name for knob in self.space}:
                self.study.enqueue_trial(trial.params, skip_if_exists=False)
        if not self.study.get_trials():
            self.enqueue(recommended_point(self.space))

    def enqueue(self, point: Point) -> None:
        self.study.enqueue_trial(dict(point), skip_if_exists=True)

    @property
    def done(self) -> list[FrozenTrial]:
        """Trials that were started or refused."""
        return self.study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))

    @property
    def started(self) -> list[FrozenTrial]:
        return [trial for trial in self.done if "refused" not in trial.user_attrs]

    def ask(self) -> tuple[Trial, Point] | None:
        """The next trial at a point that was not tried; None where all were."""
        tried = [trial.params for trial in self.done]
        for _ in range(DUPLICATES):
            trial, point = self._suggest()
            if point not in tried:
                return trial, point
            self.study.tell(trial, state=TrialState.FAIL)  # which the sampler passes over
        names = [knob.name for knob in self.space]
        sizes = [range(len(knob.values)) for knob in self.space]
        places = list(itertools.islice(itertools.product(*sizes), MOST_POINTS))
        random.Random(self.seed).shuffle(places)  # noqa: S311 - which point comes next is no secret
        points = (dict(zip(names, place, strict=True)) for place in places)
        untried = next((point for point in points if point not in tried), None)
        if untried is None:
            return None
        self.enqueue(untried)
        return self._suggest()

    def _suggest(self) -> tuple[Trial, dict[str, int]]:
        trial, point = self.study.ask(), {}
        for knob in self.space:
            last = len(knob.values) - 1
            if knob.ordered:
                point[knob.name] = trial.suggest_int(knob.name, 0, last)
            else:
                point[knob.name] = int(trial.suggest_categorical(knob.name, range(last + 1)))
        return trial, point

    def give_up(self, trial: Trial, score: float) -> str | None:
        """Say why a trial is not worth more than its warm-up; None where it is."""
        trial.report(score, 0)
        best = min(
            (value for done in self.done for value in done.intermediate_values.values()),
            default=math.inf,
        )
        if score > best + HOPELESS:
            return f"its warm-up is {share_text(score - best)} (log) worse than the best one's"
        with _quiet_optuna():
            return "its warm-up is worse than the median" if trial.should_prune() else None

    def tell(self, trial: Trial, score: float | None, **outcome: Any) -> None:
        """End a trial; one without a ``score`` was not measured to its end.

        ``excess``: by how much it misses the limits, 0 or below kept; ``metrics``, ``reason`` and
        ``refused`` (by the estimate) are shown.
        """
        for name, value in outcome.items():
            trial.set_user_attr(name, value)
        self.study.tell(trial, score, TrialState.PRUNED if score is None else None)

    def best(self) -> FrozenTrial | None:
        """The best trial that keeps the limits; None where none does."""
        try:
            return self.study.best_trial
        except ValueError:
            return None

    def since_best(self) -> int:
        best = self.best()
        return len([t for t in self.started if best is None or t.number > best.number])


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Without Optuna's remarks on its newer parts; its level of logging is the program's."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
