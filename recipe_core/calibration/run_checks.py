"""Which measured runs count: those that are sound, of today's software, and not odd alone.

A run is *held* while something speaks against it that another run could settle, and *expired* when
the world has moved on. Neither teaches; both stay, with the reason. Nothing here is a judgement of
estimates: a run may lie far from the estimate as long as no others that know contradict it.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.provenance import VALID_DAYS
from recipe_core.calibration.residuals import Measured
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import engine as engine_of
from recipe_core.engines.spec import engine_names
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.corrections import (
    Corrections,
    DeviceRuns,
    OwnRun,
    Prior,
    assumed_version,
    version_in_text,
)

# Answered requests of a mean: of fewer its standard error is above a third of their spread.
FEWEST_REQUESTS = 8

# Share of failed requests beyond which a server was not in the state that estimates describe.
MOST_FAILED = 0.01

# Standard deviations from what the others let expect, beyond which a run is odd.
ODD = 3.0

# Others tell of a run where they leave at most this share of its variance.
TELLS = 0.5

# Factor to the estimate beyond which a run that no other tells of waits for a second: a unit or a
# load was mistaken more often than formulas are so far off.
TENFOLD = 10.0

# Runs whose deviations are at least this share of the largest deviate alike.
ALIKE = 0.9


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a run counts: ``accepted``, ``held`` or ``expired``, and why it does not."""

    state: str = "accepted"
    reason: str = ""

    @property
    def counts(self) -> bool:
        return self.state == "accepted"


ACCEPTED = Gate()


def pinned_version(run: Measured) -> str:
    """The version of a run's engine that estimates of today assume; empty for an unknown one."""
    candidate = run.request.get("candidate") or {}
    name = str(candidate.get("engine") or "") if isinstance(candidate, Mapping) else ""
    if name in engine_names():
        return assumed_version(engine_of(name))
    if name in training_data().frameworks:
        return version_in_text(training_engine(name).version)
    return ""


def expiry_reason(run: Measured, assumed: str, added: datetime.date, today: datetime.date) -> str:
    """Why a run no longer counts by age or by its engine; empty while it does.

    Args:
        run: the run.
        assumed: the version of its engine that estimates assumed when it was added.
        added: the day of that; its age counts from it where the run states no day.
        today: the day of the question.
    """
    last = (run.date or added) + datetime.timedelta(days=VALID_DAYS)
    if today > last:
        return f"expired on {last}, {VALID_DAYS} days after it was measured"
    now, ran = pinned_version(run), version_in_text(run.version) or assumed
    if ran == assumed and now and assumed and now != assumed:
        return f"ran version {ran}; estimates assume {now} now"
    return ""


def unsound_reason(run: Measured) -> str:
    """Why a measurement cannot be relied on, whatever it says; empty where it can."""
    if run.excluded:
        return f"excluded: {run.excluded}"
    answered, failed = run.requests, run.failed or 0
    if answered is None:
        return ""
    if failed > MOST_FAILED * (answered + failed):
        return f"{failed:,} of {answered + failed:,} requests failed"
    if answered < FEWEST_REQUESTS:
        return f"{answered} requests were measured; a mean needs {FEWEST_REQUESTS}"
    return ""


def driver_expiries(runs: Sequence[Measured], added: Sequence[datetime.date]) -> list[str]:
    """Why runs no longer count by driver: a later run of the machine and device ran another."""
    newest: dict[tuple[str, str], tuple[datetime.date, str]] = {}
    places = [(run.machine, _run_device(run)) for run in runs]
    days = [run.date or day for run, day in zip(runs, added, strict=True)]
    for run, place, day in zip(runs, places, days, strict=True):
        if run.driver and day >= newest.get(place, (datetime.date.min, ""))[0]:
            newest[place] = (day, run.driver)
    out = []
    for run, place in zip(runs, places, strict=True):
        driver = newest.get(place, (None, ""))[1]
        changed = run.driver and driver and run.driver != driver
        out.append(f"ran with driver {run.driver}; the machine has {driver} now" if changed else "")
    return out


def _run_device(run: Measured) -> str:
    hardware = run.request.get("hardware")
    return str(hardware.get("device")) if isinstance(hardware, Mapping) else ""


# Runs against each other


