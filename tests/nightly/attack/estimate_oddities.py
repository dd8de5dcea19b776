"""What looks odd when two estimates that differ in one thing are compared, and why it does.

Most reasons are checked by taking something away: both estimates are made again with links, kernel
launches or casts that take no time, or with 8-bit kernels as good as 16-bit ones. A reason holds
where the pair then looks odd no more. The others are read from the parts of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import yaml

from recipe_core.engines.frameworks import training_data
from recipe_core.estimates.serving.continuous_batching import prompt_chunks, prompts_a_step
from recipe_core.estimates.serving.cost import change_quantity, without_links
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.estimates.serving.starts import DOUBT
from recipe_core.estimates.training.estimates import estimate_training
from recipe_core.hardware.cluster import roofline
from recipe_core.plans.plans import plan_candidate
from recipe_core.request.schema import PlanRequest
from tests.fixtures import paths
from tests.nightly.attack.estimate_properties import Answer, Request

DATA: dict[str, Any] = yaml.safe_load((paths.DATA / "estimate_attack.yaml").read_text())
SHORT = 64
"""Below so many tokens, one more is a considerable share of them."""


@dataclass(frozen=True)
class Case:
    """A request with its answer."""

    request: Request
    answer: Answer

    @property
    def workload(self) -> dict[str, Any]:
        return self.request["workload"]

    @property
    def memory(self) -> dict[str, Any]:
        return self.answer["memory"]

    def says(self, words: str) -> bool:
        """Whether a note has these words."""
        return any(words in note for note in self.answer["notes"])

    def figure(self, name: str) -> float:
        figures = self.answer.get("serving") or self.answer["training"]
        return float((self.memory if name in self.memory else figures)[name])

    @cached_property
    def estimates(self) -> Any:
        """The estimate as columns of length one, with its setting and cases."""
        plan, row = plan_candidate(PlanRequest.parse(self.request))
        estimates, place = plan.blocks[0].detail(row)
        assert place == 0
        return estimates


class Pair(NamedTuple):
    """Two cases: ``after`` differs from ``before`` in one thing."""

    before: Case
    after: Case

    def change(self, figure: str) -> float:
        """By what share a figure grows."""
        before, after = (max(case.figure(figure), 1e-300) for case in self)
        return after / before - 1


@dataclass(frozen=True)
class Oddity:
    """A change of ``figures`` between two estimates of a draw that looks odd.

    ``more_of``: they differ by one token of this field; a jump by over a fifth is odd then, or by
    much over the token's share. ``reasons``: name, what holds, words of a note of either, and the
    parts of memory that may rise.
    """

    name: str
    compares: tuple[str, str]
    figures: tuple[str, ...]
    kind: str = "serving"
    more_of: str = ""
    falls: float | None = None
    rises: float | None = None
    reasons: tuple[tuple[Any, ...], ...] = ()

    def seen(self, pair: Pair) -> bool:
        changes = [pair.change(figure) for figure in self.figures]
        if self.more_of:
            tokens = pair.before.workload[self.more_of]
            most = 0.2 if tokens >= SHORT else 0.2 + 1.5 / tokens
            return any(abs(np.log1p(change)) > np.log1p(most) for change in changes)
        falls = self.falls is not None and changes[0] <= -self.falls
        return falls or (self.rises is not None and changes[0] > self.rises)

    def reason_for(self, pair: Pair) -> str | None:
        """The first reason that explains an odd pair and that an answer of it states."""
        for name, key, says, *parts in self.reasons:
            stated = any(case.says(says) for case in pair) or not says
            alone = all(_risen(pair) <= {*names} for names in parts)
            if stated and alone and self._holds(key, pair):
                return str(name)
        return None

    def _holds(self, key: str, pair: Pair) -> bool:
        if key in SETTINGS:
            before, after = (without(case, *SETTINGS[key]) for case in pair)
            return before is not None and after is not None and not self.seen(Pair(before, after))
        return not key or RELATIONS[key](self, pair)


ODDITIES = {name: Oddity(name, **parts) for name, parts in DATA["oddities"].items()}
Change = Callable[[Any], Any]
"""A setting with something taken away."""


def free_links(setting: Any) -> Any:
    return replace(setting, cluster=without_links(setting.cluster))


def free_launches(setting: Any) -> Any:
    overheads = setting.engine.overheads.items()
    free = {name: overhead.model_copy(update={"launch_s": 0.0}) for name, overhead in overheads}
    return replace(setting, engine=setting.engine.model_copy(update={"overheads": free}))


def alike_kernels(setting: Any) -> Any:
    """Products of every format start as fast and come as near to the data sheet as bf16's."""
    device, engine = setting.cluster.device, setting.engine
    shapes = {
        family: {"any": roofline(device, family, "bf16", "fp16")} for family in ("gemm", "moe")
    }
    known = device.model_copy(update={"roofline": {**device.roofline, **shapes}})
    products = ("gemm", "moe", "expert_rows")
    wide = {
        name: {"any": engine.kernel_time(device.architecture, name, "bf16")} for name in products
    }
    own = engine.kernels.get(device.architecture)
    if own is not None:
        own = own.model_copy(update={"times": {**own.times, **wide}})
        kernels = {**engine.kernels, device.architecture: own}
        engine = engine.model_copy(update={"kernels": kernels})
    return replace(setting, cluster=replace(setting.cluster, device=known), engine=engine)


