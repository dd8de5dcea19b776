"""A whole run: steps, time, money, energy, and what takes the time that no step has.

Checkpoints are written every T seconds with T = sqrt(2 · stall · mean time between failures) (Young
1974); Daly's second-order terms (Daly 2006) matter little where failures are rare. Training stalls
while a checkpoint is written or, where it is written in the background, while it is copied to the
host. T is at most half a day, and shorter where a start has a time limit (``phases.py``).
Goodput is the share of time that steps take,

    ended / (1 + slow + evaluation) / (1 + stall/T) / (1 + (down + T/2 + behind) / MTBF)

with MTBF of the cluster = that of a device / devices, ``slow`` what slow nodes add to a step,
``evaluation`` its time for each second of steps, ``behind`` the age of the last complete checkpoint
beyond T/2 (its writing time, where that is in the background), ``down`` a restart and the wait for
a node (``spares.py``), and ``ended`` the share that ends at a time limit leave. An elastic run
restarts once more instead of waiting, and continues on fewer nodes in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.base.units import HOUR_S
from recipe_core.engines.frameworks import training_data
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.training import Failures, TrainingCases, TrainingSetting
from recipe_core.estimates.training.memory import adapter_parameters
from recipe_core.estimates.training.optimizer_states import optimizer_state_bytes
from recipe_core.estimates.training.phases import (
    PhaseEstimates,
    end_rate,
    evaluation_s,
    longest_interval_s,
    lost_share,
    next_smaller,
    saves_at_limit,
)


def erlang_b(places: int, load: Float) -> Float:
    """Probability that all of ``places`` are taken (one per ``load``, in erlangs).

    B(0) = 1, B(k) = a B(k - 1) / (k + a B(k - 1)) (Erlang 1917, in its stable recursion).
    """
    blocked = np.ones_like(load, dtype=float)
    for k in range(1, places + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked


@dataclass(frozen=True, slots=True)
class Run(Columns):
    """One number per case; NaN where no token budget or no price is known.

    ``tokens_per_s`` while steps of the main shape run; ``run_tokens_per_s`` of the whole run, all
    phases and losses included. ``shares`` of the time by what takes it, which add up to 1.
    """

    steps: Float
    wall_s: Float
    usd_per_hour: Float
    usd: Float
    usd_storage: Float
    usd_per_million_tokens: Float
    watts: Float
    joules_per_token: Float
    energy_joules: Float
    checkpoint_bytes: Float
    checkpoint_s: Float
    checkpoint_stall_s: Float
    storage_bytes: Float
    mtbf_s: Float
    failures: Float
    restart_s: Float
    checkpoint_interval_s: Float
    evaluation_s: Float
    goodput: Float
    shares: dict[str, Float]
    spares_suffice: Float
    tokens_per_s: Float
    run_tokens_per_s: Float
    data_tokens_per_s: Float
    data_bytes_per_s: Float
    devices_rented: Float


@dataclass(frozen=True, slots=True)
class Down:
    """The cost of one failure besides lost work, in seconds of the whole run (one per case).

    ``spares_suffice``: probability that a lost node is replaced at once; NaN without spares.
    """

    restarts_s: Float
    waiting_s: Float
    spares_suffice: Float


def training_checkpoint_bytes(setting: TrainingSetting, trained: float) -> float:
    """Bytes of a checkpoint: trained weights in fp32 (or bf16 and master) and optimizer states."""
    states = setting.states
    weights = max(states.master, states.parameter) + (states.parameter if states.master else 0.0)
    return trained * (weights + optimizer_state_bytes(setting))


def interval_s(
    stall_s: Float, mtbf_s: Float, write_s: Float | float = 0.0, longest_s: Float | float = np.inf
) -> Float:
    """Seconds of work between checkpoints that lose least: sqrt(2 · stall · MTBF) (Young).

    At most ``longest_s``, and never less than a stall or a write takes.
    """
    interval = np.minimum(np.sqrt(2 * stall_s * mtbf_s), longest_s)
    return np.maximum(interval, np.maximum(stall_s, write_s))


def goodput(
    stall_s: Float,
    interval: Float,
    mtbf_s: Float,
    down_s: Float | float,
    behind_s: Float | float = 0.0,
) -> Float:
    """Share of time not lost to stalls, to work done twice, and to downtime after failures."""
    return 1 / (1 + stall_s / interval) / (1 + (down_s + interval / 2 + behind_s) / mtbf_s)


def down_time(cases: TrainingCases, failures: Failures, mtbf_s: Float, restart_s: Float) -> Down:
    """A restart after every failure, and a repair where a node is away and no spare is left.

    Elastic: one more restart and the share of the repair that the missing nodes would have worked,
    where that is less.
    """
    lost, repair_s, spares = failures.node_loss, failures.repair_s, failures.spare_nodes
    short = erlang_b(spares, lost * repair_s / mtbf_s)
    wait_s = np.full(len(cases), repair_s / (spares + 1))
    again_s = np.zeros(len(cases))
    if failures.min_nodes is not None:
        nodes = next_smaller(cases, failures.min_nodes)
        elastic_s = wait_s * (1 - nodes / cases.nodes_used)
        goes_on = (nodes > 0) & (restart_s + elastic_s < wait_s)
        wait_s, again_s = np.where(goes_on, elastic_s, wait_s), np.where(goes_on, restart_s, 0.0)
    suffice = 1 - short if spares else np.full(len(cases), np.nan)
    return Down(restart_s + lost * short * again_s, lost * short * wait_s, suffice)


def training_devices_rented(cases: TrainingCases, unit: int, spare_nodes: int = 0) -> Float:
    """Devices that are paid for: those of whole machines, where machines are rented whole."""
    used = cases.all_devices
    node_devices = np.ceil(used / cases.per_node) * cases.per_node
    devices = np.where(unit >= cases.per_node, node_devices, used)
    devices = devices + spare_nodes * cases.per_node
    return np.asarray(np.ceil(devices / unit) * unit, dtype=np.float64)


def slow_share(cases: TrainingCases, failures: Failures) -> Float:
    """Return what slow nodes add to a step: ``slowdown · P(at least one of the nodes is slow)``."""
    some = 1 - (1 - failures.slow_nodes) ** cases.nodes_used
    return np.asarray(failures.slowdown * some)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Size, times and interval of checkpoints (one per case).

    ``behind_s``: age of the last complete one, beyond half an interval. ``read_s``: to read it back
    where a restart does not include that.
    """

    bytes: Float
    write_s: Float
    read_s: Float
    stall_s: Float
    behind_s: Float
    interval_s: Float


