"""The times of a serving split down to operations and bytes: its steps, and what is made of them.

The steps are run again with the ledger open, at the steady state that the estimate solved; so their
rows are its own numbers. Lines then say how steps become the time per output token and the time to
first token (docs/method/physics.md, "Continuous batching", "From a step to the client").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recipe_core.base.labels import CAUSES
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.ledger import Entry, Kernel, Overhead, Sum, one, recording, sums
from recipe_core.estimates.serving.continuous_batching import (
    Flow,
    Loop,
    decode_step,
    idle_step,
    prompt_step,
    request_overheads,
)
from recipe_core.estimates.serving.estimates import Estimates
from recipe_core.estimates.serving.operators import Step
from recipe_core.estimates.serving.pools import pool_steps
from recipe_core.estimates.serving.rates import (
    active_replicas,
    arriving_flow,
    batch_steps,
    bunch_step,
    resident_limit,
    solved_flow,
)
from recipe_core.estimates.serving.speculative import engine_step, tokens_per_step
from recipe_core.hardware.cluster import host_speed
from recipe_core.plans.serving_plan import ServingPlan
from recipe_core.views.explanations.line import Line
from recipe_core.views.explanations.operators import (
    FAMILIES,
    Constant,
    Working,
    cited,
    constants,
    exact,
    plain_number,
    share_text,
    time_text,
    work_text,
    working,
)
from recipe_core.views.explanations.pooled_time import pooled_lines

HIDDEN = "Less what the device takes meanwhile"
LAUNCH = "launch"
_SMALL = 1e-9


@dataclass(frozen=True, slots=True)
class Times:
    """Lines by title, the operators of every step, and where their numbers are from."""

    lines: dict[str, list[Line]] = field(default_factory=dict)
    workings: tuple[Working, ...] = ()
    constants: tuple[Constant, ...] = ()


@dataclass(frozen=True, slots=True)
class _Own:
    """What runs of one's own multiply: decode steps and prompts."""

    steps: float = 1.0
    prompts: float = 1.0


def serving_times(plan: ServingPlan, row: int) -> Times:
    """Where the time per output token and to first token of a feasible row is from."""
    block, i = plan.at(row)
    estimates, k = block.detail(i)
    if not block.setting.model.generates:
        return Times(lines=dict(pooled_lines(block.setting, estimates, k)))
    return _Explained(block.setting, estimates, k).times()


