"""Continuous batching at steady state: sequences that decode at once, and waits of a request.

A decode step takes ``t(D)`` with ``D`` sequences; each request's prompt adds ``Δ(D)`` to the steps
of the others, and needs ``o`` steps after its first token. With ``p`` pipeline stages and the share
``n = (R - 1)/R`` of requests that are others,

    step = t(D) + n·D/o·Δ/p         X = D/(o·step)
    T    = n·step/2 + chunks·t(D) + Δ + ahead·Δ/p
    ahead = n·X·(T - half of a prompt)                  R = X·(overhead + T + o·step)

where T is the time to first token without the server's overhead and ``ahead`` the prompts before a
request's own (Schweitzer's approximation of mean-value analysis). That is one prompt after another.
Those that wait share a step as far as it takes them (``prompts_a_step``): with ``g`` prompts in a
step, ``f`` what a step takes for prompts however many they are, and ``δ`` what one more adds, they
delay a request by ``f·(1 - 1/g)``, the rest of its own step, besides, and by at most

    f·(1 - 1/g) + (δ·ahead + f·max(min(ahead, STEPS_AHEAD), ahead / prompts_a_step)) / p

Where prompts ride on decode steps, no more sequences decode than end as prompts get through steps
that they fill, ``D·(tokens/o + 1) <= p·max_batched_tokens``; the other requests wait.

Everything follows from D in closed form and R grows with D, so D is searched between 0 and R, with
t and Δ interpolated between ``NODES``. At the solution both are computed again; where interpolation
led the search astray, it goes on with the solution as one more node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.solvers import find_root
from recipe_core.estimates.columns.recall import Recall
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.kernels import Parts, Step, total
from recipe_core.estimates.serving.speculative import engine_step, engine_steps, tokens_per_step
from recipe_core.hardware.cluster import host_speed

# Shares of the resident requests at which steps are computed, largest first.
NODES = (1.0, 0.3, 0.05)
# Steps of prompts before a request's own at most, while one takes all that wait. Simulations show
# 0.5 to 1 (the rest of a step under way, sometimes one more); of 1, 1.25, 1.5 and 2 the least that
# does not make estimates of published runs worse.
STEPS_AHEAD = 1.25
# How far interpolation may put a search off, as a share of what is balanced.
ASTRAY = 0.01
# Nodes that are added at most, before a search computes every step.
MORE_NODES = 6
# Decoding sequences of a loop that hardly decodes, where answers have one token.
LEAST_DECODING = 1e-9
# Normal scores, and their weights, whose sums are the means of a normal (Gauss and Hermite).
SCORES, SHARES = np.sqrt(3) * np.array([-1.0, 0.0, 1.0]), np.array([1.0, 4.0, 1.0]) / 6
# What prompts of others add to a step.
INTERFERENCE = "prefill_interference"


@dataclass(frozen=True, slots=True)
class Flow:
    """Steady state of one replica with ``resident`` requests, ``decoding`` of which decode.

    ``full_step_s``: a decode step in which as many as the replica can hold decode. ``slowing``: the
    share of a step's time, prompts in it included, that grows as sequences do; None where no
    requests come and go. ``crowding``: how much longer than in a steady state tokens take where
    requests come at random.
    """

    resident: Float
    decoding: Float
    requests_per_s: Float
    decode: Parts
    prefill: Parts
    step_s: Float
    prompt_s: Float
    full_step_s: Float
    slowing: Float | None = None
    crowding: Float | float = 1.0

    @property
    def tpot_s(self) -> Float:
        """Mean time between two tokens of a request."""
        return total(self.decode)

    @property
    def ttft_s(self) -> Float:
        """Mean time from arrival to first token."""
        return total(self.prefill)


@dataclass(frozen=True, slots=True)
class _Balance:
    """The state that follows from a number of decoding sequences, one number per case."""

    step_mean_s: Float
    rate: Float
    queue_s: Float
    ttft_s: Float
    interference_s: Float


def decode_step(cases: Cases, decoding: Float) -> Step:
    """One decode step of a micro-batch; it verifies drafts. Stages share a replica's sequences."""
    zero = np.zeros(len(cases))
    batch, queries = np.maximum(decoding / cases.pp, 1.0), 1 + cases.draft_tokens
    context = cases.input_tokens + cases.held_tokens
    return Step(zero, zero, batch, context, batch * queries, queries)


