"""Pools by themselves: curves over their load, and the pools on the front of these.

What a pool does is a curve: the time of a step by the sequences that the pool decodes, or the time
of a prompt by the rate at which prompts arrive. A pool whose curve lies nowhere below that of
another one of as many devices is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.network import send_s
from recipe_core.estimates.rules.placement import nodes_needed
from recipe_core.estimates.rules.rules import servers_of
from recipe_core.estimates.serving.continuous_batching import decode_step
from recipe_core.estimates.serving.cost import busy_time_setting
from recipe_core.estimates.serving.kernels import total
from recipe_core.estimates.serving.memory import serving_memory
from recipe_core.estimates.serving.pools import PromptSteps, pool_steps, sent_bytes
from recipe_core.estimates.serving.rates import resident_limit
from recipe_core.estimates.serving.speculative import engine_step
from recipe_core.estimates.serving.starts import serving_start_probability
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.problem import ServingProblem
from recipe_core.request.metrics import goals_of
from recipe_core.request.serving_workload import LOADS

# Points of a curve.
POINTS = 16
# How much worse than another pool one may be and count as no better.
ALIKE = 1.01
# Times of sending a cache count as alike within this share of the shortest prompt's.
NEAR = 0.05
# Power of a speed that counts against a pool: as alike count speeds within a tenth.
PACED = 0.1
# Copies of a split up to which each number is looked at; above, every so many-th.
EVERY_COPY = 64


@dataclass(frozen=True, slots=True)
class Curves:
    """Splits that either pool may be copies of, as far as they start, with their curves.

    ``step_s``: of a decode step, by ``POINTS`` numbers of sequences up to ``limit``;
    ``cached_requests``: requests that the cache holds at full length; ``sent``: seconds to send the
    cache of a prompt inside a node and between nodes; ``work_s`` and ``prompt_work_s``: of a step
    and of a prompt the seconds at full power.
    """

    cases: Cases
    limit: Float
    cached_requests: Float
    step_s: Float
    decodes: Float
    prompts: PromptSteps
    prefills: Float
    sent: tuple[Float, Float]
    work_s: Float
    prompt_work_s: Float

    def step_at(self, units: Int, decoding: Float, *, work: bool = False) -> Float:
        """Seconds of a decode step with so many sequences a replica; beyond the limit infinite.

        ``work``: those at full power.
        """
        table, limit = self.work_s if work else self.step_s, self.limit[units]
        share = np.log(np.maximum(decoding, 1.0)) / np.log(np.maximum(limit, 1.0 + 1e-9))
        place = np.clip(share, 0.0, 1.0) * (POINTS - 1)
        low = np.minimum(place.astype(np.int64), POINTS - 2)
        below, above = table[units, low], table[units, low + 1]
        between = below + (above - below) * (place - low)
        return np.where(decoding <= limit * (1 + 1e-9), between, np.inf)

    def prompts_of(self, units: Int) -> PromptSteps:
        """The prompts of some curves."""
        of = self.prompts
        lone, single, full = (
            {name: seconds[units] for name, seconds in parts.items()}
            for parts in (of.lone, of.single, of.full)
        )
        return PromptSteps(lone, single, full, of.group[units], of.stages[units], of.ranks[units])


def curves_of(shared: Setting, cases: Cases) -> Curves:
    """Curves of splits, one of each."""
    ones = np.ones(len(cases))
    memory_use = serving_memory(shared, cases, ones)
    prefill = replace(cases, output_tokens=ones)
    limit = resident_limit(shared, cases, memory_use)
    decoding = np.geomspace(ones, limit, POINTS, axis=1)
    several = cases.take(np.repeat(np.arange(len(cases)), POINTS))
    step = decode_step(several, decoding.ravel())
    step_s, work_s = (
        total(engine_step(setting, several, step)).reshape(len(cases), POINTS)
        for setting in (shared, busy_time_setting(shared))
    )
    steps, work = pool_steps(shared, prefill), pool_steps(busy_time_setting(shared), prefill)
    data = sent_bytes(shared, cases)
    return Curves(
        cases,
        limit,
        np.maximum(np.minimum(memory_use.max_concurrency, cases.max_num_seqs * cases.dp), 1.0),
        step_s,
        serving_start_probability(shared, cases, memory_use),
        PromptSteps(
            {"step": total(steps.lone)},
            {"step": total(steps.single)},
            {"step": total(steps.full)},
            steps.group,
            steps.stages,
            steps.ranks,
        ),
        serving_start_probability(shared, prefill, serving_memory(shared, prefill, ones)),
        (
            send_s(shared.cluster, np.zeros(len(cases)), data),
            send_s(shared.cluster, ones, data),
        ),
        work_s,
        total(work.single) / work.stages,
    )


@dataclass(frozen=True, slots=True)
class Pools:
    """Pools of one kind: the unit of each, its copies, schedulers and devices."""

    units: Int
    copies: Int
    replicas: Float
    devices: Int

    def take(self, rows: Int) -> Pools:
        return Pools(self.units[rows], self.copies[rows], self.replicas[rows], self.devices[rows])


def pools_of(cases: Cases, splits: Int, max_devices: int) -> Pools:
    """The chosen splits in as many copies as ``most`` devices hold."""
    counts, n = [], 1
    while n <= max_devices:
        counts.append(n)
        n += max(n // EVERY_COPY, 1)
    units, copies = (grid.ravel() for grid in np.meshgrid(splits, np.array(counts), indexing="ij"))
    size = cases.devices
    fits = copies * size[units] <= max_devices
    units, copies = units[fits], copies[fits]
    return Pools(units, copies, (cases.dp[units] * copies).astype(float), copies * size[units])


def _pools_on_front(pools: Pools, columns: Float) -> Pools:
    """Pools that none of as many devices is as good as in every column, of which less is better."""
    values = np.minimum(columns, 1e12)
    order = np.lexsort((np.log(values + 1e-12).sum(axis=1), pools.devices))
    front: list[int] = []
    start = 0
    for row in order.tolist():
        if front and pools.devices[row] != pools.devices[front[-1]]:
            start = len(front)
        rivals = front[start:]
        if not rivals or not (values[rivals] <= values[row] * ALIKE).all(axis=1).any():
            front.append(row)
    return pools.take(np.sort(np.array(front, dtype=np.int64)))


def _common_pool_columns(shared: Setting, curves: Curves, pools: Pools, starts: Float) -> list[Any]:
    """Return what both kinds of pools are compared by: how surely they start, nodes, sending."""
    nodes = nodes_needed(
        [servers_of(shared, replace(curves.cases.take(pools.units), copies=pools.copies))],
        curves.cases.per_node[pools.units],
    )
    shortest = NEAR * total(curves.prompts.single).min()
    apart = NEAR * (curves.prompts.prompt_s * curves.cases.devices / curves.cases.dp).min()
    apart = apart / shared.cluster.devices
    sent = [np.floor(seconds[pools.units] / shortest) for seconds in curves.sent]
    # with a partner that is as wide, and with the narrowest
    link = [
        np.floor(send_seconds / pools.replicas / apart)
        for seconds in curves.sent
        for send_seconds in (seconds[pools.units], seconds.max())
    ]
    return [1 - starts[pools.units], nodes.astype(float), *sent, *link]


def counts_energy(problem: ServingProblem) -> bool:
    """Return whether pools are compared by their energy too."""
    limits = problem.request.objective.limits
    limits_energy = limits.watts is not None or limits.joules_per_token is not None
    return limits_energy or "energy" in problem.request.objective.goals


def stated_load(problem: ServingProblem) -> float | None:
    """The load of a workload; None where it is searched."""
    if problem.request.load_searched:
        return None
    return float(getattr(problem.workload, LOADS[problem.workload.mode]))


def _paces(problem: ServingProblem, *columns: str) -> bool:
    """Return whether a slower pool may be better by some columns, for what it leaves the other.

    In a closed loop of a stated load fewer requests wait for prompts where decoding takes longer,
    and fewer decode where prompts do, or where fewer are held.
    """
    objective = problem.request.objective
    if problem.workload.mode == "open" or stated_load(problem) is None:
        return False
    ranked = goals_of(problem.workload.mode)
    goals = {ranked[goal][0] for goal in objective.goals}
    limited = {rule.column for rule in LIMITS.values() if rule.bound(objective.limits) is not None}
    return bool((goals | limited) & set(columns))


def decode_front(problem: ServingProblem, shared: Setting, curves: Curves, pools: Pools) -> Pools:
    """Pools to decode in that none of as many devices beats at every number of sequences."""
    resident = pools.replicas * curves.limit[pools.units]
    sequences = np.geomspace(1.0, max(resident.max(), 1.0), POINTS)
    decoding = sequences / pools.replicas[:, None]
    steps = curves.step_at(pools.units[:, None], decoding)
    alike = _common_pool_columns(shared, curves, pools, curves.decodes)
    if _paces(problem, "ttft_s", "request_latency_s"):
        alike.append(steps**-PACED)
    if _paces(problem, "tpot_s", "request_latency_s"):
        alike.append(resident**PACED)
    if counts_energy(problem):
        work_s = curves.step_at(pools.units[:, None], decoding, work=True)
        alike.append(work_s / np.maximum(decoding, 1.0) * pools.devices[:, None])
    cached = pools.copies * curves.cached_requests[pools.units]
    if (load := stated_load(problem)) is not None:
        cached = (
            np.where(cached < load, 0.5, 1.0) if problem.workload.mode == "closed" else resident
        )
    room = 1 / np.array([resident, cached]).T
    return _pools_on_front(pools, np.column_stack([steps, room, *alike]))


def prefill_front(problem: ServingProblem, shared: Setting, curves: Curves, pools: Pools) -> Pools:
    """Pools to compute prompts in that none of as many devices beats at every rate."""
    prompts, senders = curves.prompts_of(pools.units[:, None]), pools.replicas[:, None]
    highest = pools.replicas / prompts.prompt_s[:, 0]
    rates = np.geomspace(highest.min() / 100, highest.max(), POINTS)
    waits = prompts.wait_s(rates / senders)
    ttft_s = waits + total(prompts.parts(prompts.together(rates / senders)))
    bunches = prompts.bunch_s(np.geomspace(1, 1024, 4) / senders)
    alike = _common_pool_columns(shared, curves, pools, curves.prefills)
    if _paces(problem, "tpot_s", "request_latency_s"):
        alike.append(ttft_s**-PACED)
    if counts_energy(problem):
        alike.append(curves.prompt_work_s[pools.units] * pools.devices / pools.replicas)
    return _pools_on_front(pools, np.column_stack([ttft_s, bunches, 1 / highest, *alike]))
