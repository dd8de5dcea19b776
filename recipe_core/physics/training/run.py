"""A whole run: steps, time, money, energy, and the cost of failures.

Checkpoints are written every T seconds with T = sqrt(2 · stall · mean time between failures) (Young
1974); Daly's second-order terms (Daly 2006) matter little where failures are rare. Training stalls
while a checkpoint is written or, where it is written in the background, while it is copied to the
host. Goodput is the share of time that ends up in the model,

    1 / (1 + stall/T) · 1 / (1 + (down + T/2 + behind) / MTBF)

with MTBF of the cluster = that of a device / devices, ``behind`` the age of the last complete
checkpoint beyond T/2 (its writing time, where that is in the background), and ``down`` a restart
and the wait for a node in repair. An elastic run restarts twice instead, and continues on fewer
nodes in between.
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
    """One number per case; NaN where no token budget or no price is known."""

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
    devices_rented: Float


def checkpoint_bytes(setting: TrainingSetting, trained: float) -> float:
    """Bytes of a checkpoint: trained weights in fp32 (or bf16 and master) and optimizer states."""
    states, optimizer = setting.states, setting.optimizer
    weights = max(states.master, states.parameter) + (states.parameter if states.master else 0.0)
    return trained * (weights + optimizer.state_bytes)


def interval_s(stall_s: Float, mtbf_s: Float, write_s: Float | float = 0.0) -> Float:
    """Seconds of work between checkpoints that lose least: sqrt(2 · stall · MTBF) (Young).

    Never less than a stall or a write takes.
    """
    return np.maximum(np.sqrt(2 * stall_s * mtbf_s), np.maximum(stall_s, write_s))


def goodput(
    stall_s: Float,
    interval: Float,
    mtbf_s: Float,
    down_s: Float | float,
    behind_s: Float | float = 0.0,
) -> Float:
    """Share of time not lost to stalls, to work done twice, and to downtime after failures."""
    return 1 / (1 + stall_s / interval) / (1 + (down_s + interval / 2 + behind_s) / mtbf_s)


def down_s(cases: TrainingCases, failures: Failures) -> Float:
    """Seconds of the whole run that one failure costs besides lost work: a restart and a repair.

    Elastic: two restarts and the share of the repair that the missing nodes would have worked,
    where that is less.
    """
    waiting = np.full(len(cases), failures.restart_s + failures.repair_s)
    if failures.min_nodes is None:
        return waiting
    nodes = next_smaller(cases, failures.min_nodes)
    elastic = 2 * failures.restart_s + failures.repair_s * (1 - nodes / cases.nodes_used)
    return np.where(nodes > 0, np.minimum(elastic, waiting), waiting)


def devices_rented(cases: TrainingCases, unit: int) -> Float:
    """Devices that are paid for: those of whole machines, where machines are rented whole."""
    taken = np.where(unit >= cases.per_node, cases.nodes_used * cases.per_node, cases.devices)
    return np.asarray(np.ceil(taken / unit) * unit, dtype=np.float64)


def run(
    setting: TrainingSetting,
    cases: TrainingCases,
    step_s: Float,
    tokens: Float,
    trained: float,
    failures: Failures,
) -> Run:
    """What a budget of ``tokens`` (NaN: none) takes at ``step_s`` a step.

    ``trained``: parameters in a checkpoint.
    """
    device, price = setting.cluster.device, setting.cluster.usd_per_device_hour
    usual = training_data().run
    devices = cases.devices.astype(float)
    useful = cases.step_tokens * setting.useful(cases.sequence_length)
    default = usual.storage_bytes_per_s_per_node.value * cases.nodes_used
    storage = failures.storage_bytes_per_s or default
    size = np.full(len(cases), checkpoint_bytes(setting, trained))
    write_s, mtbf_s = size / storage, failures.device_mtbf_s / devices
    stall_s, behind_s = write_s, np.zeros(len(cases))
    if failures.asynchronous:
        copy_s = size / devices / usual.host_copy_bytes_per_s.value
        stall_s, behind_s = np.minimum(copy_s, write_s), write_s
    interval = interval_s(stall_s, mtbf_s, write_s)
    if failures.interval_s is not None:
        interval = np.maximum(failures.interval_s, write_s)
    share = goodput(stall_s, interval, mtbf_s, down_s(cases, failures), behind_s)
    steps = np.ceil(tokens / useful)
    wall_s = steps * step_s / share
    rented = devices_rented(cases, setting.cluster.unit)
    usd_per_hour = rented * (np.nan if price is None else price)
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
        checkpoint_interval_s=interval,
        goodput=share,
        tokens_per_s=rate,
        data_tokens_per_s=cases.step_tokens / step_s,
        data_bytes_per_s=cases.step_tokens / step_s * setting.loading.bytes_per_token,
        devices_rented=rented,
    )