def idle_step(cases: Cases) -> Step:
    """A step in which nothing decodes."""
    zero = np.zeros(len(cases))
    return Step(zero, zero, zero, zero, zero)


def prompt_chunks(cases: Cases, chunked: bool) -> tuple[Float, Float, Float]:
    """Prompt tokens to compute, their chunks, and the context they attend to on average.

    A token of a long prompt attends to more, and long prompts have more tokens.
    """
    tokens = np.maximum(cases.input_tokens * (1 - cases.prefix_hit), 1.0)
    chunks = np.ceil(tokens / cases.max_batched_tokens) if chunked else np.ones(len(cases))
    return tokens, chunks, (cases.input_tokens - tokens / 2) * (1 + cases.input_variance)


def prompts_a_step(cases: Cases) -> Float:
    """Whole prompts that fit into a step; at least one."""
    tokens = np.maximum(cases.input_tokens * (1 - cases.prefix_hit), 1.0)
    return np.maximum(cases.max_batched_tokens / tokens, 1.0)


def request_overheads(setting: Setting) -> tuple[float, float]:
    """Seconds that a server adds before a request is scheduled, and those a token of its prompt."""
    engine, device = setting.engine, setting.cluster.device
    overhead = engine.overhead(device.runtime)
    time = engine.kernel_time(device.architecture, "request") * host_speed(device).requests
    return time * overhead.request_s, time * overhead.input_token_s


def request_overhead_s(setting: Setting, cases: Cases) -> Float:
    """Seconds that a server adds before a request is scheduled; a static batch has no server."""
    fixed_s, token_s = request_overheads(setting)
    return fixed_s + token_s * cases.input_tokens


def moved_blocks(cases: Cases) -> Parts:
    """Return the time a prompt adds to its steps for moving cache blocks; empty without any."""
    return {"kv_copies": cases.kv_step_s} if cases.kv_step_s.any() else {}


def awaited_blocks(cases: Cases) -> Parts:
    """Return what a request waits for blocks of the cache; nothing where none does."""
    return {"kv_load": cases.kv_wait_s} if cases.kv_wait_s.any() else {}


def met_prompts(setting: Setting, arriving: Float) -> Float:
    """Return how many prompts a step with prompts has on average, at ``arriving`` a decode step.

    They come at random, and a step without any is none of these: ``x/(1 - e^-x)`` [Poisson]. Where
    prompts do not ride on decode steps, those that come during one's step have the next step.
    """
    some = np.maximum(arriving, 1e-9)
    some = some if setting.engine.mixes_prompts else some / (1 + some)
    return np.asarray(some / -np.expm1(-some))


def prompt_step(
    setting: Setting, cases: Cases, beside: Step, arriving: Float
) -> tuple[Step, Float]:
    """The step ``beside`` with prompts added, and how many, at ``arriving`` per decode step."""
    tokens, chunks, context = prompt_chunks(cases, setting.engine.chunked_prefill)
    prompts = np.clip(met_prompts(setting, arriving * chunks), 1.0, prompts_a_step(cases)) / chunks
    return replace(
        beside,
        prefill_tokens=prompts * tokens,
        prefill_context=context,
        sampled=beside.sampled + prompts,
    ), prompts


def steps_by_length(cases: Cases, step: Step, prompts: Float) -> list[tuple[float, Step]]:
    """Return a step whose prompts have a shape, by how long they are together, with its shares.

    Lengths are taken as lognormal; their variance falls with the prompts of a step. Short ones do
    not fill it.
    """
    if not cases.input_variance.any():
        return [(1.0, step)]
    sigma = np.sqrt(np.log1p(cases.input_variance / np.maximum(prompts, 1.0)))
    longer = np.exp(np.multiply.outer(SCORES, sigma))
    longer = longer / np.tensordot(SHARES, longer, 1)
    tokens, context = step.prefill_tokens * longer, step.prefill_context * longer
    return [
        (float(share), replace(step, prefill_tokens=tokens[k], prefill_context=context[k]))
        for k, share in enumerate(SHARES)
    ]


# What a loop knows of each case, besides its nodes.
_COLUMNS = (
    "capacity",
    "most",
    "share",
    "tokens",
    "yields",
    "steps",
    "chunks",
    "per_step",
    "request_s",
    "group",
    "grouped_s",
)


