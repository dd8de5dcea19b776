"""The service of one replica, from the same physics as its plan.

Rules and step times are those of ``estimates/serving/simulate``, for the lengths of the load. A
replica is one server: a data-parallel group that shares experts is one, its ranks work side by
side; other data-parallel replicas are servers of their own. Scales that own runs taught multiply
steps and prompts, so that queues grow with them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.continuous_batching import request_overheads
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.pooling import most_prompts
from recipe_core.estimates.serving.scheduler import (
    Replica,
    Requests,
    Rules,
    StepTimes,
    run_replica,
)
from recipe_core.estimates.serving.simulate import (
    NODES,
    client_delays,
    geometric_nodes,
    scheduler_rules,
    tabulate_steps,
)
from recipe_core.estimates.serving.speculative import tokens_per_step
from recipe_core.plans.plan import Plan
from recipe_core.plans.splits import row_estimates
from recipe_core.scaling.fleet import Service, computed_tokens
from recipe_core.scaling.traces.loads import Lengths

ENDLESS = 1e15  # tokens of a cache that nothing fills
POINTS = 14
# Requests of a point: fewest, and for each one in flight.
_EACH = (300, 3)
_KEPT = 32
_curves: OrderedDict[tuple[object, ...], Curve] = OrderedDict()


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
    key = (service, *(array.tobytes() for array in arrays))
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
    attended, context = mean_contexts(lengths, service.prefix_hit)
    token_s = _prompt_token_s(service, lengths, 0)
    fixed_s = service.times.mixed_s(0.0, attended, 0, context)
    ttft_s = service.request_s + np.maximum(
        computed_tokens(lengths.input_tokens, service.prefix_hit) * token_s, fixed_s
    )
    tpot_s = service.times.decode_s(1.0, context) / service.rules.tokens_per_step
    times = {
        "ttft_s": ttft_s,
        "tpot_s": np.full_like(ttft_s, tpot_s),
        "request_latency_s": ttft_s + (lengths.output_tokens - 1) * tpot_s,
    }
    keeps_limits = np.all([times[name] <= limit for name, limit in limits_s.items()], axis=0)
    return float((keeps_limits * lengths.weight).sum() / lengths.weight.sum())


def prompt_seconds(service: Service, lengths: Lengths) -> float:
    """Seconds that a replica takes for a mean prompt where prompts fill its steps."""
    computed = np.average(
        computed_tokens(lengths.input_tokens, service.prefix_hit), weights=lengths.weight
    )
    beside = 1 if service.rules.mixes else 0
    return _prompt_token_s(service, lengths, beside) * float(computed)


def _prompt_token_s(service: Service, lengths: Lengths, beside: int) -> float:
    """Seconds of a prompt token in full steps in which so many requests decode."""
    rules, tokens = service.rules, service.rules.step_tokens
    if not rules.chunked:  # a whole prompt runs in one step
        tokens = max(tokens, float(computed_tokens(lengths.input_tokens, service.prefix_hit).max()))
    attended, context = mean_contexts(lengths, service.prefix_hit)
    return service.times.mixed_s(tokens, attended, beside, context) / (tokens * rules.batches)


def mean_contexts(lengths: Lengths, prefix_hit: float) -> tuple[float, float]:
    """Return the contexts that a prompt token and a decoding request attend to on average.

    Those that decode are met as often as they take steps; prompt tokens as often as they are.
    """
    inputs, outputs, weight = lengths.input_tokens, lengths.output_tokens, lengths.weight
    computed = computed_tokens(inputs, prefix_hit)
    attended = np.average(inputs - computed / 2, weights=weight * computed)
    return float(attended), float(np.average(inputs + outputs / 2, weights=weight * outputs))


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

    That part is counted with their prompt. Those that are met inside are the longer the more of
    them there is to do.
    """
    inputs, outputs = sample_lengths(lengths, count - begun, rng)
    longer = Lengths(
        lengths.input_tokens, lengths.output_tokens, lengths.weight * lengths.output_tokens
    )
    first_in, first_out = sample_lengths(longer, begun, rng)
    left = np.maximum(np.ceil(first_out * rng.random(begun)), 1.0)
    begun_in = first_in + np.maximum(first_out - left, 0.0)
    return np.concatenate([begun_in, inputs]), np.concatenate([left, outputs])