def free_casts(setting: Any) -> Any:
    names = ("quantize_passes", "quantize_passes_by_operator")
    free = {
        name: change_quantity(getattr(setting.calibration, name), lambda _: 0.0) for name in names
    }
    return replace(setting, calibration=setting.calibration.model_copy(update=free))


def alike_pace(setting: Any) -> Any:
    """8-bit products lose no more to power than 16-bit ones."""
    same = {"sustained_fp8": setting.calibration.sustained}
    return replace(setting, calibration=setting.calibration.model_copy(update=same))


def without(case: Case, *changes: Change) -> Case | None:
    """The case estimated again in a changed setting; None where it cannot run there."""
    estimates = case.estimates
    setting, training = estimates.setting, case.workload["kind"] == "training"
    for change in changes:
        setting = change(setting)
    again = (estimate_training if training else estimate_serving)(setting, estimates.cases)
    answer = again.row(0).to_json()
    return Case(case.request, answer) if answer["feasible"] else None


def _prompts_together(case: Case) -> float:
    """Prompts that share a step on average, as far as their number follows from the load."""
    estimates = case.estimates
    decoding, cases = estimates.serving.decoding, estimates.cases
    steps = np.maximum(cases.output_tokens - 1, 1e-6)
    chunks = prompt_chunks(cases, estimates.setting.engine.chunked_prefill)[1]
    return float(np.clip(decoding / steps * chunks, 1.0, prompts_a_step(cases))[0])


def share_steps(oddity: Oddity, pair: Pair) -> bool:
    """More prompts share a step under the one load than under the other.

    Were there one prompt a step, the pair would not be odd, or one load could not be served.
    """
    if _prompts_together(pair.before) == _prompts_together(pair.after):
        return False
    alone = []
    for case in pair:
        estimates = case.estimates
        tokens = prompt_chunks(estimates.cases, chunked=False)[0]
        cases = replace(estimates.cases, max_batched_tokens=tokens)
        answer = estimate_serving(estimates.setting, cases).row(0).to_json()
        alone.append(Case(case.request, answer))
    served = all(case.answer["feasible"] for case in alone)
    return not served or not oddity.seen(Pair(*alone))


def _risen(pair: Pair) -> set[str]:
    """Parts of memory that rise."""
    before, after = (case.memory for case in pair)
    wholes = {"total_bytes", "usable_bytes", "capacity_bytes", "kv_cache_bytes", "start_bytes"}
    skipped = wholes | {"host_bytes", "encoder_bytes"}  # of encoders, weights have them
    names = {name for name in before if name.endswith("_bytes")} - skipped
    return {name for name in names if after[name] > before[name] * (1 + 1e-9)}


def whole_towers(_: Oddity, pair: Pair) -> bool:
    """An encoder that was cut is whole where its heads do not divide."""
    rise = pair.after.memory["encoder_bytes"] - pair.before.memory["encoder_bytes"]
    total = pair.after.memory["total_bytes"] - pair.before.memory["total_bytes"]
    return bool(rise > total)