class Loop:
    """One replica per case at steady state.

    ``capacity``: requests it can hold. ``share``: the part of them that are others to each.
    """

    def __init__(self, setting: Setting, cases: Cases, capacity: Float, share: Float) -> None:
        self.setting, self.cases, self.capacity, self.share = setting, cases, capacity, share
        self.tokens = np.maximum(cases.output_tokens - 1, 1e-6)
        self.yields = tokens_per_step(cases.draft_tokens, cases.acceptance)
        self.steps = self.tokens / self.yields
        self.chunks = prompt_chunks(cases, setting.engine.chunked_prefill)[1]
        self.per_step = prompts_a_step(cases)
        self.request_s = request_overhead_s(setting, cases)
        self.late_steps = setting.engine.overhead(setting.cluster.device.runtime).late_steps
        # a decode step goes along with each step of a prompt
        self.beside = 1.0 if setting.engine.mixes_prompts else 0.0
        self.most = np.minimum(capacity, self._most_decoding())
        self.nodes = np.multiply.outer(NODES, capacity)
        self.group = self.prompts_together(capacity)
        # the last node again, with as many prompts in its steps as there are at most
        decoding = np.concatenate([self.nodes, self.nodes[-1:]])
        arriving = np.concatenate([self.nodes / self.steps, np.asarray(capacity)[None]])
        times = [total(parts) for parts in self.parts(decoding, arriving)]
        self.times = np.stack([seconds[:-1] for seconds in times], axis=1)
        self.grouped_s = times[1][-1]
        self._draw_lines()

    def _most_decoding(self) -> Float | float:
        """Sequences that decode where prompts fill every step: so many end as prompts get through.

        Prompts that ride on decode steps share their tokens; in a step of all sequences a pipeline
        runs as many micro-batches as it has stages.
        """
        if not (self.setting.engine.mixes_prompts and self.setting.engine.chunked_prefill):
            return np.inf
        tokens = prompt_chunks(self.cases, chunked=True)[0]
        step_tokens = tokens / self.steps + 1 + self.cases.draft_tokens
        return self.cases.pp * self.cases.max_batched_tokens / step_tokens

    def _draw_lines(self) -> None:
        """Lines between the nodes."""
        apart = self.nodes[:-1] - self.nodes[1:]
        apart = np.where(apart > 0, apart, 1.0)
        self.slopes = (self.times[:-1] - self.times[1:]) / apart[:, None]
        self.starts = self.times[1:] - self.slopes * self.nodes[1:, None]

    def sharing(self, share: Float) -> Loop:
        """Return the same steps where another ``share`` of the requests are others to each."""
        loop = Loop.__new__(Loop)
        loop.__dict__.update(self.__dict__)
        loop.share = share
        return loop

    def with_node(self, rows: Int, decoding: Float, times: tuple[Float, Float]) -> Loop:
        """Some of the loops, with one more node: ``times`` (of all loops) at ``decoding``."""
        loop = Loop.__new__(Loop)
        loop.setting, loop.cases, loop.beside = self.setting, self.cases.take(rows), self.beside
        loop.late_steps = self.late_steps
        for name in _COLUMNS:
            setattr(loop, name, getattr(self, name)[rows])
        nodes = np.concatenate([self.nodes[:, rows], decoding[None]])
        order = np.argsort(-nodes, axis=0, kind="stable")
        loop.nodes = np.take_along_axis(nodes, order, axis=0)
        added = np.stack([seconds[rows] for seconds in times])
        seconds = np.concatenate([self.times[:, :, rows], added[None]])
        loop.times = np.take_along_axis(seconds, order[:, None], axis=0)
        loop._draw_lines()
        return loop

    def prompts_together(self, arriving: Float) -> Float:
        """Prompts that share a step, at ``arriving`` per decode step."""
        met = met_prompts(self.setting, arriving * self.chunks)
        return np.clip(met, 1.0, self.per_step) / self.chunks

    def parts(self, decoding: Float, arriving: Float | None = None) -> tuple[Parts, Parts]:
        """A decode step, and what one prompt adds to its steps (takes alone if never mixed).

        Prompts arrive as fast as ``decoding`` sequences end, or ``arriving`` per decode step.
        """
        step, mixes = decode_step(self.cases, decoding), self.setting.engine.mixes_prompts
        beside = step if mixes else idle_step(self.cases)
        arriving = decoding / self.steps if arriving is None else arriving
        with_prompts, prompts = prompt_step(self.setting, self.cases, beside, arriving)
        decode, both = engine_steps(self.setting, self.cases, step, with_prompts)
        if self.cases.input_variance.any():
            both = {}
            for share, as_long in steps_by_length(self.cases, with_prompts, prompts):
                for name, seconds in engine_step(self.setting, self.cases, as_long).items():
                    both[name] = both.get(name, 0.0) + share * seconds
        if not mixes:
            prompt = {name: seconds / prompts for name, seconds in both.items()}
        else:
            prompt = {name: np.maximum((both[name] - decode[name]) / prompts, 0.0) for name in both}
        return decode, prompt | moved_blocks(self.cases)

    def interpolated(self, decoding: Float) -> tuple[Float, Float]:
        """Seconds of a decode step and of a prompt, interpolated between the nodes."""
        lines = self.starts + self.slopes * decoding
        both = lines[0]
        for below, line in zip(self.nodes[1:], lines[1:], strict=False):
            both = np.where(decoding < below, line, both)
        step_s, prompt_s = np.maximum(both, 1e-12)
        return step_s, prompt_s

    def balance(self, decoding: Float, step_s: Float, prompt_s: Float) -> _Balance:
        """Rates and times at ``decoding`` sequences by the formulas of the module."""
        stage_s = prompt_s / self.cases.pp
        interference, step_mean_s, rate = self._pace(decoding, step_s, stage_s)
        ride_s = self.beside * self.chunks * step_s + prompt_s
        unqueued_s = self.share / 2 * step_mean_s + ride_s
        coming = self.share * rate
        rest_share = (1 - self.cases.input_variance) / 2  # of a prompt that one meets under way
        waiting_s = coming * (unqueued_s - ride_s * rest_share / self.per_step)
        ahead = waiting_s / np.maximum(1 - coming * stage_s, 1e-9)
        queue_s = np.minimum(ahead, self.share * self.capacity) * stage_s
        rest_s, most_s = self._bounds(decoding, prompt_s, coming, waiting_s)
        queue_s = np.minimum(rest_s + queue_s, most_s)
        ttft_s = (
            self.request_s
            + self.cases.kv_wait_s
            + unqueued_s
            + queue_s
            + self.late_steps * step_mean_s
        )
        return _Balance(step_mean_s, rate, queue_s, ttft_s, interference)

    def _pace(self, decoding: Float, step_s: Float, stage_s: Float) -> tuple[Float, Float, Float]:
        """Return what prompts add to a step, the step with it, and requests per second."""
        interference = self.share / self.steps * decoding * stage_s
        step_mean_s = step_s + interference
        return interference, step_mean_s, decoding / (self.steps * step_mean_s)

    def _bounds(
        self, decoding: Float, prompt_s: Float, coming: Float, waiting_s: Float
    ) -> tuple[Float, Float]:
        """The rest of a prompt's own step, which those that wait share, and the most they delay it.

        At most that rest and the steps before its own.
        """
        group = self.prompts_together(decoding / self.steps)
        more = self.group - group
        alike = more <= 0  # a step takes no more than comes anyway
        added_s = (self.group * self.grouped_s - group * prompt_s) / np.where(alike, 1.0, more)
        added_s = np.where(alike, prompt_s, np.clip(added_s, 0.0, prompt_s))
        fixed_s = group * (prompt_s - added_s)
        rest_s = self.share * np.maximum(1 - 1 / group, 0.0) * fixed_s
        fixed_s, added_s = fixed_s / self.cases.pp, added_s / self.cases.pp

        def ahead(start_s: Float | float, each_s: Float) -> Float:
            """Prompts ahead of each where they delay it by ``start_s + ahead · each_s``."""
            return (waiting_s + coming * start_s) / np.maximum(1 - coming * each_s, 1e-9)

        one_by_one = ahead(0.0, fixed_s + added_s)
        in_few = ahead(STEPS_AHEAD * fixed_s + rest_s, added_s)
        in_full = ahead(0.0, fixed_s / self.group + added_s)
        count = np.maximum(np.minimum(one_by_one, in_few), in_full)
        count = np.minimum(count, self.share * self.capacity)
        steps = np.maximum(np.minimum(count, STEPS_AHEAD), count / self.group)
        return rest_s, rest_s + added_s * count + fixed_s * steps

    def excess(self, decoding: Float, times: tuple[Float, Float], rate: Float | None) -> Float:
        """Requests that ``decoding`` sequences make the loop hold beyond its capacity.

        Where ``rate`` is given, requests per second that it serves beyond that. ``times`` are those
        of a decode step and of a prompt.
        """
        if rate is not None:
            return self._pace(decoding, times[0], times[1] / self.cases.pp)[2] - rate
        balance = self.balance(decoding, *times)
        return balance.rate * balance.ttft_s + decoding - self.capacity

    def _search(self, rate: Float | None) -> Float:
        """Decoding sequences without excess, as interpolation has it."""
        zero = find_root(
            lambda decoding: self.excess(decoding, self.interpolated(decoding), rate),
            np.zeros(len(self.cases)),
            -(self.capacity if rate is None else rate),
            self.most,
        )
        return np.maximum(zero, LEAST_DECODING)

    def _search_exactly(self, rate: Float | None) -> Float:
        """The same with every step computed, by magnitudes: rates grow about as what decodes."""
        aim = self.capacity if rate is None else rate

        def beyond(magnitude: Float) -> Float:
            decoding = np.exp(magnitude)
            decode, prompt = self.parts(decoding)
            return np.log1p(self.excess(decoding, (total(decode), total(prompt)), rate) / aim)

        lowest = np.full(len(self.cases), np.log(LEAST_DECODING))
        return np.exp(find_root(beyond, lowest, beyond(lowest), np.log(self.most)))

    def settle(self, rate: Float | None) -> tuple[Float, Parts, Parts]:
        """Decoding sequences at which the loop is full or serves ``rate`` requests per second.

        With the parts of a decode step and of a prompt.
        """
        loop, rows, decoding = self, np.arange(len(self.cases)), self._search(rate)
        settled, (decode, prompt) = decoding.copy(), self.parts(decoding)
        parts = decode, prompt
        times = total(decode), total(prompt)
        for added in range(MORE_NODES + 1):
            aim = loop.capacity if rate is None else rate
            excess = loop.excess(decoding, times, rate)
            astray = np.abs(excess) > ASTRAY * aim
            full = (decoding >= loop.most) & ((excess < 0) | (loop.most >= loop.capacity))
            astray_rows = np.flatnonzero(astray & ~full)
            if not len(astray_rows):
                break
            loop, rows = (
                loop.with_node(astray_rows, decoding[astray_rows], times),
                rows[astray_rows],
            )
            rate = None if rate is None else rate[astray_rows]
            search = loop._search if added < MORE_NODES else loop._search_exactly
            decoding = settled[rows] = search(rate)
            decode, prompt = loop.parts(decoding)
            times = total(decode), total(prompt)
            if len(rows) == len(settled):  # all of them, or the one that is explained
                parts = decode, prompt
            else:
                parts = _put_rows(parts[0], rows, decode), _put_rows(parts[1], rows, prompt)
        return settled, *parts

    def flow(
        self, decoding: Float, decode: Parts, prompt: Parts, resident: Float | None = None
    ) -> Flow:
        """The state at so many decoding sequences; computes ``resident`` where it is None."""
        step_s, prompt_s = total(decode), total(prompt)
        balance = self.balance(decoding, step_s, prompt_s)
        schedule_s = (self.share / 2 + self.late_steps) * balance.step_mean_s
        schedule_s = schedule_s + self.beside * (self.chunks - 1) * step_s
        latency = balance.ttft_s + self.steps * balance.step_mean_s
        queue_s = balance.queue_s
        if resident is None:
            resident = balance.rate * latency
        else:  # what prompts that fill every step leave waiting
            longer_s = np.maximum(resident / balance.rate - latency, 0.0)
            longer_s = np.where((decoding >= self.most) & (self.most < resident), longer_s, 0.0)
            queue_s, latency = queue_s + longer_s, latency + longer_s
        first = {name: prompt[name] + self.beside * decode.get(name, 0.0) for name in prompt}
        per_step = {**decode, INTERFERENCE: balance.interference_s}
        return Flow(
            resident=resident,
            decoding=decoding,
            requests_per_s=resident / latency,
            decode={name: seconds / self.yields for name, seconds in per_step.items()},
            prefill={
                **first,
                "schedule": schedule_s,
                "prompts_ahead": queue_s,
                "request": self.request_s,
                **awaited_blocks(self.cases),
            },
            step_s=step_s,
            prompt_s=prompt_s,
            full_step_s=self.times[0, 0],
            slowing=self._slowing(decoding, balance),
        )

    def _slowing(self, decoding: Float, balance: _Balance) -> Float:
        """The share of a step's time that grows as the sequences that decode."""
        slope = self.slopes[0, 0]
        for below, line in zip(self.nodes[1:], self.slopes[1:], strict=False):
            slope = np.where(decoding < below, line[0], slope)
        growing_s = np.maximum(slope, 0.0) * decoding + balance.interference_s
        return np.asarray(np.clip(growing_s / balance.step_mean_s, 0.0, 1.0))


