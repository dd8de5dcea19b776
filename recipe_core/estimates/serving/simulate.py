"""Percentiles of requests: the scheduler of one replica, simulated under its load.

``scheduler.Replica`` runs the requests; step times are interpolated on a grid of
``operators.serving_step_parts`` that is computed for all cases in one call.

A closed loop follows benchmark clients: ``PER_SLOT`` requests for each one in flight, the first of
which start at once. So simulated, the mean time to first token of published runs is off by the same
factor at every concurrency, and its ratio to the median (2.1 over 28 runs that state both) is near
the simulated 1.7; in a steady state the ratio is 1.0 and the mean half of what was measured. An
open loop has Poisson arrivals, measured after a warm-up. Queued requests (offline) and a static
batch start together.

Left out: that client and front end handle requests one by one; unequal load of data-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Float, Int
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.continuous_batching import request_overheads
from recipe_core.estimates.serving.kernels import Step, total
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.operators import serving_step_parts
from recipe_core.estimates.serving.rates import active_replicas, rank_looks
from recipe_core.estimates.serving.scheduler import Replica, Requests, Rules, StepTimes, run_replica
from recipe_core.estimates.serving.speculative import engine_step

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
FIGURES = ("ttft_s", "tpot_s", "request_latency_s")
NO_LIMITS: Mapping[str, float] = MappingProxyType({})
PER_SLOT = 10  # requests of a benchmark for each one in flight, as InferenceMAX sends
MOST = 40_960  # simulated requests of a replica; more take longer than an interactive answer may
_FEWEST = 400  # samples for a 99th percentile: short benchmarks are repeated
_OPEN = (1000, 20_000)  # fewest and most requests measured in an open loop
# grid points of prompt tokens, their context, decoding requests, their context
NODES = (24, 4, 16, 4)


@dataclass(frozen=True, slots=True)
class Spread:
    """Half-width of uniform lengths, as a share of the mean; 0 is exact.

    ``vllm bench serve --random-range-ratio`` draws lengths in this way. ``inputs``, ``outputs``:
    lengths over their mean that are drawn instead, ascending, where they have a shape.
    """

    input: float = 0.0
    output: float = 0.0
    inputs: tuple[float, ...] = ()
    outputs: tuple[float, ...] = ()

    @property
    def longest_input(self) -> float:
        """The longest prompt, over the mean."""
        return self.inputs[-1] if self.inputs else 1 + self.input

    @property
    def longest_output(self) -> float:
        """The longest answer, over the mean."""
        return self.outputs[-1] if self.outputs else 1 + self.output


EXACT = Spread()
# Default: InferenceMAX and ATOM draw lengths from 0.8 to 1.0 of nominal. With exact lengths
# requests would start and end in waves for ever.
TYPICAL = Spread(0.1, 0.1)


@dataclass(frozen=True, slots=True)
class Simulation(Columns):
    """Means and percentiles over requests by metric, and throughput of the whole deployment.

    One number per case, NaN where nothing was simulated. goodput_per_s: requests per second that
    keep all limits; NaN without limits.
    """

    means_s: dict[str, Float]
    percentiles_s: dict[str, dict[float, Float]]
    output_tokens_per_s: Float
    goodput_per_s: Float


@dataclass(frozen=True, slots=True)
class TimeScales(Columns):
    """Factors on the times and rates of a simulation, one number per case."""

    ttft: Float
    tpot: Float
    rate: Float

    def of_samples(self, samples: Mapping[str, Float], row: int) -> dict[str, Float]:
        """Samples of a case by metric, scaled; a request is its first token and the others."""
        first_s, decode_s = samples["ttft_s"], samples["request_latency_s"] - samples["ttft_s"]
        ttft_s, tpot_s = first_s * self.ttft[row], samples["tpot_s"] * self.tpot[row]
        latency_s = ttft_s + decode_s * self.tpot[row]
        return dict(zip(FIGURES, (ttft_s, tpot_s, latency_s), strict=True))


def requests_each(setting: Setting, cases: Cases) -> Int:
    """Requests to simulate for one replica (one per case); above ``MOST`` a case is skipped."""
    load = _replica_load(setting, cases)
    if setting.mode == "closed":
        once = PER_SLOT * np.maximum(np.round(load), 1)
        count = once * np.ceil(_FEWEST / once)
    elif setting.mode == "open":
        zero = np.zeros(len(cases))
        step = Step(zero, zero, zero + 1, cases.input_tokens, zero + 1)
        step_s = total(serving_step_parts(setting, cases, step))
        # thirty times what is in flight on a quiet replica, so that percentiles settle
        count = np.clip(30 * load * cases.output_tokens * step_s, *_OPEN)
    else:
        count = np.maximum(np.round(load), 1)
    return np.asarray(np.minimum(count, 2**62), dtype=np.int64)


def _replica_load(setting: Setting, cases: Cases) -> Float:
    """Requests in flight or queued, or arrivals per second, of one replica."""
    return cases.load / (cases.replicas if setting.mode == "open" else active_replicas(cases))


def simulate_serving(
    setting: Setting,
    cases: Cases,
    memory: Memory,
    *,
    spread: Spread = TYPICAL,
    requests: int | None = None,
    percentiles: Sequence[float] = PERCENTILES,
    limits: Mapping[str, float] = NO_LIMITS,
    seed: int = 0,
    scales: TimeScales | None = None,
) -> Simulation:
    """Latency of requests under the setting's load: means, percentiles, goodput.

    Args:
        setting: what all cases share.
        cases: the cases; each should be one that can run.
        memory: of the same cases.
        spread: of lengths around their means; a static batch has exact ones.
        requests: per replica, in one benchmark of a closed loop; default ``requests_each``.
        percentiles: between 0 and 100.
        limits: seconds that a request must not exceed to count as good, by metric.
        seed: of lengths and arrivals, the same for all cases; equal seeds give equal answers.
        scales: factors on what is simulated.
    """
    counts = np.full(len(cases), requests) if requests else requests_each(setting, cases)
    rows = np.flatnonzero(counts <= MOST)
    columns, spread = cases.take(rows), spread if setting.mode != "static" else EXACT
    times, load = _step_times(setting, columns, spread), _replica_load(setting, columns)
    means = {figure: np.full(len(cases), np.nan) for figure in FIGURES}
    tails = {figure: {p: np.full(len(cases), np.nan) for p in percentiles} for figure in FIGURES}
    rates, good = np.full(len(cases), np.nan), np.full(len(cases), np.nan)
    looks = rank_looks(setting, cases, memory)
    for n, row in enumerate(rows):
        traffic = _Traffic(setting, columns, n, float(load[n]), spread, np.random.default_rng(seed))
        rules = scheduler_rules(setting, columns, n, float(memory.kv_cache_tokens[row]))
        rules = replace(rules, recv_interval=max(rules.recv_interval, int(looks[row])))
        samples, rates[row], requests_per_s = _measure_replica(
            rules, times[n], traffic, int(counts[row]), repeats=requests is None
        )
        if scales is not None:
            samples = scales.of_samples(samples, int(row))
            rates[row] *= scales.rate[row]
            requests_per_s *= scales.rate[row]
        if limits:
            passes = [samples[figure] <= limit for figure, limit in limits.items()]
            good[row] = requests_per_s * np.mean(np.all(passes, axis=0))
        for figure, values in samples.items():
            means[figure][row] = values.mean()
            for p, value in zip(percentiles, np.percentile(values, percentiles), strict=True):
                tails[figure][p][row] = value
        budget.count_step()
    return Simulation(means, tails, active_replicas(cases) * rates, active_replicas(cases) * good)


def _measure_replica(
    rules: Rules, times: StepTimes, traffic: _Traffic, count: int, *, repeats: bool
) -> tuple[dict[str, Float], float, float]:
    """Samples by metric over ``count`` requests, output tokens and requests per second."""
    # short closed benchmarks are repeated until there are enough samples
    once = PER_SLOT * traffic.in_flight if traffic.mode == "closed" and repeats else count
    runs = [traffic.through(rules, times, once) for _ in range(max(count // once, 1))]
    samples = {figure: np.concatenate([run[figure] for run, _, _ in runs]) for figure in FIGURES}
    seconds = sum(seconds for _, _, seconds in runs)
    tokens_per_s = sum(tokens for _, tokens, _ in runs) / seconds
    return samples, tokens_per_s, traffic.scale * len(samples[FIGURES[0]]) / seconds


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Requests of one replica of a case; ``load``: in flight, queued, or arriving per second."""

    setting: Setting
    cases: Cases
    row: int
    load: float
    spread: Spread
    rng: np.random.Generator

    @property
    def mode(self) -> str:
        return self.setting.mode

    @property
    def in_flight(self) -> int:
        """Requests of a closed loop."""
        return max(round(self.load), 1)

    @property
    def scale(self) -> float:
        """Load of a replica over what is simulated: replicas need not divide the load evenly."""
        return self.load / self.in_flight if self.mode == "closed" else 1.0

    def through(
        self, rules: Rules, times: StepTimes, count: int
    ) -> tuple[dict[str, Float], float, float]:
        """Sends ``count`` requests; samples by metric, output tokens, and seconds.

        An open loop gets requests before and after them as well, which are not counted.
        """
        before, after = (count // 4, count // 8) if self.mode == "open" else (0, 0)
        requests, delays = self._requests(before + count + after)
        sent = self._sent(before + count + after)
        replica = Replica(rules, times, requests)
        order = run_replica(replica, sent, delays, closed=self.mode == "closed")
        counted = np.array(order[before : before + count])
        at, first, done, outputs = (
            np.array(values, dtype=float)[counted]
            for values in (sent, requests.first, requests.done, requests.outputs)
        )
        if self.mode == "static":
            first = np.full(count, first.max())  # a batch has its first tokens together
        late_steps, held_tokens = client_delays(
            self.setting, float(self.cases.stream_interval[self.row])
        )
        first, done, tpot_s = reach_client(first, done, outputs, late_steps, held_tokens)
        ttft_s, latency_s = first - at, done - at
        began = requests.done[order[before - 1]] if before else 0.0
        samples = dict(zip(FIGURES, (ttft_s, tpot_s, latency_s), strict=True))
        return samples, self.scale * outputs.sum(), done.max() - began

    def _sent(self, count: int) -> list[float]:
        """Times at which requests are sent; in a closed loop those that start it."""
        if self.mode == "open":
            arrivals: list[float] = np.cumsum(self.rng.exponential(1 / self.load, count)).tolist()
            return arrivals
        return [0.0] * (min(self.in_flight, count) if self.mode == "closed" else count)

    def _requests(self, count: int) -> tuple[Requests, list[float]]:
        """So many requests, and the seconds from sending each to the scheduler."""
        cases, row = self.cases, self.row
        mean_input, mean_output = float(cases.input_tokens[row]), float(cases.output_tokens[row])
        longest = int(cases.accepted_tokens[row])
        if self.spread.inputs:
            inputs = self._shaped(mean_input, self.spread.inputs, count, longest - 1)
        else:
            inputs = self._lengths(mean_input, self.spread.input, count)
        if self.spread.outputs:
            outputs = self._shaped(mean_output, self.spread.outputs, count, longest)
            outputs = [min(n, longest - prompt) for n, prompt in zip(outputs, inputs, strict=True)]
        else:
            outputs = self._lengths(mean_output, self.spread.output, count)
        served = self.mode != "static"  # a batch is measured without a server
        fixed_s, token_s = request_overheads(self.setting)
        awaited_s, hit = float(cases.kv_wait_s[row]), float(cases.prefix_hit[row])
        # a queue keeps its order, whatever the lengths
        read = [mean_input] * count if self.mode == "offline" and self.spread.inputs else inputs
        delays = [served * (fixed_s + token_s * tokens) + awaited_s for tokens in read]
        return Requests(inputs, outputs, [int(tokens * hit) for tokens in inputs]), delays

    def _shaped(
        self, mean: float, relative: tuple[float, ...], count: int, longest: int
    ) -> list[int]:
        """Lengths drawn from a shape, none longer than requests may be.

        One from each of ``count`` even parts of it, in any order, so that means are met.
        """
        places = (self.rng.permutation(count) + self.rng.random(count)) / count
        drawn = np.asarray(relative)[(places * len(relative)).astype(np.int64)]
        lengths: list[int] = np.clip(np.rint(mean * drawn), 1, longest).astype(np.int64).tolist()
        return lengths

    def _lengths(self, mean: float, spread: float, count: int) -> list[int]:
        low, high = round(mean * (1 - spread)), round(mean * (1 + spread))
        lengths: list[int] = np.maximum(self.rng.integers(low, high + 1, count), 1).tolist()
        return lengths


def client_delays(setting: Setting, stream_interval: float) -> tuple[float, float]:
    """Steps until a token is with its client, and tokens that the first waits for.

    A static batch has no server.
    """
    intervals = setting.engine.intervals
    waits = intervals is not None and intervals.first_token_waits
    held_tokens = stream_interval - 1 if waits and setting.mode in ("closed", "open") else 0.0
    late_steps = setting.engine.overhead(setting.cluster.device.runtime).late_steps
    return (late_steps if setting.mode != "static" else 0.0), max(held_tokens, 0.0)


def reach_client(
    first: Float, done: Float, outputs: Float, late_steps: float, held_tokens: float
) -> tuple[Float, Float, Float]:
    """Return when first and last tokens are with their clients, and seconds between tokens.

    One number a request: ``first`` and ``done`` are the engine's, infinite where it made none;
    ``late_steps`` count tokens of a request.
    """
    more = np.maximum(outputs - 1, 1)
    with np.errstate(invalid="ignore"):
        token_s = (done - first) / more
        late_s = late_steps * token_s
        held_s = np.minimum(held_tokens, outputs - 1) * token_s
        first, done = first + held_s + late_s, done + late_s
        return first, done, (done - first) / more


def scheduler_rules(setting: Setting, cases: Cases, row: int, pool_tokens: float) -> Rules:
    """Return the rules of a replica of a case with a cache of so many tokens."""
    chunked, static = setting.engine.chunked_prefill, setting.mode == "static"
    slots = int(cases.max_num_seqs[row])
    if setting.engine.memory.whole_contexts and not static:
        slots = max(min(slots, int(pool_tokens / cases.accepted_tokens[row])), 1)
    return Rules(
        step_tokens=float(cases.max_batched_tokens[row]),
        slots=slots,
        pool_tokens=pool_tokens,
        block_tokens=float(cases.block_tokens[row]),
        stages=int(cases.pp[row]),
        reserves=setting.engine.memory.reserves and not static,
        chunked=chunked,
        mixes=chunked and setting.engine.mixes_prompts and not static,
        recv_interval=int(cases.recv_interval[row]) if setting.mode in ("closed", "open") else 1,
    )


def _step_times(setting: Setting, cases: Cases, spread: Spread) -> list[StepTimes]:
    """The grids of all cases, computed in one call."""
    longest_input = cases.input_tokens * spread.longest_input
    longest = longest_input + cases.output_tokens * spread.longest_output
    if spread.inputs or spread.outputs:
        longest_input = np.minimum(longest_input, cases.accepted_tokens)
        longest = np.minimum(longest, cases.accepted_tokens)
    shortest = spread.inputs[0] if spread.inputs else 1 - spread.input
    step_tokens = cases.max_batched_tokens
    if not setting.engine.chunked_prefill:  # a whole prompt runs in one step
        step_tokens = np.maximum(step_tokens, longest_input)
    slots = cases.max_num_seqs
    if setting.mode != "open":
        slots = np.minimum(slots, _replica_load(setting, cases))
    axes = [
        geometric_nodes(step_tokens, NODES[0]),
        np.linspace(0, longest_input, NODES[1], axis=1),
        geometric_nodes(slots / cases.pp, NODES[2]),
        np.linspace(cases.input_tokens * shortest, longest, NODES[3], axis=1),
    ]
    seconds = tabulate_steps(setting, cases, axes)
    return [
        StepTimes([axis[i].tolist() for axis in axes], seconds[i].tolist())
        for i in range(len(cases))
    ]


def tabulate_steps(setting: Setting, cases: Cases, axes: Sequence[Float]) -> Float:
    """Return seconds of steps on the grids of cases.

    axes: those of ``StepTimes``, each of shape (cases, nodes). The result has a row for each case
    and then their nodes.
    """
    nodes = [axis.shape[1] for axis in axes]
    shape = (len(cases), *nodes)
    tokens, prefill_context, sequences, context = (
        np.broadcast_to(np.expand_dims(axis, _other_axes(n)), shape).reshape(-1)
        for n, axis in enumerate(axes)
    )
    columns = cases.take(np.repeat(np.arange(len(cases)), int(np.prod(nodes))))
    prompts = np.where(tokens > 0, np.maximum(tokens / columns.input_tokens, 1.0), 0.0)
    queries = 1 + columns.draft_tokens if cases.draft_tokens.any() else 1.0
    sampled = sequences * queries + prompts
    step = Step(tokens, prefill_context, sequences, context, sampled, queries)
    seconds = total(engine_step(setting, columns, step))
    if cases.kv_step_s.any():  # by the share of a prompt that a step computes
        new_tokens = np.maximum(columns.input_tokens * (1 - columns.prefix_hit), 1.0)
        seconds = seconds + columns.kv_step_s * tokens / new_tokens
    return np.broadcast_to(seconds, sequences.shape).reshape(shape)


def _other_axes(axis: int) -> tuple[int, ...]:
    """Axes of the grid, after that of the cases, without one of them."""
    return tuple(n + 1 for n in range(4) if n != axis)


def geometric_nodes(highest: Float, count: int) -> Float:
    """Return nodes from 1 to the highest of each case, at least 2, after a zero.

    Zero: no prompt tokens, or nothing that decodes. Shape (cases, count).
    """
    nodes = np.geomspace(1, np.maximum(highest, 2), count - 1, axis=1)
    return np.concatenate([np.zeros((len(nodes), 1)), nodes], axis=1)