def odd_runs(learned: Corrections, order: Mapping[str, int]) -> dict[str, str]:
    """Runs that others contradict, or that nobody confirms, by name, with the reason.

    Of each device the oddest is left out, and the others are looked at anew, until none is odd: one
    run spoils nothing. Runs left out that agree with each other count after all. Of two that
    contradict each other the later one waits (``order``: when each was added).
    """
    out: dict[str, str] = {}
    by_device: dict[str, list[OwnRun]] = defaultdict(list)
    for run in learned.runs:
        by_device[run.setting.cluster.device.digest].append(run)
    for runs in by_device.values():
        remaining, waiting = list(runs), []
        while remaining and (
            odd := _oddest_run(DeviceRuns(learned.prior, remaining), remaining, order)
        ):
            out[odd[0].name] = odd[1]
            remaining.remove(odd[0])
            waiting.append(odd[0])
        for run in waiting:
            peers = [peer for peer in waiting if peer is not run]
            if any(_runs_agree(learned.prior, run, peer) for peer in peers):
                out.pop(run.name, None)
    return out


def _runs_agree(prior: Prior, run: OwnRun, peer: OwnRun) -> bool:
    """Whether a run tells of another, and neither is odd beside the other."""
    device = DeviceRuns(prior, [run, peer])
    predictable, deviation = _leave_one_out_deviations(device)
    return bool(predictable.all() and (deviation <= ODD).all())


def _leave_one_out_deviations(device: DeviceRuns) -> tuple[Bool, Float]:
    """Whether the other runs tell of each figure, and its standard deviations from what they say.

    The figures of a run are left out together: with ``A`` the inverse of the covariance, what the
    others leave unsure of them is ``A[i, i]⁻¹``, and they are off by ``A[i, i]⁻¹·(A·y)[i]``.
    """
    covariance, inverse = device.covariance, np.linalg.inv(device.covariance)
    solved = inverse @ device.shown
    predictable, deviation = np.zeros(len(solved), dtype=np.bool_), np.zeros(len(solved))
    for run in range(len(device.labels)):
        figures = np.flatnonzero(device.row == run)
        unexplained = np.linalg.inv(inverse[np.ix_(figures, figures)])
        predictable[figures] = np.diag(unexplained) <= TELLS * np.diag(covariance)[figures]
        deviation[figures] = np.abs(unexplained @ solved[figures]) / np.sqrt(np.diag(unexplained))
    return predictable, deviation


def _oddest_run(
    device: DeviceRuns, runs: Sequence[OwnRun], order: Mapping[str, int]
) -> tuple[OwnRun, str] | None:
    """The run that contradicts the others most, and how; None where none does."""
    predictable, off = _leave_one_out_deviations(device)
    size = np.abs(device.shown)
    alone = ~predictable & (size > np.log(TENFOLD))
    deviation = np.where(predictable, off, np.where(alone, ODD + size, 0.0))
    if not (deviation > ODD).any():
        return None
    # runs that contradict each other deviate alike: of them the latest
    worst = np.flatnonzero(deviation >= max(ALIKE * float(deviation.max()), ODD)).tolist()
    figure = max(worst, key=lambda k: (order.get(runs[int(device.row[k])].name, 0), deviation[k]))
    factor = float(np.exp(device.shown[figure]))
    against = (
        "which the other runs contradict" if predictable[figure] else "and no other run says so"
    )
    reason = f"{factor:.3g} times the estimate, {against}; held until a second run agrees"
    return runs[int(device.row[figure])], reason


def unconfirmed_version_reason(run: Measured, assumed: str, peers: Sequence[Measured]) -> str:
    """Why a run of another version than estimates assume waits; empty where one confirms it.

    ``peers``: other sound runs. One of the same engine, version and device confirms that it is
    really in use.
    """
    ran = version_in_text(run.version)
    if not ran or not assumed or ran == assumed:
        return ""
    if any(
        version_in_text(peer.version) == ran
        and _run_device(peer) == _run_device(run)
        and _run_engine(peer) == _run_engine(run)
        for peer in peers
    ):
        return ""
    return f"ran version {ran}, estimates assume {assumed}; held until a second run agrees"


def _run_engine(run: Measured) -> str:
    candidate = run.request.get("candidate")
    return str(candidate.get("engine")) if isinstance(candidate, Mapping) else ""