# Full replicas: what arrives does not change them.
_FULL: Recall[tuple[Loop, Flow]] = Recall(65_536, without="load", priced=False)


def _put_rows(parts: Parts, rows: Int, new: Parts) -> Parts:
    """Parts with those of some rows computed anew; a part that these do not have is 0 there."""
    out = {name: seconds.copy() for name, seconds in parts.items()}
    for name, seconds in out.items():
        seconds[rows] = new.get(name, 0.0)
    return out


def closed_loop_flow(setting: Setting, cases: Cases, resident: Float) -> Flow:
    """Steady state with ``resident`` requests always in a replica, prompts spread over time."""
    return _full_flow(Loop(setting, cases, resident, _others_share(resident)))


def open_loop(setting: Setting, cases: Cases, limit: Float, arriving: Float) -> tuple[Float, Flow]:
    """Requests per second of a replica with ``limit`` at once, and its state under arrivals.

    The steady state serves ``arriving`` requests per second, at most those of a full replica.
    """

    def make_full() -> tuple[Loop, Flow]:
        loop = Loop(setting, cases, limit, _others_share(limit))
        return loop, _full_flow(loop)

    loop, full = _FULL.value(make_full, setting, cases, limit)
    capacity = full.requests_per_s
    served = np.minimum(arriving, capacity)
    loop = loop.sharing(np.ones(len(cases)))
    return capacity, _crowd(loop.flow(*loop.settle(served)), served / capacity, full.decoding)