def requests_of(
    service: Service, inputs: Float | Int, outputs: Float | Int, begun: int
) -> Requests:
    """Requests of such lengths, of the first of which all is computed but a token."""
    requests = service.requests(inputs, outputs)
    requests.cached[:begun] = requests.inputs[:begun]
    return requests


def max_requests_inside(service: Service, lengths: Lengths) -> float:
    """Requests of the mean lengths that a replica holds at once."""
    rules = service.rules
    cache_tokens = lengths.input_tokens + lengths.output_tokens * (1.0 if rules.reserves else 0.5)
    mean = float(np.average(cache_tokens + rules.block_tokens / 2, weights=lengths.weight))
    return max(min(float(rules.slots), rules.pool_tokens / mean), 1.0)


def _measure_curve(service: Service, lengths: Lengths) -> Curve:
    most_in_flight = int(max_requests_inside(service, lengths))
    counts = np.unique(np.round(np.geomspace(1, most_in_flight, POINTS)).astype(np.int64))
    rate, ttft_s, tpot_s = (
        np.array(figures)
        for figures in zip(
            *(measure_closed_loop(service, lengths, int(n)) for n in counts), strict=True
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
    service: Service, lengths: Lengths, in_flight: int
) -> tuple[float, float, float]:
    """Ends per second, mean seconds to first token from entering, and between tokens."""
    more = max(_EACH[0], _EACH[1] * in_flight)
    # those that come last keep the replica full until the counted ones have ended
    requests = run_closed_loop(service, lengths, in_flight, more + 2 * in_flight)
    first, entered, done, outputs = (
        np.array(t) for t in (requests.first, requests.entered, requests.done, requests.outputs)
    )
    start_s, end_s = (np.sort(entered)[in_flight + k] for k in (more // 4, more - 1))
    inside_s = np.clip(done, start_s, end_s) - np.clip(entered, start_s, end_s)
    begun = np.arange(len(outputs)) < in_flight
    # each counts by how much of its stay is within; the first have no whole stay
    parts = np.where(begun, 0.0, inside_s / np.maximum(done - entered, 1e-12))
    whole_s = max(float(inside_s[~begun].sum()), 1e-12)
    rate = float(parts.sum()) / whole_s * float(inside_s.sum()) / max(end_s - start_s, 1e-12)
    counted = ~begun & (entered >= start_s) & (entered <= end_s)
    tokens = (outputs - 1)[counted].sum()
    tpot_s = float((done - first)[counted].sum() / tokens) if tokens else 0.0
    return rate, float((first - entered)[counted].mean()), tpot_s


def run_closed_loop(service: Service, lengths: Lengths, in_flight: int, count: int) -> Requests:
    """A replica with always so many requests in flight, until so many more have come."""
    rng = np.random.default_rng(7)
    inputs, outputs = sample_begun_requests(lengths, in_flight, in_flight + count, rng)
    requests = requests_of(service, inputs, outputs, in_flight)
    replica = Replica(service.rules, service.times, requests)
    run_replica(replica, [0.0] * in_flight, [0.0] * (in_flight + count), closed=True)
    return requests


def service_of(plan: Plan, row: int, lengths: Lengths | None = None) -> Service:
    """Return how one server of a plan's row serves.

    Args:
        plan: of a serving request.
        row: of the plan; one that runs.
        lengths: of requests; left out, those of the row's workload.

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
    setting = replace(setting, mode="open")  # whatever its plan was asked for
    lengths = lengths or Lengths(cases.input_tokens, cases.output_tokens, np.ones(1))
    scales = setting.correction.scales(cases) if setting.correction else None
    prompts_scale = float(scales.prompts[0]) if scales is not None else 1.0
    steps_scale = float(scales.steps[0]) if scales is not None else 1.0
    mean_input = np.average(lengths.input_tokens, weights=lengths.weight)
    cases = replace(cases, input_tokens=np.array([mean_input]))
    rules = _server_rules(setting, cases, memory)
    fixed_s, token_s = request_overheads(setting)
    late_steps, held_tokens = client_delays(setting, float(cases.stream_interval[0]))
    return Service(
        rules,
        _tabulate_server(setting, cases, rules, lengths, (steps_scale, prompts_scale)),
        request_s=(fixed_s + float(cases.kv_wait_s[0])) * prompts_scale,
        request_token_s=token_s * prompts_scale,
        prefix_hit=float(cases.prefix_hit[0]),
        late_steps=late_steps,
        held_tokens=held_tokens,
    )


def _refuse_unserved_split(setting: Setting, cases: Cases) -> None:
    if bool(cases.disaggregated[0]):
        raise NoAnswer(
            "this layout has a prefill pool of its own; over time only servers that compute "
            "prompts themselves are simulated.",
            field="candidate",
            hint="Choose a layout without a prefill pool.",
        )
    if setting.mode == "static":
        raise NoAnswer(
            "mode static is one batch without a server; it has no load over time.",
            field="workload.mode",
            hint="Use mode open with request_rate.",
        )


def _server_rules(setting: Setting, cases: Cases, memory: Memory) -> Rules:
    """The rules of a server; requests for a vector or a score end with their prompt."""
    ranks = int(cases.dp[0]) if bool(cases.shares_experts[0]) else 1
    pool_tokens = float(memory.kv_cache_tokens[0]) * ranks if setting.caches else ENDLESS
    rules = scheduler_rules(setting, cases, 0, pool_tokens)
    if setting.model.generates:
        accepted = float(tokens_per_step(cases.draft_tokens, cases.acceptance)[0])
        return replace(rules, slots=rules.slots * ranks, ranks=ranks, tokens_per_step=accepted)
    fullest = max(int(most_prompts(setting, cases, memory)[0]), 1)
    prompt = _computed_prompt(cases)
    return replace(
        rules,
        step_tokens=min(max(rules.step_tokens, prompt), fullest * prompt),
        slots=fullest * rules.stages,
        chunked=not setting.whole_prompts,
        mixes=True,
    )


def _tabulate_server(
    setting: Setting, cases: Cases, rules: Rules, lengths: Lengths, scales: tuple[float, float]
) -> StepTimes:
    """Step times at the contexts of requests; scales are of steps, and of prompts in them."""
    inputs, outputs = lengths.input_tokens, lengths.output_tokens
    attended, context = mean_contexts(lengths, float(cases.prefix_hit[0]))
    longest_input, longest = float(inputs.max()), float((inputs + outputs).max())
    tokens = rules.step_tokens if rules.chunked else max(rules.step_tokens, longest_input)
    axes = [
        geometric_nodes(np.array([tokens]), NODES[0]),
        np.array([[0.0, attended, np.sqrt(attended * longest_input), longest_input]]),
        geometric_nodes(np.array([rules.slots / rules.batches]), NODES[2]),
        np.array([[float(inputs.min()), context, np.sqrt(context * longest), longest]]),
    ]
    seconds = tabulate_steps(setting, cases, axes)[0]
    if not setting.model.generates:
        seconds = seconds * scales[1]
        front = setting.engine.front_s
        if front is not None:  # the front end takes requests one after the other
            front_s = front.value * axes[0][0] / _computed_prompt(cases)
            seconds = np.maximum(seconds, front_s[:, None, None, None])
    elif scales != (1.0, 1.0):
        decode_s = seconds[:1, :1]
        seconds = decode_s * scales[0] + np.maximum(seconds - decode_s, 0.0) * scales[1]
    return StepTimes([axis[0].tolist() for axis in axes], seconds.tolist())


def _computed_prompt(cases: Cases) -> float:
    """Tokens of the mean prompt that are not found in the cache."""
    return max(float(cases.input_tokens[0]) * (1 - float(cases.prefix_hit[0])), 1.0)
