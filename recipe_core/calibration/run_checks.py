"""Checks of measured runs: sound ones, of today's software, not odd alone, count.

A run is *held* while something speaks against it that another run could settle, and *expired* when
the world has moved on. Neither teaches; both stay, with the reason. Nothing here is a judgement of
estimates: a run may lie far from the estimate as long as no others that know contradict it.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.provenance import VALID_DAYS
from recipe_core.calibration.records import StoredRun
from recipe_core.calibration.residuals import Measured
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import engine as engine_of
from recipe_core.engines.spec import engine_names
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.corrections import (
    Corrections,
    DeviceRuns,
    OwnRun,
    assumed_version,
    version_in_text,
)
from recipe_core.estimates.columns.prior import Prior

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


def pinned_version(run: Measured | StoredRun) -> str:
    """The version of a run's engine that estimates of today assume; empty for an unknown one."""
    candidate = run.request.get("candidate") or {}
    name = str(candidate.get("engine") or "") if isinstance(candidate, Mapping) else ""
    if name in engine_names():
        return assumed_version(engine_of(name))
    if name in training_data().frameworks:
        return version_in_text(training_engine(name).version)
    return ""


def expiry_reason(run: StoredRun, today: datetime.date) -> str:
    """Say why a run no longer counts by age or by its engine; empty while it does."""
    if today > run.expires:
        return f"expired on {run.expires}, {VALID_DAYS} days after it was measured"
    now, assumed = pinned_version(run), run.assumed_version
    ran = version_in_text(run.version) or assumed
    if ran == assumed and now and assumed and now != assumed:
        return f"ran version {ran}; estimates assume {now} now"
    return ""


def unsound_reason(run: StoredRun) -> str:
    """Say why a measurement cannot be relied on, whatever it says; empty where it can."""
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


def driver_expiries(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Say why runs no longer count by driver, by id: a later one there ran another."""
    newest: dict[tuple[str, str], StoredRun] = {}
    by_day = sorted(runs, key=lambda run: run.date or run.added.date())
    for run in by_day:
        if run.driver:
            newest[run.machine, run.device] = run
    return {
        run.id: f"ran with driver {run.driver}; the machine has {last.driver} now"
        for run in runs
        if run.driver and (last := newest[run.machine, run.device]).driver != run.driver
    }


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
    """Return whether a run tells of another, and neither is odd beside the other."""
    device = DeviceRuns(prior, [run, peer])
    predictable, deviation = _leave_one_out_deviations(device)
    return bool(predictable.all() and (deviation <= ODD).all())


def _leave_one_out_deviations(device: DeviceRuns) -> tuple[Bool, Float]:
    """Return if other runs tell of each figure, and its standard deviations from theirs.

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


def unconfirmed_version_reason(run: StoredRun, peers: Sequence[StoredRun]) -> str:
    """Say why a run of another version than estimates assume waits; empty where one confirms it.

    ``peers``: all sound runs. Another of the same engine, version and device confirms that it is
    really in use.
    """
    ran, assumed = version_in_text(run.version), run.assumed_version
    if not ran or not assumed or ran == assumed:
        return ""
    for peer in peers:
        same_place = (peer.device, peer.engine) == (run.device, run.engine)
        if peer is not run and same_place and version_in_text(peer.version) == ran:
            return ""
    return f"ran version {ran}, estimates assume {assumed}; held until a second run agrees"
