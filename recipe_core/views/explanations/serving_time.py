"""The times of a serving split down to operations and bytes: its steps, and the sums of them.

The steps are run again with the ledger open, at the steady state that the estimate solved; so their
rows are its own numbers. Lines then say how steps become the time per output token and the time to
first token (docs/method/physics.md, "Continuous batching", "From a step to the client").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.units import share_text
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.ledger import Kernel, only_number, recorded_sums, recording
from recipe_core.estimates.serving.continuous_batching import (
    INTERFERENCE,
    Flow,
    Loop,
    decode_step,
    idle_step,
    prompt_step,
    steps_by_length,
)
from recipe_core.estimates.serving.estimates import Estimates
from recipe_core.estimates.serving.pools import pool_steps
from recipe_core.estimates.serving.rates import (
    active_replicas,
    arriving_flow,
    batch_steps,
    bunch_step,
    bunched_share,
    is_burst,
    resident_limit,
    solved_flow,
)
from recipe_core.estimates.serving.results import TIME_TITLES
from recipe_core.estimates.serving.speculative import tokens_per_step
from recipe_core.plans.plan import Plan
from recipe_core.request.metrics import column_metric
from recipe_core.views.explanations.operators import (
    Line,
    Times,
    efficiency_text,
    exact,
    plain_number,
    product,
    time_text,
    work_text,
)
from recipe_core.views.explanations.serving_case import (
    SMALL,
    Parts,
    ServedCase,
    collect_times,
    decode_share,
    run_factor,
    step_lines,
    step_seconds,
    step_share,
    worded_factor,
)

DECODING, STARTING, POOLED = (
    f"Parts of the {column_metric(name).label}"
    for name in ("tpot_s", "ttft_s", "request_latency_s")
)
REACHED = "Utilisation while prompts run"


def serving_times(plan: Plan, row: int) -> Times:
    """The sources of the time per output token and to first token of a feasible row."""
    block, i = plan.at(row)
    estimates, k = block.detail(i)
    if not block.setting.model.generates:
        return Times({POOLED: list(_pooled_lines(block.setting, estimates, k))})
    case = ServedCase(block.setting, estimates, k)
    if estimates.pools is not None:
        return _pool_times(case)
    return _batch_times(case) if block.setting.mode == "static" else _loop_times(case)


# A batch that runs together, and prompts in a pool of their own


def _batch_times(case: ServedCase) -> Times:
    batch = case.case.load / active_replicas(case.case)
    step, chunk, chunks = batch_steps(case.setting, case.case, batch)
    decode, prompt = case.record_step(step), case.record_step(chunk)
    number = only_number(chunks)
    steps = ("steps of prompts", plain_number(number), number)
    prompts = step_share("a step of prompts", prompt, steps, run_factor(case.prompts))
    size = plain_number(only_number(batch))
    return collect_times(
        case,
        {f"Decode step, {size} sequences": decode, "Step of prompts": prompt},
        {
            DECODING: list(step_lines(case.decode, [decode_share(case, decode)])),
            STARTING: list(step_lines(case.prefill, [prompts])),
        },
    )


def _pool_times(case: ServedCase) -> Times:
    decoding = case.served.decoding[[case.k]] / case.rate / case.steps
    decode = case.record_step(decode_step(case.case, decoding))
    pool = replace(case.case.prefill_pool, output_tokens=np.ones(1))
    with recording():
        steps = pool_steps(case.setting, pool)
    alone, full = recorded_sums(steps.single), recorded_sums(steps.full)
    smaller_title, larger_title = (
        "Step of one prompt",
        f"Step of {plain_number(only_number(steps.group))} prompts",
    )
    if only_number(steps.ranks) > 1:
        lone, smaller_title = recorded_sums(steps.lone), "Step of one prompt on each rank"
        if _prompt_seconds(case, decode, alone) < step_seconds(alone):
            alone, full, larger_title = lone, alone, smaller_title
            smaller_title = "Step of one prompt on all ranks"
    share, runs = _full_share(case, decode, alone, full), run_factor(case.prompts)
    single = worded_factor("1 - share of the larger steps", 1 - share)
    several = worded_factor("share of the larger steps", share)
    shares = [
        step_share("a prompt's step", alone, single, runs),
        step_share("a larger step", full, several, runs),
        step_share("the first decode step", decode, runs),
    ]
    tables = {
        f"Decode step, {exact(only_number(decoding))} sequences of a replica": decode,
        f"{smaller_title} in the prefill pool": alone,
    }
    if share:
        tables[f"{larger_title} in the prefill pool"] = full
    waits = [*case.ttft_lines("pools", step_seconds(decode)), *case.ttft_lines("server")]
    return collect_times(
        case,
        tables,
        {
            DECODING: list(step_lines(case.decode, [decode_share(case, decode)])),
            STARTING: [*step_lines(case.prefill, shares), *waits],
        },
    )


def _full_share(case: ServedCase, decode: Parts, alone: Parts, full: Parts) -> float:
    """Share of a prompt's time that is a full step's, between one prompt's and that."""
    prompt_s = _prompt_seconds(case, decode, {**alone, **full})
    alone_s, full_s = step_seconds(alone), step_seconds(full)
    if abs(full_s - alone_s) <= SMALL * alone_s:
        return 0.0
    share = (prompt_s - alone_s) / (full_s - alone_s)
    return 0.0 if share < 1e-6 else min(share, 1.0)