class _Explained:
    """One case of estimates that runs."""

    def __init__(self, setting: Setting, estimates: Estimates, k: int) -> None:
        self.setting, self.served = setting, estimates.serving
        self.case, self.k = estimates.cases.take([k]), k
        self.memory = estimates.memory.take(np.array([k]))
        self.own = _Own()
        own = estimates.corrected
        if own is not None:
            self.own = _Own(float(own.scales.steps[k]), float(own.scales.prompts[k]))
            if setting.mode == "open":  # solved at a scaled rate (`corrections`)
                self.case = replace(self.case, load=self.case.load / own.rate[[k]])
        self.rate = 1.0 if own is None else float(own.rate[k])
        self.decode = {name: float(of[k]) for name, of in self.served.decode.items()}
        self.prefill = {name: float(of[k]) for name, of in self.served.prefill.items()}
        self.overhead = setting.engine.overhead(setting.cluster.device.runtime)
        self.pooled = estimates.pools is not None
        self.step_s = 0.0  # of a decode step, when it is recorded

    def times(self) -> Times:
        """The kind of state that the case is in, explained."""
        if self.pooled:
            return self._pools()
        if self.setting.mode == "static":
            return self._batch()
        return self._loop()

    # what all kinds share

    def recorded(self, step: Step, case: Cases | None = None) -> dict[str, Sum]:
        """The parts of an engine's step as the ledger has them."""
        with recording():
            return sums(engine_step(self.setting, self.case if case is None else case, step))

    @property
    def yields(self) -> float:
        """Tokens of a sequence in a step."""
        return one(tokens_per_step(self.case.draft_tokens, self.case.acceptance))

    def together(self, steps: Mapping[str, dict[str, Sum]], lines: dict[str, list[Line]]) -> Times:
        """All that is explained, with the steps as tables of their operators."""
        recorded = list(steps.values())
        sources = [*constants(recorded), *self._engine(recorded)]
        tables = tuple(working(title, parts, HIDDEN) for title, parts in steps.items())
        return Times(lines, tables, tuple(sources))

    def _decode_lines(self, step: Mapping[str, Sum], factor: str) -> Iterator[Line]:
        """Every part of the time per output token that is a part of a decode step."""
        for name, of in step.items():
            value_s = self.decode.get(name, 0.0)
            if value_s > 0:
                yield Line(
                    CAUSES.get(name, name),
                    "time in a decode step · factor",
                    _times(time_text(of.seconds), factor),
                    time_text(value_s),
                )

    def _factor(self, bunched: str = "") -> tuple[str, Line | None]:
        """What a decode step's parts are multiplied by: as numbers, and as a line."""
        step_s = sum(self.decode[name] for name in self.decode if name != "prefill_interference")
        solved_s = self.step_s
        factor = step_s / solved_s
        terms, numbers = [], []
        if bunched:
            terms.append("(1 - b) + b · step of all requests ÷ step")
            numbers.append(f"({bunched})")
        if abs(self.yields - 1) > _SMALL:
            terms.append("1 ÷ tokens that a step yields")
            numbers.append(f"1 ÷ {share_text(self.yields)}")
        if abs(self.own.steps - 1) > _SMALL:
            terms.append("what your runs measured")
            numbers.append(share_text(self.own.steps))
        if abs(self.rest - 1) > _SMALL:
            terms.append("share of the tokens after the first that leaves")
            numbers.append(share_text(self.rest))
        if not terms:
            return "1", None
        line = Line(
            "Factor on a decode step",
            " · ".join(terms),
            " × ".join(numbers),
            f"{factor:.5g}",
        )
        return f"{factor:.5g}", line

    @property
    def rest(self) -> float:
        """How much sooner tokens come where the first waits for others to leave with it."""
        intervals = self.setting.engine.intervals
        slow = (self.case.recv_interval > 1) | (self.case.stream_interval > 1)
        applies = self.setting.mode in ("closed", "open") and bool(slow.any())
        if intervals is None or not applies or not intervals.first_token_waits:
            return 1.0
        tokens = one(self.case.output_tokens)
        held = min(one(self.case.stream_interval), tokens) - 1
        return 1 - held / max(tokens - 1, 1.0)

    def _client_lines(self) -> Iterator[Line]:
        """What clients wait for where an engine looks and sends every so many steps only."""
        receive_s, stream_s = (self.prefill.get(name, 0.0) for name in ("receive", "stream"))
        if receive_s > 0:
            interval = one(self.case.recv_interval)
            own = self.own.steps
            before_s = receive_s / own / ((interval - 1) / 2)
            numbers = f"({plain_number(interval)} - 1) ÷ 2 × {time_text(before_s)}"
            yield Line(
                CAUSES["receive"],
                "(steps between two looks for requests - 1) ÷ 2 · step, less any other wait",
                _times(numbers, share_text(own)),
                time_text(receive_s),
            )
        if stream_s > 0:
            tokens = one(self.case.output_tokens)
            held = min(one(self.case.stream_interval), tokens) - 1
            yield Line(
                CAUSES["stream"],
                "tokens that leave with the first · time per token",
                f"{plain_number(held)} × {time_text(stream_s / held)}",
                time_text(stream_s),
            )

    def _request_line(self) -> Iterator[Line]:
        fixed_s, token_s = request_overheads(self.setting)
        value_s, tokens = self.prefill.get("request", 0.0), one(self.case.input_tokens)
        if value_s <= 0:
            return
        numbers = f"{time_text(fixed_s)} + {plain_number(tokens)} × {time_text(token_s)}"
        if self.own.prompts != 1:
            numbers = f"({numbers}) × {share_text(self.own.prompts)}"
        yield Line(
            CAUSES["request"],
            "time of a request + prompt tokens · time of a token, in the server",
            numbers,
            time_text(value_s),
        )

    def _block_line(self) -> Iterator[Line]:
        """What a request waits for its blocks from tiers below the devices' cache."""
        value_s = self.prefill.get("kv_load", 0.0)
        if value_s > 0:
            own = share_text(self.own.prompts)
            yield Line(
                CAUSES["kv_load"],
                "look-up + blocks found in tiers ÷ rate of the link or store + queue there",
                _times(time_text(one(self.case.kv_wait_s)), own),
                time_text(value_s),
            )

    def _engine(self, recorded: list[dict[str, Sum]]) -> Iterator[Constant]:
        """The engine's own numbers: overheads, and its kernels' times over the profile's."""
        engine, overhead = self.setting.engine, self.overhead
        device = self.setting.cluster.device
        figures = {
            "per step": overhead.step_s,
            "per sequence": overhead.sequence_s,
            "per layer": overhead.layer_s,
            "per kernel launch": overhead.launch_s,
            "per row of an expert": overhead.expert_row_s,
            "per request": overhead.request_s,
            "per prompt token": overhead.input_token_s,
        }
        values = [f"{name} {time_text(value_s)}" for name, value_s in figures.items() if value_s]
        values += [f"late steps {share_text(overhead.late_steps)}"] if overhead.late_steps else []
        values += [f"bunched {share_text(overhead.bunched)}"] if overhead.bunched else []
        source = cited(engine.sources, overhead.source, overhead.note)
        title = f"{engine.title} {engine.version}"
        yield Constant(f"{title}, own time", ", ".join(values), overhead.status, source)
        host = host_speed(device)
        if (host.layers, host.sequences, host.requests) != (1, 1, 1):
            slower = f"layers {host.layers:.3g}, sequences {host.sequences:.3g}, "
            yield Constant(
                "Host, over the reference",
                f"{slower}requests {host.requests:.3g}",
                host.status,
                cited(device.sources, host.source, host.note),
            )
        kernels = engine.kernels.get(device.architecture)
        if kernels is None:
            return
        factors = {
            _kernel_name(entry): entry.slower
            for parts in recorded
            for of in parts.values()
            for entry, count in of.terms
            if count > 0 and abs(entry.slower - 1) > _SMALL
        }
        for entry_name, factor in factors.items():
            yield Constant(
                f"{title}, {entry_name} over the profile's",
                share_text(factor),
                kernels.status,
                cited(engine.sources, kernels.source, kernels.note),
            )

    # a batch that runs together

    def _batch(self) -> Times:
        batch = self.case.load / active_replicas(self.case)
        step, chunk, chunks = batch_steps(self.setting, self.case, batch)
        decode, prompt = self.recorded(step), self.recorded(chunk)
        self.step_s = _seconds(decode)
        factor, line = self._factor()
        number, own = plain_number(one(chunks)), share_text(self.own.prompts)
        first = [
            Line(
                CAUSES.get(name, name),
                "steps of prompts · time in one",
                _times(f"{number} × {time_text(of.seconds)}", own),
                time_text(self.prefill[name]),
            )
            for name, of in prompt.items()
            if self.prefill.get(name, 0.0) > 0
        ]
        size = plain_number(one(batch))
        return self.together(
            {f"Decode step, {size} sequences": decode, "Step of prompts": prompt},
            {
                DECODING: [*([line] if line else []), *self._decode_lines(decode, factor)],
                STARTING: first,
            },
        )

    # prompts in a pool of their own

    def _pools(self) -> Times:
        decoding = self.served.decoding[[self.k]] / self.rate / self.own.steps
        step = decode_step(self.case, decoding)
        decode = self.recorded(step)
        pool = replace(self.case.prefill_pool, output_tokens=np.ones(1))
        with recording():
            steps = pool_steps(self.setting, pool)
        alone, full = sums(steps.one), sums(steps.full)
        self.step_s = _seconds(decode)
        factor, line = self._factor()
        own = self.own.prompts
        prompt_s = sum(
            self.prefill[name] for name in {**alone, **full} if name in self.prefill
        ) / own - sum(decode[name].seconds for name in decode if name in self.prefill)
        alone_s, full_s = _seconds(alone), _seconds(full)
        share = 0.0
        if abs(full_s - alone_s) > _SMALL * alone_s:
            share = (prompt_s - alone_s) / (full_s - alone_s)
            share = 0.0 if share < 1e-6 else min(share, 1.0)
        first = [*self._pool_lines(decode, alone, full, share)]
        first += [*self._pool_waits()]
        group = plain_number(one(steps.group))
        return self.together(
            {
                f"Decode step, {exact(one(decoding))} sequences of a replica": decode,
                "Step of one prompt in the prefill pool": alone,
                **({f"Step of {group} prompts in the prefill pool": full} if share else {}),
            },
            {
                DECODING: [*([line] if line else []), *self._decode_lines(decode, factor)],
                STARTING: first,
            },
        )

    def _pool_lines(
        self,
        decode: Mapping[str, Sum],
        alone: Mapping[str, Sum],
        full: Mapping[str, Sum],
        share: float,
    ) -> Iterator[Line]:
        for name in {**alone, **decode}:
            value_s = self.prefill.get(name, 0.0)
            if value_s <= 0:
                continue
            terms = []
            if name in alone and share < 1:
                text = time_text(alone[name].seconds)
                terms.append(text if not share else f"{share_text(1 - share)} × {text}")
            if name in full and share:
                terms.append(f"{share_text(share)} × {time_text(full[name].seconds)}")
            if name in decode:
                terms.append(time_text(decode[name].seconds))
            yield Line(
                CAUSES.get(name, name),
                "a prompt's step, between one prompt and a full one, + the first decode step",
                _scaled(" + ".join(terms), self.own.prompts),
                time_text(value_s),
            )

    def _pool_waits(self) -> Iterator[Line]:
        own_steps, own_prompts = self.own.steps, self.own.prompts
        yield Line(
            CAUSES["schedule"],
            "half of a decode step",
            _times(f"0.5 × {time_text(self.step_s)}", share_text(own_steps)),
            time_text(self.prefill["schedule"]),
        )
        yield from self._request_line()
        notes = {
            "prompts_ahead": "M/D/1 queue of the prefill pool, or what starts at once before it",
            "transfer": "M/D/1 queue of the link + cache of a prompt over the link",
            "handoff": "the engine's hand-over between pools",
            "engine_queue": "requests beyond those held ÷ requests per second",
        }
        for name, formula in notes.items():
            value_s = self.prefill.get(name, 0.0)
            if value_s > 0:
                own = 1.0 if name == "engine_queue" else own_prompts
                yield Line(
                    CAUSES[name],
                    formula,
                    _times(time_text(value_s / own), share_text(own)),
                    time_text(value_s),
                )
        yield from self._client_lines()

    # continuous batching

    def _loop(self) -> Times:
        limit = resident_limit(self.setting, self.case, self.memory)
        flow = self._flow(limit)
        loop = Loop(self.setting, self.case, *self._capacity(flow, limit))
        engine = self.setting.engine
        step = decode_step(self.case, flow.decoding)
        beside = step if engine.mixes_prompts else idle_step(self.case)
        mixed_step, prompts = prompt_step(
            self.setting, self.case, beside, flow.decoding / loop.steps
        )
        decode, mixed = self.recorded(step), self.recorded(mixed_step)
        self.step_s = _seconds(decode)
        steps = {
            f"Decode step, {exact(one(step.sequences))} sequences": decode,
            _prompt_title(
                one(prompts), one(mixed_step.prefill_tokens), engine.mixes_prompts
            ): mixed,
        }
        state = _State(self, flow, loop, one(prompts))
        bunched = ""
        if self.setting.mode != "open" and self.overhead.bunched > 0:
            chunk, chunks, group = bunch_step(self.setting, self.case, flow.resident)
            bunch = self.recorded(chunk)
            steps[f"Step of {share_text(one(chunk.sampled))} prompts that start together"] = bunch
            state = replace(
                state, bunch=bunch, chunks=one(chunks), group=one(group), b=self.overhead.bunched
            )
            b = state.b
            bunched = (
                f"{share_text(1 - b)} + {share_text(b)} × {time_text(one(flow.full_step_s))} ÷ "
                f"{time_text(self.step_s)}"
            )
        factor, line = self._factor(bunched)
        token = [*([line] if line else []), *self._decode_lines(decode, factor)]
        token += [*state.interference()]
        first = [*state.prompt_lines(decode, mixed), *state.copies(), *state.waits()]
        first += [*self._request_line(), *self._block_line(), *self._client_lines()]
        lines = {DECODING: token, STARTING: first}
        if reached := _reached(mixed):
            lines[REACHED] = [reached]
        return self.together(steps, lines)

    def _flow(self, limit: Any) -> Flow:
        if self.setting.mode == "open":
            return arriving_flow(self.setting, self.case, limit)[1]
        return solved_flow(self.setting, self.case, limit)

    def _capacity(self, flow: Flow, limit: Any) -> tuple[Any, Any]:
        """Requests that a replica can hold, and the share of them that are others to each."""
        if self.setting.mode == "open":
            return limit, np.ones(1)
        return flow.resident, np.maximum(flow.resident - 1, 0) / np.maximum(flow.resident, 1)


