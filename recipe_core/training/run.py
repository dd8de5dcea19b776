"""A whole run: steps, time, money, energy, and what failures cost.

Checkpoints are written every T seconds with T = sqrt(2 · write time · mean time between failures) (Young 1974); with Daly's second order
terms (Daly 2006) near it where failures are rare. Goodput is the share of the time that ends up in the model,

    1 / (1 + write/T) · 1 / (1 + (restart + T/2) / MTBF)

with MTBF of the cluster = that of a device / devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.estimate.cases import Float
from recipe_core.training.cases import TrainingCases, TrainingSetting
from recipe_core.training.frameworks import training_data

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Failures:
    """How often a device fails, how fast all nodes write together, how long a restart takes."""

    device_mtbf_s: float
    storage_bytes_per_s: float | None
    restart_s: float


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
    mtbf_s: Float
    checkpoint_interval_s: Float
    goodput: Float
    tokens_per_s: Float


def checkpoint_bytes(setting: TrainingSetting, trained: float) -> float:
    """Weights and what is needed to go on: trained parameters in fp32 (or bf16 and master) and the optimizer's state."""
    states, optimizer = setting.states, setting.optimizer
    return trained * (max(states.master, states.parameter) + (states.parameter if states.master else 0.0) + optimizer.state_bytes)


def interval_s(write_s: Float, mtbf_s: Float) -> Float:
    """Seconds of work between checkpoints that lose least: sqrt(2 · write · MTBF) (Young), never less than a write takes."""
    return np.maximum(np.sqrt(2 * write_s * mtbf_s), write_s)


def goodput(write_s: Float, interval: Float, mtbf_s: Float, restart_s: float) -> Float:
    """Share of the time that is not lost to writing checkpoints, to work done twice, and to restarts."""
    return 1 / (1 + write_s / interval) / (1 + (restart_s + interval / 2) / mtbf_s)


def run(setting: TrainingSetting, cases: TrainingCases, step_s: Float, tokens: Float, trained: float, failures: Failures) -> Run:
    """What a budget of ``tokens`` (NaN: none stated) takes at ``step_s`` a step; ``trained`` parameters are in a checkpoint."""
    device, price = setting.cluster.device, setting.cluster.usd_per_device_hour
    devices = cases.devices.astype(float)
    step_tokens = cases.global_batch * cases.sequence_length.astype(float)
    storage = failures.storage_bytes_per_s or training_data().run.storage_bytes_per_s_per_node.value * cases.nodes_used
    size = np.full(len(cases), checkpoint_bytes(setting, trained))
    write_s, mtbf_s = size / storage, failures.device_mtbf_s / devices
    every = interval_s(write_s, mtbf_s)
    share = goodput(write_s, every, mtbf_s, failures.restart_s)
    steps = np.ceil(tokens / step_tokens)
    wall_s = steps * step_s / share
    usd_per_hour = devices * (np.nan if price is None else price)
    watts = devices * device.tdp_watts.value * training_data().run.joules_share.value
    rate = step_tokens / step_s
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
        mtbf_s=mtbf_s,
        checkpoint_interval_s=every,
        goodput=share,
        tokens_per_s=rate,
    )