def _prompt_seconds(case: ServedCase, decode: Parts, prompt: Parts) -> float:
    """Seconds of a prompt's step, without those of the first decode step."""
    prompt_s = sum(case.prefill[name] for name in prompt if name in case.prefill) / case.prompts
    first_s = sum(of.seconds for name, of in decode.items() if name in case.prefill)
    return float(prompt_s - first_s)


# Continuous batching


@dataclass(frozen=True, slots=True)
class _State:
    """A steady state of continuous batching, and the steps that it is made of.

    ``prompts``: in the step with prompts; ``lengths``: that step by how long they are, and shares
    of it. ``b``: share of prompts that start together, in
    ``chunks`` steps ``bunch`` of ``group`` prompts.
    """

    case: ServedCase
    flow: Flow
    loop: Loop
    prompts: float
    decode: Parts
    mixed: Parts
    bunch: Parts
    lengths: Sequence[tuple[float, Parts]]
    chunks: float = 1.0
    group: float = 1.0
    b: float = 0.0

    @property
    def stage_s(self) -> float:
        return only_number(self.flow.prompt_s) / only_number(self.case.case.pp)

    @property
    def ahead_s(self) -> float:
        """Wait for the prompts of a bunch before one's own."""
        case = self.case.case
        more = max(only_number(self.flow.resident) - self.group, 0.0) / 2
        step_s = self.chunks * step_seconds(self.bunch) / self.group + only_number(case.kv_step_s)
        return more * step_s / only_number(case.pp)

    def blended(self, solved: str, bunched: str = "") -> str:
        """A solved number, and that of a bunch, in the shares of the prompts in which they come."""
        if not self.b:
            return solved
        share = f"{efficiency_text(1 - self.b)} × {solved}"
        return f"{share} + {efficiency_text(self.b)} × {bunched}" if bunched else share


def _loop_times(case: ServedCase) -> Times:
    state, tables = _steady_state(case)
    full_s, step_s, b = only_number(state.flow.full_step_s), step_seconds(state.decode), state.b
    share = f"{efficiency_text(b)} × {time_text(full_s)} ÷ {time_text(step_s)}"
    numbers = f"({efficiency_text(1 - b)} + {share})"
    formula = "(1 - b) + b · step of all requests ÷ step"
    bunched = [(formula, numbers, 1 - b + b * full_s / step_s)] if b else []
    if case.setting.mode == "open":
        crowding = only_number(np.asarray(state.flow.crowding))
        bunched = [worded_factor("requests that come at random crowd", crowding)]
    if is_burst(case.setting):
        pace_s = _token_step_s(case)
        formula = "mean step of all tokens, the last answers' too ÷ step"
        bunched = [(formula, f"{time_text(pace_s)} ÷ {time_text(step_s)}", pace_s / step_s)]
    token = step_lines(case.decode, [decode_share(case, state.decode, *bunched)])
    first = [*_prompt_lines(state), *case.ttft_lines("waits", _wait_numbers(state))]
    first += case.ttft_lines("server")
    lines = {DECODING: [*token, *_interference(state)], STARTING: first}
    if utilisation := _utilisation(state.mixed):
        lines[REACHED] = [utilisation]
    return collect_times(case, tables, lines)


