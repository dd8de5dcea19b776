"""The service of one replica, from the same physics as its plan.

Step times are those of ``estimates/serving/operators``, as the plan's row has them, at the mean
context of the requests: for a number of requests that decode, and for prompt tokens beside them. A
replica is one server: a data-parallel group that shares experts is one, its ranks work side by
side; other data-parallel replicas are servers of their own. Scales that own runs taught multiply
steps and prompts, so that queues grow with them.

Left out: steps that grow with the context of the requests that happen to be inside (their mean
counts), requests that are put back when the cache overflows (a request is admitted when what it
holds on average fits), looks for requests every so many steps only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.continuous_batching import request_overheads
from recipe_core.estimates.serving.kernels import Step, total
from recipe_core.estimates.serving.operators import serving_step_parts
from recipe_core.estimates.serving.pooling import most_prompts
from recipe_core.estimates.serving.speculative import engine_step, tokens_per_step
from recipe_core.plans.plan import Plan
from recipe_core.plans.splits import row_estimates
from recipe_core.scaling.fleet import Service
from recipe_core.scaling.replica import Records, Replica, Steps
from recipe_core.scaling.traces.loads import Lengths

POINTS = 14
# Requests of a point: fewest, and for each one in flight.
_EACH = (300, 3)
_KEPT = 32
_curves: OrderedDict[tuple[bytes, ...], Curve] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Curve:
    """By requests in flight in one replica, increasing from 0: ends per second, and mean times.

    ttft_s counts from the moment at which a request enters. full: requests in flight beyond which
    more of them only wait; fastest: ends per second there.
    """

    in_flight: Float
    rate: Float
    ttft_s: Float
    tpot_s: Float
    full: float
    fastest: float

    def now(self, running: Float, waiting: Float) -> tuple[Float, Float]:
        """Times to first token and between tokens of a request now, by numbers of one replica."""
        inside = np.minimum(running, self.full)
        wait_s = np.maximum(running + waiting - self.full, 0.0) / self.fastest
        ttft_s = np.interp(inside, self.in_flight, self.ttft_s)
        return ttft_s + wait_s, np.interp(inside, self.in_flight, self.tpot_s)


def curve_of(service: Service, lengths: Lengths) -> Curve:
    """The curve of a service and lengths; the same ones are computed once."""
    arrays = (lengths.input_tokens, lengths.output_tokens, lengths.weight)
    numbers = [getattr(service, name) for name in service.__dataclass_fields__]
    key = (*(np.asarray(n, dtype=float).tobytes() for n in numbers), *(a.tobytes() for a in arrays))
    if key not in _curves:
        _curves[key] = _measure_curve(service, lengths)
        if len(_curves) > _KEPT:
            _curves.popitem(last=False)
    _curves.move_to_end(key)
    return _curves[key]


def share_alone(service: Service, lengths: Lengths, limits_s: Mapping[str, float]) -> float:
    """Share of the requests that keep limits on a replica that nobody else uses.

    The time of a prompt is that of its tokens in full steps, so that no shorter one is slower.
    """
    tokens = service.computed(lengths.input_tokens)
    lanes = service.stages * service.ranks
    chunk = max(service.chunk_tokens, float(tokens.max()) if not service.chunked else 1.0)
    token_s = (float(service.step_s[0]) + Steps(service).prompt_s(chunk / lanes, 1)) / chunk
    ttft_s = service.request_s + np.maximum(tokens * token_s, float(service.step_s[0]))
    tpot_s = float(service.step_s[min(1, len(service.step_s) - 1)]) / service.tokens_per_step
    times = {
        "ttft_s": ttft_s,
        "tpot_s": np.full_like(ttft_s, tpot_s),
        "request_latency_s": ttft_s + (lengths.output_tokens - 1) * tpot_s,
    }
    keeps_limits = np.all([times[name] <= limit for name, limit in limits_s.items()], axis=0)
    return float((keeps_limits * lengths.weight).sum() / lengths.weight.sum())


def sample_lengths(lengths: Lengths, count: int, rng: np.random.Generator) -> tuple[Float, Float]:
    """Input and output tokens of so many requests, in a random order.

    Each length comes as often as its weight says (a systematic sample), so that no chance of the
    draw is in their means.
    """
    reached = np.cumsum(lengths.weight) / lengths.weight.sum()
    places = (np.arange(count) + rng.random()) / max(count, 1)
    indices = np.minimum(np.searchsorted(reached, places), len(reached) - 1)
    indices = rng.permutation(indices)
    return lengths.input_tokens[indices], lengths.output_tokens[indices]


def sample_begun_requests(
    lengths: Lengths, begun: int, count: int, rng: np.random.Generator
) -> tuple[Float, Float]:
    """So many requests, the first of which have a part of their answer behind them.

    Those that are met inside are the longer the more of them there is to do.
    """
    inputs, outputs = sample_lengths(lengths, count - begun, rng)
    longer = Lengths(
        lengths.input_tokens, lengths.output_tokens, lengths.weight * lengths.output_tokens
    )
    first_in, first_out = sample_lengths(longer, begun, rng)
    first_out = np.maximum(np.ceil(first_out * rng.random(begun)), 1.0)
    return np.concatenate([first_in, inputs]), np.concatenate([first_out, outputs])


def max_requests_inside(service: Service, lengths: Lengths) -> float:
    """Requests of the mean lengths that a replica holds at once."""
    cache_tokens = service.cache_tokens(lengths.input_tokens, lengths.output_tokens)
    mean = float(np.average(cache_tokens, weights=lengths.weight))
    return max(min(float(service.slots), service.pool_tokens / mean), 1.0)


def _measure_curve(service: Service, lengths: Lengths) -> Curve:
    most_in_flight = int(max_requests_inside(service, lengths))
    counts = np.unique(np.round(np.geomspace(1, most_in_flight, POINTS)).astype(np.int64))
    steps = Steps(service)
    rate, ttft_s, tpot_s = (
        np.array(figures)
        for figures in zip(
            *(measure_closed_loop(steps, lengths, int(n)) for n in counts), strict=True
        )
    )
    rate = np.maximum.accumulate(rate)
    fastest = float(rate[-1])
    full = float(np.interp(0.995 * fastest, rate, counts))
    nodes = np.append(np.append(0.0, counts[counts < full]), full)
    inside = nodes[1:]
    return Curve(
        nodes,
        np.append(0.0, np.append(np.interp(inside[:-1], counts, rate), fastest)),
        np.append(ttft_s[0], np.interp(inside, counts, ttft_s)),
        np.append(tpot_s[0], np.interp(inside, counts, tpot_s)),
        full,
        fastest,
    )


def measure_closed_loop(
    steps: Steps, lengths: Lengths, in_flight: int
) -> tuple[float, float, float]:
    """Ends per second, mean seconds to first token from entering, and between tokens."""
    more = max(_EACH[0], _EACH[1] * in_flight)
    # those that come last keep the replica full until the counted ones have ended
    records, outputs = run_closed_loop(steps, lengths, in_flight, more + 2 * in_flight)
    first, entered, done = (np.array(t) for t in (records.first, records.entered, records.done))
    start_s, end_s = (np.sort(entered)[in_flight + k] for k in (more // 4, more - 1))
    inside_s = np.clip(done, start_s, end_s) - np.clip(entered, start_s, end_s)
    begun = np.arange(len(outputs)) < in_flight
    # each counts by how much of its stay is within; the first have no whole stay
    parts = np.where(begun, 0.0, inside_s / np.maximum(done - entered, 1e-12))
    whole_s = max(float(inside_s[~begun].sum()), 1e-12)
    rate = float(parts.sum()) / whole_s * float(inside_s.sum()) / max(end_s - start_s, 1e-12)
    counted = ~begun & (entered >= start_s) & (entered <= end_s)
    tokens = np.maximum(outputs - 1, 0.0)[counted].sum()
    tpot_s = float((done - first)[counted].sum() / tokens) if tokens else 0.0
    return rate, float((first - entered)[counted].mean()), tpot_s


def run_closed_loop(
    steps: Steps, lengths: Lengths, in_flight: int, count: int
) -> tuple[Records, Float]:
    """A replica with always so many requests in flight, until so many more have come.

    Returns its records and the output tokens of each request.
    """
    rng = np.random.default_rng(7)
    inputs, outputs = sample_begun_requests(lengths, in_flight, in_flight + count, rng)
    records = Records.of(steps.service, inputs, outputs)
    records.prompt[:in_flight] = [1.0] * in_flight
    replica = Replica(0, steps, records)
    for request in range(in_flight):
        replica.add(0.0, request)
    coming = in_flight
    while replica.in_flight:
        now = replica.next_at
        for _ in replica.step():
            if coming < in_flight + count:
                replica.add(now, coming)
                coming += 1
    return records, outputs


# Points at which steps are computed: requests that decode, and prompt tokens.
NODES = (20, 24)


def service_of(plan: Plan, row: int, lengths: Lengths | None = None) -> Service:
    """Return how one server of a plan's row serves.

    Args:
        plan: of a serving request.
        row: of the plan; one that runs.
        lengths: of requests, for the mean context of steps; left out, those of the row's workload.

    Raises:
        NoAnswer: for a split with a prefill pool, whose two pools are scaled apart; a static batch
            has no server.
    """
    block, i = plan.at(row)
    setting, cases = block.setting, block.cases.take([i])
    _refuse_unserved_split(setting, cases)
    estimates, place = row_estimates(plan, row)
    memory = estimates.memory.take(np.array([place]))
    cases = estimates.cases.take(np.array([place]))  # with the prompts that its caches find
    scales = setting.correction.scales(cases) if setting.correction else None
    steps, prompts = (scales.steps[0], scales.prompts[0]) if scales is not None else (1.0, 1.0)
    if not setting.model.generates:
        fullest = int(most_prompts(setting, cases, memory)[0])
        return _pooling_service(setting, cases, max(fullest, 1), float(prompts))
    ranks = int(cases.dp[0]) if bool(cases.shares_experts[0]) else 1
    return _generating_service(
        setting,
        cases,
        ranks,
        float(memory.kv_cache_tokens[0]) * ranks if setting.caches else np.inf,
        (float(steps), float(prompts)),
        lengths or _own_lengths(cases),
    )


def _refuse_unserved_split(setting: Setting, cases: Cases) -> None:
    if bool(cases.disaggregated[0]):
        raise NoAnswer(
            "this split has a prefill pool of its own; over time only servers that compute "
            "prompts themselves are simulated.",
            field="candidate",
            hint="Choose a split without a prefill pool.",
        )
    if setting.mode == "static":
        raise NoAnswer(
            "mode static is one batch without a server; it has no load over time.",
            field="workload.mode",
            hint="Use mode open with request_rate.",
        )


def _own_lengths(cases: Cases) -> Lengths:
    return Lengths(cases.input_tokens, cases.output_tokens, np.ones(1))


def _generating_service(
    setting: Setting,
    cases: Cases,
    ranks: int,
    pool_tokens: float,
    scales: tuple[float, float],
    lengths: Lengths,
) -> Service:
    stages, slots = int(cases.pp[0]), int(cases.max_num_seqs[0]) * ranks
    chunk = float(cases.max_batched_tokens[0])
    if not setting.engine.chunked_prefill:  # a whole prompt runs in one step
        chunk = max(chunk, float(lengths.input_tokens.max()))
    mixes = setting.engine.chunked_prefill and setting.engine.mixes_prompts
    sequences = _geometric_from_zero(max(slots / stages / ranks, 2.0), NODES[0])
    tokens = _geometric_from_zero(max(chunk, 2.0), NODES[1])
    seconds = _grid_s(setting, cases, sequences, tokens, lengths)
    lanes = np.arange(slots + 1) / (stages * ranks)
    lanes[1:] = np.maximum(lanes[1:], 1.0)
    step_s = np.interp(lanes, sequences, seconds[:, 0]) * scales[0]
    added = np.maximum(seconds - seconds[:, :1], 0.0) * scales[1]
    if not mixes:
        added = np.broadcast_to(added[:1], added.shape)
    prompt_s = np.stack([np.interp(lanes, sequences, column) for column in added.T], axis=1)
    fixed_s, token_s = request_overheads(setting)
    intervals, device = setting.engine.intervals, setting.cluster.device
    waits = intervals is not None and intervals.first_token_waits
    reserves = setting.engine.memory.reserves
    return Service(
        slots=slots,
        step_s=step_s,
        token_s=float((prompt_s[slots // 2, -1] - prompt_s[slots // 2, 1]) / (chunk - 1)),
        chunk_tokens=float(cases.max_batched_tokens[0]) * stages * ranks,
        pool_tokens=pool_tokens,
        block_tokens=float(cases.block_tokens[0]),
        request_s=(fixed_s + float(cases.kv_wait_s[0])) * scales[1],
        request_token_s=token_s * scales[1],
        prefix_hit=float(cases.prefix_hit[0]),
        prompt_tokens=tokens,
        prompt_s=prompt_s,
        tokens_per_step=float(tokens_per_step(cases.draft_tokens, cases.acceptance)[0]),
        held_share=1.0 if reserves else 0.5,
        chunked=setting.engine.chunked_prefill,
        mixes=mixes,
        stages=stages,
        ranks=ranks,
        late_steps=setting.engine.overhead(device.runtime).late_steps,
        held_tokens=max(float(cases.stream_interval[0]) - 1, 0.0) if waits else 0.0,
    )


def _grid_s(
    setting: Setting, cases: Cases, sequences: Float, tokens: Float, lengths: Lengths
) -> Float:
    """Seconds of a step, shape (sequences, prompt tokens), at the mean contexts of requests.

    Those that decode are met as often as they take steps; prompt tokens as often as they are.
    """
    n, p = (axis.reshape(-1) for axis in np.meshgrid(sequences, tokens, indexing="ij"))
    inputs, outputs, weight = lengths.input_tokens, lengths.output_tokens, lengths.weight
    context = np.average(inputs + outputs / 2, weights=weight * outputs)
    computed = np.maximum(inputs * (1 - float(cases.prefix_hit[0])), 1.0)
    attended = np.average(inputs - computed / 2, weights=weight * computed)
    prompts = np.where(p > 0, np.maximum(p / np.average(inputs, weights=weight), 1.0), 0.0)
    columns = cases.take(np.zeros(len(n), dtype=np.int64))
    queries = 1 + columns.draft_tokens
    step = Step(
        p,
        np.where(p > 0, attended, 0.0),
        n,
        np.where(n > 0, context, 0.0),
        n * queries + prompts,
        queries,
    )
    seconds = total(engine_step(setting, columns, step))
    seconds = seconds + columns.kv_step_s * p / np.average(computed, weights=weight)
    return np.broadcast_to(seconds, n.shape).reshape(len(sequences), len(tokens))


def _pooling_service(setting: Setting, cases: Cases, fullest: int, scale: float) -> Service:
    """The service of a server whose requests end with their prompt: embeddings and scores."""
    fixed_s, token_s = request_overheads(setting)
    prompt = max(float(cases.input_tokens[0]) * (1 - float(cases.prefix_hit[0])), 1.0)
    chunk = max(float(cases.max_batched_tokens[0]), prompt)
    tokens = _geometric_from_zero(max(min(chunk, fullest * prompt), 2.0), NODES[1])
    zero = np.zeros(len(tokens))
    context = np.full(len(tokens), float(cases.input_tokens[0]) - prompt / 2)
    columns = cases.take(np.zeros(len(tokens), dtype=np.int64))
    step = Step(tokens, np.where(tokens > 0, context, 0.0), zero, zero, zero)
    seconds = total(serving_step_parts(setting, columns, step)) * scale
    front = setting.engine.front_s
    if front is not None:  # the front end takes requests one after the other
        seconds = np.maximum(seconds, front.value * tokens / prompt)
    stages = int(cases.pp[0])
    slots = fullest * stages
    added = seconds - seconds[0]
    return Service(
        slots=slots,
        step_s=np.full(slots + 1, seconds[0]),
        token_s=float(added[-1] / tokens[-1]),
        chunk_tokens=float(tokens[-1]) * stages,
        pool_tokens=np.inf,
        request_s=fixed_s * scale,
        request_token_s=token_s * scale,
        prefix_hit=float(cases.prefix_hit[0]),
        prompt_tokens=tokens,
        prompt_s=np.broadcast_to(added, (slots + 1, len(added))),
        chunked=not setting.whole_prompts,
        stages=stages,
    )


def _geometric_from_zero(highest: float, count: int) -> Float:
    """Points from 1 to ``highest``, each so many times the one before, after a 0."""
    return np.concatenate([np.zeros(1), np.geomspace(1.0, highest, count - 1)])