DECODING = "Parts of the time per output token"
STARTING = "Parts of the time to first token"
REACHED = "Utilisation while prompts run"


@dataclass(frozen=True, slots=True)
class _State:
    """A steady state of continuous batching, and the steps that it is made of."""

    of: _Explained
    flow: Flow
    loop: Loop
    prompts: float
    bunch: dict[str, Sum] = field(default_factory=dict)
    chunks: float = 1.0
    group: float = 1.0
    b: float = 0.0

    @property
    def step_s(self) -> float:
        """A decode step, solved."""
        return one(self.flow.step_s)

    @property
    def prompt_s(self) -> float:
        """What a prompt adds to the steps of a replica."""
        return one(self.flow.prompt_s)

    @property
    def _ahead_s(self) -> float:
        """Wait for the prompts of a bunch before one's own."""
        more = max(one(self.flow.resident) - self.group, 0.0) / 2
        step_s = self.chunks * _seconds(self.bunch) / self.group + one(self.of.case.kv_step_s)
        return more * step_s / one(self.of.case.pp)

    def _blended(self, solved: str, bunched: str = "") -> str:
        """A solved number, and that of a bunch, in the shares of the prompts in which they come."""
        if not self.b:
            return solved
        share = f"{share_text(1 - self.b)} × {solved}"
        return f"{share} + {share_text(self.b)} × {bunched}" if bunched else share

    def prompt_lines(self, decode: Mapping[str, Sum], mixed: Mapping[str, Sum]) -> Iterator[Line]:
        """Every part of the time to first token that is a part of a step."""
        mixes = self.of.setting.engine.mixes_prompts
        alone = abs(self.prompts - 1) < _SMALL
        for name in {**mixed, **decode, **self.bunch}:
            value_s = self.of.prefill.get(name, 0.0)
            if value_s <= 0:
                continue
            both, step = (of[name].seconds if name in of else 0.0 for of in (mixed, decode))
            if not mixes:
                solved = f"{time_text(both)} ÷ {share_text(self.prompts)}"
            elif both <= step:
                solved = time_text(step)
            elif alone or not step:
                solved = (
                    time_text(both) if alone else f"{time_text(both)} ÷ {share_text(self.prompts)}"
                )
            else:
                more = f"({time_text(both)} - {time_text(step)}) ÷ {share_text(self.prompts)}"
                solved = f"({more} + {time_text(step)})"
            start = self.bunch.get(name)
            bunch = ""
            if start is not None:
                bunch = _counted(self.chunks, time_text(start.seconds))
            yield Line(
                CAUSES.get(name, name),
                STEPS if self.b else STEPS_OF_ONE,
                _scaled(self._blended(solved, bunch), self.of.own.prompts),
                time_text(value_s),
            )

    def copies(self) -> Iterator[Line]:
        """What moving a prompt's blocks to and from tiers adds to its steps."""
        value_s, own_s = self.of.prefill.get("kv_copies", 0.0), one(self.of.case.kv_step_s)
        if value_s > 0:
            bunch = _counted(self.group, time_text(own_s))
            yield Line(
                CAUSES["kv_copies"],
                "what a prompt's blocks add to its step; (b) those of all that start together",
                _scaled(self._blended(time_text(own_s), bunch), self.of.own.prompts),
                time_text(value_s),
            )

    def interference(self) -> Iterator[Line]:
        """Prompts of others that a decode step waits for."""
        value_s = self.of.decode.get("prefill_interference", 0.0)
        if value_s <= 0:
            return
        case, loop = self.of.case, self.loop
        solved = (
            f"{share_text(one(loop.share))} × {exact(one(self.flow.decoding))} ÷ "
            f"{exact(one(loop.tokens))} × {time_text(self.prompt_s)} ÷ {plain_number(one(case.pp))}"
        )
        spread_s = one(self.flow.decode["prefill_interference"])
        behind_s = min(self._ahead_s / one(loop.tokens), spread_s)
        scale = self.of.own.steps * self.of.rest
        yield Line(
            CAUSES["prefill_interference"],
            "share of requests that are others · sequences ÷ tokens after the first · "
            "what a prompt adds ÷ pp; of prompts that start together (b) only those behind",
            _scaled(self._blended(solved, time_text(behind_s)), scale),
            time_text(value_s),
        )

    def waits(self) -> Iterator[Line]:
        """What a request waits for before its prompt's step."""
        of, loop = self.of, self.loop
        balance = loop.balance(self.flow.decoding, self.flow.step_s, self.flow.prompt_s)
        mean_s, late = one(balance.step_mean_s), loop.late_steps
        solved = f"({share_text(one(loop.share))} ÷ 2 + {share_text(late)}) × {time_text(mean_s)}"
        if loop.beside and one(loop.chunks) > 1:
            extra = f"({plain_number(one(loop.chunks))} - 1) × {time_text(self.step_s)}"
            solved = f"({solved} + {extra})"
        value_s = of.prefill.get("schedule", 0.0)
        if value_s > 0:
            yield Line(
                CAUSES["schedule"],
                "(half of a step that runs + steps that the scheduler is ahead) · mean step",
                _scaled(self._blended(solved), of.own.steps),
                time_text(value_s),
            )
        value_s = of.prefill.get("prompts_ahead", 0.0)
        if value_s > 0:
            queue_s, stage_s = one(self.flow.prefill["prompts_ahead"]), self.prompt_s
            stage_s /= one(of.case.pp)
            solved = f"{exact(queue_s / stage_s)} × {time_text(stage_s)}"
            yield Line(
                CAUSES["prompts_ahead"],
                "prompts ahead · what a prompt adds ÷ pp; of a bunch (b) half of those not in "
                "the first step",
                _scaled(self._blended(solved, time_text(self._ahead_s)), of.own.prompts),
                time_text(value_s),
            )
        value_s = of.prefill.get("engine_queue", 0.0)
        if value_s > 0:
            replicas = one(active_replicas(of.case))
            waiting = max(one(of.case.load) / replicas - one(self.flow.resident), 0.0)
            drained = 2 if of.setting.mode == "offline" else 1
            numbers = f"{exact(waiting / drained)} ÷ {exact(waiting / drained / value_s)}/s"
            yield Line(
                CAUSES["engine_queue"],
                "requests of a replica beyond those held"
                f"{', half of them' if drained == 2 else ''} ÷ its requests per second",
                numbers,
                time_text(value_s),
            )


