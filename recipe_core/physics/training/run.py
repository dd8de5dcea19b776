"""A whole run: steps, time, money, energy, and what failures cost.

Checkpoints are written every T seconds with T = sqrt(2 · stall · mean time between failures) (Young 1974); Daly's second order terms
(Daly 2006) are near it where failures are rare. Training stalls while a checkpoint is written, or, where it is written behind training,
while it is copied to the host. Goodput is the share of the time that ends up in the model,

    1 / (1 + stall/T) · 1 / (1 + (down + T/2 + behind) / MTBF)

with MTBF of the cluster = that of a device / devices, ``behind`` the age of the last whole checkpoint beside T/2 (its writing time, where
that is behind training), and ``down`` a restart and the wait for a node in repair. An elastic run restarts twice instead, and goes on with
fewer nodes between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.frameworks import training_data
from recipe_core.physics.training.elastic import next_smaller
from recipe_core.space.training import Failures, TrainingCases, TrainingSetting

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Run:
    """Columns over cases; NaN where no token budget or no price is known."""

    steps: Float
    wall_s: Float
    usd_per_hour: Float
    usd: Float
    usd_per_million_tokens: Float
    watts: Float
    joules_per_token: Float
    energy_joules: Float
    checkpoint_bytes: Float
    checkpoint_s: Float
    checkpoint_stall_s: Float
    storage_bytes: Float
    mtbf_s: Float
    checkpoint_interval_s: Float
    goodput: Float
    tokens_per_s: Float
    data_tokens_per_s: Float
    data_bytes_per_s: Float


def checkpoint_bytes(setting: TrainingSetting, trained: float) -> float:
    """Weights and what is needed to go on: trained parameters in fp32 (or bf16 and master) and the optimizer's state."""
    states, optimizer = setting.states, setting.optimizer
    return trained * (
        max(states.master, states.parameter)
        + (states.parameter if states.master else 0.0)
        + optimizer.state_bytes
    )


def interval_s(stall_s: Float, mtbf_s: Float, write_s: Float | float = 0.0) -> Float:
    """Seconds of work between checkpoints that lose least: sqrt(2 · stall · MTBF) (Young), never less than a stall or a write takes."""
    return np.maximum(np.sqrt(2 * stall_s * mtbf_s), np.maximum(stall_s, write_s))


def goodput(
    stall_s: Float,
    interval: Float,
    mtbf_s: Float,
    down_s: Float | float,
    behind_s: Float | float = 0.0,
) -> Float:
    """Share of the time that is not lost to stalls, to work done twice, and to being down after a failure."""
    return 1 / (1 + stall_s / interval) / (1 + (down_s + interval / 2 + behind_s) / mtbf_s)


def down_s(cases: TrainingCases, failures: Failures) -> Float:
    """Seconds of the whole run that one failure costs beside lost work: a restart and the repair.

    Elastic: twice a restart, and the part of the repair's time that the missing nodes would have worked, if that is less.
    """
    waits = np.full(len(cases), failures.restart_s + failures.repair_s)
    if failures.min_nodes is None:
        return waits
    left = next_smaller(cases, failures.min_nodes)
    goes_on = 2 * failures.restart_s + failures.repair_s * (1 - left / cases.nodes_used)
    return np.where(left > 0, np.minimum(goes_on, waits), waits)


def run(
    setting: TrainingSetting,
    cases: TrainingCases,
    step_s: Float,
    tokens: Float,
    trained: float,
    failures: Failures,
) -> Run:
    """What a budget of ``tokens`` (NaN: none stated) takes at ``step_s`` a step; ``trained`` parameters are in a checkpoint."""
    device, price, usual = (
        setting.cluster.device,
        setting.cluster.usd_per_device_hour,
        training_data().run,
    )
    devices = cases.devices.astype(float)
    useful = cases.step_tokens * setting.useful(cases.sequence_length)
    storage = (
        failures.storage_bytes_per_s or usual.storage_bytes_per_s_per_node.value * cases.nodes_used
    )
    size = np.full(len(cases), checkpoint_bytes(setting, trained))
    write_s, mtbf_s = size / storage, failures.device_mtbf_s / devices
    stall_s = (
        np.minimum(size / devices / usual.host_copy_bytes_per_s.value, write_s)
        if failures.asynchronous
        else write_s
    )
    every = interval_s(stall_s, mtbf_s, write_s)
    if failures.interval_s is not None:
        every = np.maximum(failures.interval_s, write_s)
    share = goodput(
        stall_s, every, mtbf_s, down_s(cases, failures), write_s if failures.asynchronous else 0.0
    )
    steps = np.ceil(tokens / useful)
    wall_s = steps * step_s / share
    usd_per_hour = devices * (np.nan if price is None else price)
    watts = devices * device.tdp_watts.value * usual.joules_share.value
    rate = useful / step_s
    return Run(
        steps=steps,
        wall_s=wall_s,
        usd_per_hour=usd_per_hour,
        usd=usd_per_hour * wall_s / SECONDS_PER_HOUR,
        usd_per_million_tokens=usd_per_hour / SECONDS_PER_HOUR / (rate * share) * 1e6,
        watts=watts,
        joules_per_token=watts / (rate * share),
        energy_joules=watts * wall_s,
        checkpoint_bytes=size,
        checkpoint_s=write_s,
        checkpoint_stall_s=stall_s,
        storage_bytes=failures.kept * size,
        mtbf_s=mtbf_s,
        checkpoint_interval_s=every,
        goodput=share,
        tokens_per_s=rate,
        data_tokens_per_s=cases.step_tokens / step_s,
        data_bytes_per_s=cases.step_tokens / step_s * setting.loading.bytes_per_token,
    )