def checkpoint_schedule(
    setting: TrainingSetting, cases: TrainingCases, trained: float, busy_s: Float
) -> Checkpoints:
    """Return how checkpoints of ``trained`` parameters are written and how often.

    ``busy_s``: what the steps of the run take.
    """
    failures = setting.failures
    usual = training_data().run
    size = np.full(len(cases), training_checkpoint_bytes(setting, trained))
    write_s, read_s = _storage_s(cases, failures, size)
    stall_s, behind_s = write_s, np.zeros(len(cases))
    if failures.asynchronous:
        copied = usual.host_copy_bytes_per_s.value * cases.devices
        stall_s, behind_s = np.minimum(size / copied, write_s), write_s
    longest = np.full(len(cases), usual.longest_interval_s.value)
    if failures.limit_s is not None:
        within = longest_interval_s(failures.limit_s, failures.restart_s + read_s, write_s)
        longest = np.minimum(longest, within)
    ends = end_rate(setting, _mtbf_s(cases, failures), busy_s)
    interval = interval_s(stall_s, 1 / ends, write_s, longest)
    if failures.interval_s is not None:
        interval = np.maximum(failures.interval_s, write_s)
    return Checkpoints(size, write_s, read_s, stall_s, behind_s, interval)


def _storage_s(cases: TrainingCases, failures: Failures, size: Float) -> tuple[Float, Float]:
    """Seconds to write a checkpoint, and to read it back where a restart does not include that."""
    nodes, tier = cases.nodes_used, failures.storage
    if tier is None:
        usual = training_data().run.storage_bytes_per_s_per_node.value
        return size / (failures.storage_bytes_per_s or usual * nodes), np.zeros(len(cases))
    read_s = tier.latency_s.value + size / tier.read_rate(nodes)
    return size / tier.write_rate(nodes), read_s if failures.reads_back else np.zeros(len(cases))


def _mtbf_s(cases: TrainingCases, failures: Failures) -> Float:
    """Mean time between failures of all devices of a case, in seconds."""
    return failures.device_mtbf_s / cases.all_devices.astype(float)


def run_time_shares(
    written: Checkpoints,
    mtbf_s: Float,
    ended: Down,
    slow: Float,
    evaluation: Float,
    limited: Float | float = 0.0,
) -> dict[str, Float]:
    """Shares of a run's time by what takes it, which add up to 1; that of ``steps`` is goodput.

    ``slow`` and ``evaluation``: seconds for each second of steps. ``limited``: what ends at a time
    limit cost.
    """
    stalls, down_s = written.stall_s / written.interval_s, ended.restarts_s + ended.waiting_s
    work_share = goodput(written.stall_s, written.interval_s, mtbf_s, down_s, written.behind_s)
    work_share = work_share * (1 - limited)
    steps = work_share / (1 + slow + evaluation)
    failed = work_share * (1 + stalls) / mtbf_s
    return {
        "steps": steps,
        "slow_nodes": steps * slow,
        "evaluation": steps * evaluation,
        "checkpoints": work_share * stalls,
        "lost_work": failed * (written.interval_s / 2 + written.behind_s),
        "restarts": failed * ended.restarts_s,
        "waiting": failed * ended.waiting_s,
        "time_limits": np.broadcast_to(limited, work_share.shape),
    }