def _crowd(flow: Flow, busy: Float, full_decoding: Float) -> Flow:
    """Return the flow where arrivals at random make some times crowded, which last longer.

    What delays the others lets more come, in a step's time the share ``h`` at once (prompts) and
    ``n`` in all (about half way from how steps grow here to how they do in a full replica), the
    rest of it while a request decodes: a Hawkes process [1971]. Beyond the mean a request meets
    ``(1/(1-h)² - 1)/2 - h + (1/(1-n)² - 1/(1-h)²)/2 · (1 - e^(-2(1-n)/(1-h)))`` others, with the
    kernel of the last part taken as exponential; at most as many as decode in a full replica.
    """
    prompts = flow.decode[INTERFERENCE] / np.maximum(flow.tpot_s, 1e-12)
    left = np.maximum(1 - (np.asarray(flow.slowing) + busy) / 2, 1e-6)
    rest = np.maximum(1 - prompts, left)
    lasting = (1 / left**2 - 1 / rest**2) / 2 * -np.expm1(-2 * left / rest)
    more = (1 / rest**2 - 1) / 2 - (1 - rest) + lasting
    more = np.minimum(np.maximum(more, 0.0), np.maximum(full_decoding - flow.decoding, 0.0))
    longer = 1 + more / flow.decoding
    return replace(
        flow,
        decode={name: seconds * longer for name, seconds in flow.decode.items()},
        resident=flow.resident + more,
        crowding=longer,
    )


def _others_share(resident: Float) -> Float:
    return np.asarray(np.maximum(resident - 1, 0) / np.maximum(resident, 1))


def _full_flow(loop: Loop) -> Flow:
    return loop.flow(*loop.settle(None), loop.capacity)