def _token_step_s(case: ServedCase) -> float:
    """The decode step of a burst, in the mean over all tokens."""
    token_s = sum(part for name, part in case.decode.items() if name != INTERFERENCE)
    yields = only_number(tokens_per_step(case.case.draft_tokens, case.case.acceptance))
    return token_s * yields / case.steps


def _steady_state(case: ServedCase) -> tuple[_State, dict[str, Parts]]:
    setting, limit = case.setting, resident_limit(case.setting, case.case, case.memory)
    capacity, share = limit, np.ones(1)
    if setting.mode == "open":
        flow = arriving_flow(setting, case.case, limit)[1]
    else:
        flow = solved_flow(setting, case.case, limit)
        capacity = flow.resident
        share = np.maximum(capacity - 1, 0) / np.maximum(capacity, 1)
    loop, mixes = Loop(setting, case.case, capacity, share), setting.engine.mixes_prompts
    step = decode_step(case.case, flow.decoding)
    beside = step if mixes else idle_step(case.case)
    mixed, prompts = prompt_step(setting, case.case, beside, flow.decoding / loop.steps)
    apart = steps_by_length(case.case, mixed, prompts)
    lengths = [(share, case.record_step(as_long)) for share, as_long in apart]
    steps = (case.record_step(step), lengths[len(lengths) // 2][1])
    state = _State(case, flow, loop, only_number(prompts), *steps, {}, lengths)
    tables: dict[str, Parts] = {
        f"Decode step, {exact(only_number(step.sequences))} sequences": steps[0]
    }
    for (_, as_long), (_, parts) in zip(apart, lengths, strict=True):
        title = _prompt_title(only_number(prompts), only_number(as_long.prefill_tokens), mixes)
        tables[title] = parts
    b = only_number(bunched_share(setting, case.case, flow)) if setting.mode != "open" else 0.0
    if b > 0:
        chunk, chunks, group = bunch_step(setting, case.case, flow.resident)
        bunch = case.record_step(chunk)
        tables[
            f"Step of {efficiency_text(only_number(chunk.sampled))} prompts that start together"
        ] = bunch
        state = replace(
            state, bunch=bunch, chunks=only_number(chunks), group=only_number(group), b=b
        )
    return state, tables


def _prompt_title(prompts: float, tokens: float, mixes: bool) -> str:
    noun = "prompt" if prompts == 1 else "prompts"
    title = f"Step with {efficiency_text(prompts)} {noun} ({tokens:,.0f} tokens)"
    return f"{title} beside the sequences that decode" if mixes else title


def _prompt_lines(state: _State) -> Iterator[Line]:
    """Parts of the time to first token that are parts of steps.

    A prompt takes (step with prompts - decode step) ÷ prompts in it + decode step.
    """
    count, b = state.prompts, state.b
    solved, runs = worded_factor("(1 - b)", 1 - b), run_factor(state.case.prompts)
    prompt = ("1 ÷ prompts in it", f"1 ÷ {efficiency_text(count)}", 1 / count)
    beside = (
        "(prompts in the step with prompts - 1) ÷ prompts in it",
        f"({count - 1:.4g}) ÷ {efficiency_text(count)}",
        1 - 1 / count if abs(count - 1) > SMALL else 0.0,
    )
    shares, apart = [], []
    for share, parts in state.lengths:
        part = [worded_factor("share of steps so long", share)] if share < 1 else []
        shares.append(step_share("a step with prompts", parts, *part, prompt, solved, runs))
    if state.case.setting.engine.mixes_prompts:
        shares.append(step_share("the decode step beside it", state.decode, beside, solved, runs))
        apart.append(step_share("the decode step", state.decode, solved, runs))
    if b:
        number = ("steps of prompts", plain_number(state.chunks), state.chunks)
        title = "a step of prompts that start together"
        bunch = step_share(title, state.bunch, worded_factor("b", b), number, runs)
        shares.append(bunch)
        apart += [bunch] if apart else []
    return step_lines(state.case.prefill, shares, apart)


def _interference(state: _State) -> Iterator[Line]:
    name, case, loop = INTERFERENCE, state.case, state.loop
    value_s = case.decode.get(name, 0.0)
    if value_s <= 0:
        return
    tokens = only_number(loop.tokens)
    solved = (
        f"{efficiency_text(only_number(loop.share))} × {exact(only_number(state.flow.decoding))} ÷ "
        f"{exact(tokens)} × {time_text(only_number(state.flow.prompt_s))} ÷ "
        f"{plain_number(only_number(case.case.pp))}"
    )
    behind_s = min(state.ahead_s / tokens, only_number(state.flow.decode[name]))
    if is_burst(case.setting):  # what is not of a steady state, over the share of those prompts
        later_s = (1 - state.b) * only_number(state.flow.decode[name])
        behind_s = (value_s / case.steps - later_s) / state.b
    factor = case.steps * case.later_share * only_number(np.asarray(state.flow.crowding))
    numbers = product(state.blended(solved, time_text(behind_s)), factor)
    formula = (
        "share of requests that are others · sequences ÷ tokens after the first · "
        "what a prompt adds ÷ PP; of prompts that start together (b) only those behind"
    )
    yield Line(TIME_TITLES[name], formula, numbers, time_text(value_s))


def _wait_numbers(state: _State) -> dict[str, Any]:
    """Numbers of a steady state of which the waits of a prompt are made."""
    case, loop, flow = state.case, state.loop, state.flow
    mean_s = loop.balance(flow.decoding, flow.step_s, flow.prompt_s).step_mean_s
    load = only_number(case.case.load) / only_number(active_replicas(case.case))
    queue, offline = max(load - only_number(flow.resident), 0.0), case.setting.mode == "offline"
    return {
        "b": state.b,
        "group": state.group,
        "share": only_number(loop.share),
        "late_steps": loop.late_steps,
        "mean_s": only_number(mean_s),
        "chunks": only_number(loop.chunks) if loop.beside else 1.0,
        "step_s": step_seconds(state.decode),
        "ahead_s": only_number(flow.prefill.get("prompts_ahead", 0.0)),
        "stage_s": state.stage_s,
        "bunch_ahead_s": state.ahead_s,
        "queue": queue / 2 if offline else queue,
        "offline": offline,
    }


def _utilisation(parts: Parts) -> Line | None:
    """Share of the device's peak that a step with prompts reaches, by its operations."""
    flops: defaultdict[str, float] = defaultdict(float)
    peaks: dict[str, float] = {}
    for entry, count in (term for of in parts.values() for term in of.terms):
        if isinstance(entry, Kernel) and count > 0 and entry.family != "elementwise":
            flops[entry.dtype] += entry.flops * count
            if entry.device is not None:
                # a kernel's dtype is one of the profile's
                peak = entry.device.peak_flops_per_s[entry.dtype]  # type: ignore[index]
                peaks[entry.dtype] = peak.value
    total, step_s = sum(flops.values()), step_seconds(parts)
    dtype = max(flops, key=flops.__getitem__, default="")
    if not total or dtype not in peaks:
        return None
    return Line(
        "MFU of a step with prompts",
        f"operations ÷ (step · peak in {dtype})",
        f"{work_text(total, 'FLOP')} ÷ ({time_text(step_s)} × {work_text(peaks[dtype], 'FLOP/s')})",
        share_text(total / step_s / peaks[dtype], 1),
    )


# Embeddings and scores


def _pooled_lines(setting: Setting, estimates: Estimates, k: int) -> Iterator[Line]:
    """Each part of the latency of case ``k``, as ``estimates.serving.pooling`` makes it."""
    served = estimates.serving
    tokens = f"{float(estimates.cases.input_tokens[k]):,.0f}"
    parts = {name: float(values[k]) for name, values in served.prefill.items()}
    overhead = setting.engine.overhead(setting.cluster.device.runtime)
    step = f"{float(served.resident[k]):.4g} prompts × {tokens} tokens"
    server = f"{time_text(overhead.request_s)} + {tokens} × {time_text(overhead.input_token_s)}"
    latency_s, step_s = float(served.request_latency_s[k]), float(served.step_s[k])
    queue = " - ".join(map(time_text, (latency_s, step_s, parts["request"])))
    formulas = {
        "request": ("of a request + tokens · of a token", server),
        "engine_queue": ("latency - step - overhead", queue),
    }
    for name, seconds in parts.items():
        if seconds > 0:
            formula, numbers = formulas.get(name, ("in the step of its prompt", step))
            yield Line(TIME_TITLES.get(name, name), formula, numbers, time_text(seconds))