def _limited_run_shares(
    setting: TrainingSetting,
    cases: TrainingCases,
    written: Checkpoints,
    ended: Down,
    evaluated_s: Float,
    step_s: Float,
    busy_s: Float,
) -> dict[str, Float]:
    """Shares of a run's time with what its time limits cost, which its length decides."""
    failures = setting.failures
    mtbf_s, slow = _mtbf_s(cases, failures), slow_share(cases, failures)
    every_steps = setting.evaluation.every_steps if setting.evaluation else 1
    evaluating = evaluated_s / every_steps / step_s
    unlimited = run_time_shares(written, mtbf_s, ended, slow, evaluating)
    restart_s = failures.restart_s + written.read_s
    end_s = written.write_s if saves_at_limit(setting) else written.interval_s / 2
    limited = lost_share(setting, restart_s, end_s, busy_s / unlimited["steps"])
    return run_time_shares(written, mtbf_s, ended, slow, evaluating, limited)


def estimate_run(
    setting: TrainingSetting,
    main: PhaseEstimates,
    phases: tuple[PhaseEstimates, ...],
    trained: float,
) -> Run:
    """Return what all ``phases`` take together; without a token budget only what a step decides.

    ``main``: steps of the workload's own shape. ``trained``: parameters in a checkpoint.
    """
    cases, failures, usual = main.cases, setting.failures, training_data().run
    steps = add(phase.steps(setting) for phase in phases)
    busy_s = add(phase.steps(setting) * phase.step_s for phase in phases)
    mean_step_s = busy_s / steps if len(phases) > 1 else main.step_s
    evaluated_s = evaluation_s(setting, main)
    written, mtbf_s = checkpoint_schedule(setting, cases, trained, busy_s), _mtbf_s(cases, failures)
    restart_s = failures.restart_s + written.read_s
    ended = down_time(cases, failures, mtbf_s, restart_s)
    shares = _limited_run_shares(setting, cases, written, ended, evaluated_s, mean_step_s, busy_s)
    wall_s = busy_s / shares["steps"]
    rate = main.step_tokens(setting) / main.step_s
    budgets = [phase.cases.token_budget for phase in phases]
    run_rate = add(budgets) / wall_s if len(phases) > 1 else rate * shares["steps"]
    device, price = setting.cluster.device, setting.cluster.usd_per_device_hour
    rented = training_devices_rented(cases, setting.cluster.unit, failures.spare_nodes)
    usd_per_hour = rented * (np.nan if price is None else price)
    stored_bytes = failures.kept_checkpoints * written.bytes
    storage_usd_per_s = stored_bytes * failures.usd_per_byte_s
    usd_per_s = usd_per_hour / HOUR_S + storage_usd_per_s
    watts = cases.all_devices.astype(float) * device.tdp_watts.value * usual.joules_share.value
    data_tokens_per_s = cases.step_tokens / main.step_s
    return Run(
        steps=steps,
        wall_s=wall_s,
        usd_per_hour=usd_per_hour,
        usd=usd_per_s * wall_s,
        usd_storage=storage_usd_per_s * wall_s,
        usd_per_million_tokens=usd_per_s / run_rate * 1e6,
        watts=watts,
        joules_per_token=watts / run_rate,
        energy_joules=watts * wall_s,
        checkpoint_bytes=written.bytes,
        checkpoint_s=written.write_s,
        checkpoint_stall_s=written.stall_s,
        storage_bytes=stored_bytes,
        mtbf_s=mtbf_s,
        failures=wall_s / mtbf_s,
        restart_s=restart_s,
        checkpoint_interval_s=written.interval_s,
        evaluation_s=evaluated_s,
        goodput=shares["steps"],
        shares=shares,
        spares_suffice=ended.spares_suffice,
        tokens_per_s=rate,
        run_tokens_per_s=run_rate,
        data_tokens_per_s=data_tokens_per_s,
        data_bytes_per_s=data_tokens_per_s * setting.loading.bytes_per_token,
        devices_rented=rented,
    )


def trained_parameters(setting: TrainingSetting) -> float:
    """Parameters in a checkpoint: adapters, or all; with a critic those of two models."""
    critic = setting.sampling is not None and setting.sampling.critic
    per_model = adapter_parameters(setting) if setting.frozen else setting.model.language_parameters
    return float(per_model) * (2 if critic else 1)