STEPS_OF_ONE = "(step with prompts - decode step) ÷ prompts in it + decode step"
STEPS = f"(1 - b) · ({STEPS_OF_ONE}) + b · steps of prompts that start together"


def _seconds(parts: Mapping[str, Sum]) -> float:
    return sum(of.seconds for of in parts.values())


def _counted(count: float, text: str) -> str:
    """A number of something, without a 1."""
    return text if count == 1 else f"{plain_number(count)} × {text}"


def _times(numbers: str, factor: str) -> str:
    """Numbers times a factor, without one of 1."""
    return numbers if factor == "1" else f"{numbers} × {factor}"


def _scaled(numbers: str, factor: float) -> str:
    """The same for numbers that are a sum."""
    return numbers if abs(factor - 1) < _SMALL else f"({numbers}) × {share_text(factor)}"


def _prompt_title(prompts: float, tokens: float, mixes: bool) -> str:
    share = "prompt" if prompts == 1 else "prompts"
    what = f"Step with {share_text(prompts)} {share} ({tokens:,.0f} tokens)"
    return f"{what} beside the sequences that decode" if mixes else what


def _kernel_name(entry: Entry) -> str:
    if isinstance(entry, Kernel):
        return f"{FAMILIES[entry.family].lower()} in {entry.stored_dtype}"
    if isinstance(entry, Overhead):
        return "host"
    return "all-reduce"


def _reached(parts: Mapping[str, Sum]) -> Line | None:
    """Share of the device's peak that a step with prompts reaches, by its operations."""
    kernels = [
        (entry, count)
        for of in parts.values()
        for entry, count in of.terms
        if isinstance(entry, Kernel) and count > 0 and entry.family != "elementwise"
    ]
    flops = sum(entry.flops * count for entry, count in kernels)
    if not flops:
        return None
    by_dtype: dict[str, float] = {}
    for entry, count in kernels:
        by_dtype[entry.dtype] = by_dtype.get(entry.dtype, 0.0) + entry.flops * count
    dtype = max(by_dtype, key=by_dtype.__getitem__)
    device = kernels[0][0].device
    if device is None:
        return None
    peak = device.peak_flops_per_s[dtype].value  # type: ignore[index]  # a dtype of the profile
    step_s = _seconds(parts)
    return Line(
        "MFU of a step with prompts",
        f"operations ÷ (step · peak in {dtype})",
        f"{work_text(flops, 'FLOP')} ÷ ({time_text(step_s)} × {work_text(peak, 'FLOP/s')})",
        f"{flops / step_s / peak:.1%}",
    )