def holds_more(_: Oddity, pair: Pair) -> bool:
    """Requests waited, and a larger cache holds more of them at once."""
    held = [float(case.estimates.serving.resident[0]) for case in pair]
    return pair.before.says("run at once") and held[1] > held[0]


def stays_longer(_: Oddity, pair: Pair) -> bool:
    """At the same rate requests that take longer are more at once (Little's law)."""
    before, after = (case.estimates.serving for case in pair)
    more = float(after.resident[0] / before.resident[0])
    longer = float(after.request_latency_s[0] / before.request_latency_s[0])
    return pair.before.workload["mode"] == "open" and 1 < more <= 1.02 * longer


def whole_logits(_: Oddity, pair: Pair) -> bool:
    """Full logits fit after all, so the loss is no longer computed in chunks."""
    return [case.says("full logits would not fit") for case in pair] == [True, False]


def one_more_step(_: Oddity, pair: Pair) -> bool:
    """The prompts of a static batch no longer fit into as many steps, each as long as before."""
    if pair.before.workload["mode"] != "static":
        return False
    steps = []
    for case in pair:
        cases = case.estimates.cases
        tokens = prompt_chunks(cases, chunked=False)[0] * case.estimates.serving.resident
        steps.append(float(np.ceil(tokens / cases.max_batched_tokens)[0]))
    return steps[1] == steps[0] + 1 and pair.change("ttft_s") <= 1.01 * steps[1] / steps[0] - 1


def idle_ranks(_: Oddity, pair: Pair) -> bool:
    """Ranks that share experts step together, those without a request too."""
    candidate, load = pair.after.request["candidate"], pair.after.estimates.cases.load[0]
    limited = pair.after.workload["mode"] != "open"
    return bool(limited and candidate["ep"] > 1 and load < candidate["dp"])


def _step(case: Case) -> tuple[float, float]:
    """Seconds of a training step for the traffic of gradients, and for all but the states' too."""
    parts = case.answer["breakdown_s"]["step"]
    traffic = ("data_parallel", "stragglers")
    rest = sum(seconds for name, seconds in parts.items() if name not in traffic)
    return parts.get("data_parallel", 0.0), rest


def traffic(_: Oddity, pair: Pair) -> bool:
    return _step(pair.after)[1] <= _step(pair.before)[1] * (1 + 1e-9)


def hides_traffic(_: Oddity, pair: Pair) -> bool:
    before, after = map(_step, pair)
    return after[0] < before[0] and after[1] >= before[1] * (1 - 1e-9)


RELATIONS: dict[str, Callable[[Oddity, Pair], bool]] = {
    relation.__name__: relation
    for relation in (
        *(share_steps, whole_towers, holds_more, stays_longer, whole_logits, one_more_step),
        *(idle_ranks, traffic, hides_traffic),
    )
}
SETTINGS = {
    **{change.__name__: (change,) for change in (free_links, free_launches, alike_kernels)},
    "free_casts": (free_casts,),
    "free_casts_at_one_pace": (free_casts, alike_pace),
}
"""What holds in a pair, and what is taken away from its settings, by the names of the data."""


def over_reason(case: Case) -> str | None:
    """Why a split that needs more memory than may be used can run, where its notes say it."""
    memory, says = case.memory, case.says
    if "training" in case.answer:
        most = memory["usable_bytes"] * (1 + training_data().figures.tight.value)
        if memory["total_bytes"] <= most and says(DOUBT):
            return "training: within the share by which estimates are high"
        return None
    if says("outside the engine's share"):
        inside = memory["weights_bytes"] + memory["kv_needed_bytes"] <= memory["usable_bytes"]
        whole = memory["total_bytes"] <= memory["capacity_bytes"]
        return "serving: activations lie outside the engine's share" if inside and whole else None
    if says(DOUBT):
        return "serving: the start is uncertain"
    estimates = case.estimates.memory
    counted = estimates.kv_needed_bytes / estimates.sequence_bytes * case.estimates.cases.replicas
    fits = estimates.start_bytes[0] <= estimates.usable_bytes[0]
    if fits and memory["max_concurrency"] < counted[0] and says("requests at full length"):
        return "serving: the cache holds some of the requests counted"
    return None
