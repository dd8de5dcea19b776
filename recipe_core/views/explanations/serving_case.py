"""A case of a serving split with its steps on the ledger, and its times as sums of steps.

Every part of a time is the sum of that part of some steps, each times a factor that is the same for
all parts of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.ledger import (
    Entry,
    Kernel,
    Overhead,
    Sum,
    only_number,
    recorded_sums,
    recording,
)
from recipe_core.estimates.serving.continuous_batching import request_overheads
from recipe_core.estimates.serving.estimates import Estimates
from recipe_core.estimates.serving.kernels import Step
from recipe_core.estimates.serving.results import TIME_TITLES
from recipe_core.estimates.serving.speculative import engine_step, tokens_per_step
from recipe_core.hardware.cluster import host_speed
from recipe_core.views.explanations.operators import (
    FAMILIES,
    Constant,
    Line,
    Times,
    cited,
    efficiency_text,
    exact,
    hardware_constants,
    plain_number,
    product,
    tabulate_operators,
    time_text,
)
from recipe_core.views.texts import Phrases

HIDDEN = "Less what the device takes meanwhile"
SMALL = 1e-9

# A recorded step by part.
Parts = Mapping[str, Sum]
# A factor in words, in numbers, and its value.
Factor = tuple[str, str, float]


class ServedCase:
    """One case of estimates that runs; ``steps`` and ``prompts``: factors that own runs taught."""

    def __init__(self, setting: Setting, estimates: Estimates, k: int) -> None:
        self.setting, self.served, self.k = setting, estimates.serving, k
        self.case = estimates.cases.take([k])
        self.memory = estimates.memory.take(np.array([k]))
        self.steps = self.prompts = self.rate = 1.0
        if estimates.corrected is not None:
            scales, rate = estimates.corrected.scales, estimates.corrected.rate
            self.steps, self.prompts = float(scales.steps[k]), float(scales.prompts[k])
            self.rate = float(rate[k])
            if setting.mode == "open":  # solved at a scaled rate (`corrections`)
                self.case = replace(self.case, load=self.case.load / rate[[k]])
        self.decode = {name: float(of[k]) for name, of in self.served.decode.items()}
        self.prefill = {name: float(of[k]) for name, of in self.served.prefill.items()}
        self.overhead = setting.engine.overhead(setting.cluster.device.runtime)

    def record_step(self, step: Step) -> dict[str, Sum]:
        with recording():
            return recorded_sums(engine_step(self.setting, self.case, step))

    def ttft_lines(self, macro: str, *values: Any) -> Iterator[Line]:
        """Lines of parts of the time to first token that take time, by a macro's rows."""
        part = defaultdict(float, self.prefill)
        rows = _PHRASES.rows(macro, part, self.numbers, *values)
        for name, formula, numbers, scale in rows:
            if part[name] > 0:
                text = product(numbers, float(scale))
                yield Line(TIME_TITLES[name], formula, text, time_text(part[name]))

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Numbers of the case that lines are made of."""
        request_s, token_s = request_overheads(self.setting)
        if self.case.disaggregated.any():  # a hand-over holds what a generation of devices adds
            overhead = self.setting.engine.overhead(self.setting.cluster.device.runtime)
            request_s, token_s = overhead.request_s, overhead.input_token_s
        return {
            "steps": self.steps,
            "prompts": self.prompts,
            "request_s": request_s,
            "token_s": token_s,
            "tokens": only_number(self.case.input_tokens),
            "kv_wait_s": only_number(self.case.kv_wait_s),
            "block_s": only_number(self.case.kv_step_s),
            "interval": only_number(self.case.recv_interval),
            "early": self.early_tokens,
        }

    @property
    def later_share(self) -> float:
        """Share of the tokens after the first that leaves later, where some leave with it."""
        intervals, case = self.setting.engine.intervals, self.case
        slow = bool(((case.recv_interval > 1) | (case.stream_interval > 1)).any())
        loops = self.setting.mode in ("closed", "open")
        if intervals is None or not loops or not slow or not intervals.first_token_waits:
            return 1.0
        return 1 - self.early_tokens / max(only_number(case.output_tokens) - 1, 1.0)

    @property
    def early_tokens(self) -> float:
        return min(only_number(self.case.stream_interval), only_number(self.case.output_tokens)) - 1


# Times as sums of steps


@dataclass(frozen=True, slots=True)
class StepShare:
    """A step that a time is made of, and the factor on its parts, in words and in numbers."""

    step: str
    parts: Parts
    factor: float
    formula: str
    numbers: str

    def line(self) -> Iterator[Line]:
        """The factor as a line, where it is neither 0 nor 1."""
        if self.formula and self.factor:
            value = f"{self.factor:.5g}"
            yield Line(f"Factor on {self.step}", self.formula, self.numbers, value)

    def part_s(self, name: str) -> float:
        return self.parts[name].seconds if name in self.parts else 0.0


def step_share(step: str, parts: Parts, *factors: Factor) -> StepShare:
    """A step whose factor is a product, in which a 1 is not shown."""
    some = [factor for factor in factors if abs(factor[2] - 1) > SMALL]
    formula = " · ".join(words for words, _, _ in some)
    numbers = " × ".join(text for _, text, _ in some)
    return StepShare(step, parts, float(np.prod([value for *_, value in some])), formula, numbers)


def step_lines(
    values: Mapping[str, float], shares: Sequence[StepShare], apart: Sequence[StepShare] = ()
) -> Iterator[Line]:
    """Every part of a time that is one of steps: the sum of factor · part of each step.

    ``apart``: shares of a part that the first step has no more of than the first of these.
    """
    for share in shares:
        yield from share.line()
    for name in dict.fromkeys(name for share in shares for name in share.parts):
        if values.get(name, 0.0) > 0:
            more = not apart or shares[0].part_s(name) > apart[0].part_s(name)
            terms = [
                multiple(share.factor, time_text(share.part_s(name)))
                for share in (shares if more else apart)
                if share.factor and name in share.parts
            ]
            numbers = " + ".join(terms).replace("+ -", "- ")
            formula = "time of the part in each step · factor on the step"
            yield Line(TIME_TITLES.get(name, name), formula, numbers, time_text(values[name]))


def multiple(factor: float, text: str) -> str:
    return text if abs(factor - 1) < SMALL else f"{factor:.5g} × {text}"


_PHRASES = Phrases(
    "serving_time",
    time=time_text,
    plain=plain_number,
    exact=efficiency_text,
    digits=exact,
    times=multiple,
)


def worded_factor(words: str, value: float) -> Factor:
    return words, efficiency_text(value), value


def run_factor(factor: float) -> Factor:
    return worded_factor("what your runs measured", factor)


def decode_share(case: ServedCase, decode: Parts, *factors: Factor) -> StepShare:
    """The decode step and its factor in a time per output token, which ``factors`` are part of."""
    yields = only_number(tokens_per_step(case.case.draft_tokens, case.case.acceptance))
    return step_share(
        "a decode step",
        decode,
        *factors,
        ("1 ÷ tokens that a step yields", f"1 ÷ {efficiency_text(yields)}", 1 / yields),
        run_factor(case.steps),
        worded_factor("share of the tokens after the first that leaves", case.later_share),
    )


def step_seconds(parts: Parts) -> float:
    return sum(of.seconds for of in parts.values())


def collect_times(
    case: ServedCase, steps: Mapping[str, Parts], lines: dict[str, list[Line]]
) -> Times:
    """Lines, with the steps as tables of their operators, and the sources of all numbers."""
    recorded = list(steps.values())
    sources = [*hardware_constants(recorded), *_engine_constants(case, recorded)]
    tables = tuple(tabulate_operators(title, parts, HIDDEN) for title, parts in steps.items())
    return Times(lines, tables, tuple(sources))


# The engine's own numbers


def _engine_constants(case: ServedCase, recorded: Iterable[Parts]) -> Iterator[Constant]:
    """Overheads of the engine and its host, and its kernels' times over the profile's."""
    engine, overhead, device = case.setting.engine, case.overhead, case.setting.cluster.device
    title = f"{engine.title} {engine.version}"
    figures = {
        "per step": overhead.step_s,
        "per sequence": overhead.sequence_s,
        "per layer": overhead.layer_s,
        "per kernel launch": overhead.launch_s,
        "per row of an expert": overhead.expert_row_s,
        "per request": overhead.request_s,
        "per prompt token": overhead.input_token_s,
    }
    shares = {"late steps": overhead.late_steps, "bunched": overhead.bunched}
    values = [f"{name} {time_text(value_s)}" for name, value_s in figures.items() if value_s]
    values += [f"{name} {efficiency_text(value)}" for name, value in shares.items() if value]
    source = cited(engine.sources, overhead.source, overhead.note)
    yield Constant(f"{title}, own time", ", ".join(values), overhead.status, source)
    host = host_speed(device)
    if (host.layers, host.sequences, host.requests) != (1, 1, 1):
        speeds = f"layers {host.layers:.3g}, sequences {host.sequences:.3g}, "
        speeds += f"requests {host.requests:.3g}"
        source = cited(device.sources, host.source, host.note)
        yield Constant("Host, over the reference", speeds, host.status, source)
    kernels = engine.kernels.get(device.architecture)
    if kernels is None:
        return
    source = cited(engine.sources, kernels.source, kernels.note)
    terms = [term for parts in recorded for of in parts.values() for term in of.terms]
    slower = {
        _kernel_name(entry): entry.slower
        for entry, count in terms
        if count > 0 and abs(entry.slower - 1) > SMALL
    }
    for name, factor in slower.items():
        name = f"{title}, {name} over the profile's"
        yield Constant(name, efficiency_text(factor), kernels.status, source)


def _kernel_name(entry: Entry) -> str:
    if isinstance(entry, Kernel):
        return f"{FAMILIES[entry.family].lower()} in {entry.stored_dtype}"
    return "host" if isinstance(entry, Overhead) else "all-reduce"
