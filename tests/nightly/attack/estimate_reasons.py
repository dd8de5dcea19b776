"""Why a pair of estimates looks odd, where the estimates themselves can show it.

Most reasons are checked by taking something away: both estimates are made again with links, kernel
launches or casts that take no time, or with 8-bit kernels as good as 16-bit ones. A reason holds
where the pair then looks odd no more. The others are read from the parts of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.engines.frameworks import training_data
from recipe_core.hardware.cluster import roofline
from recipe_core.physics.serving.continuous_batching import prompt_chunks, prompts_a_step
from recipe_core.physics.serving.cost import changed, without_links
from recipe_core.physics.serving.estimates import estimate as serving_estimate
from recipe_core.physics.serving.starts import DOUBT
from recipe_core.physics.training.estimates import estimate as training_estimate
from tests.nightly.attack.estimate_oddities import Case, Oddity, Pair

Change = Callable[[Any], Any]
"""A setting with something taken away."""


@dataclass(frozen=True)
class Reason:
    """``holds``: whether it explains an oddity of a pair; ``says``: words of a note of either."""

    name: str
    holds: Callable[[Oddity, Pair], bool]
    says: str | None = None

    def stated(self, pair: Pair) -> bool:
        """Whether an answer says it, where one has to."""
        return self.says is None or any(case.says(self.says) for case in pair)


def free_links(setting: Any) -> Any:
    return replace(setting, cluster=without_links(setting.cluster))


def free_launches(setting: Any) -> Any:
    overheads = setting.engine.overheads.items()
    free = {name: overhead.model_copy(update={"launch_s": 0.0}) for name, overhead in overheads}
    return replace(setting, engine=setting.engine.model_copy(update={"overheads": free}))


def alike_kernels(setting: Any) -> Any:
    """Products of every format start as fast and come as near to the data sheet as bf16's.

    So do the engine's own kernels for them.
    """
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
    free = {name: changed(getattr(setting.calibration, name), lambda _: 0.0) for name in names}
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
    again = (training_estimate if training else serving_estimate)(setting, estimates.cases)
    answer = again.row(0).to_json()
    return Case(case.request, answer) if answer["feasible"] else None


def _taken_away(*changes: Change) -> Callable[[Oddity, Pair], bool]:
    def holds(oddity: Oddity, pair: Pair) -> bool:
        before, after = (without(case, *changes) for case in pair)
        return before is not None and after is not None and not oddity.seen(Pair(before, after))

    return holds


def _prompts_together(case: Case) -> float:
    """Prompts that share a step on average, as far as their number follows from the load."""
    estimates = case.estimates
    decoding, cases = estimates.serving.decoding, estimates.cases
    steps = np.maximum(cases.output_tokens - 1, 1e-6)
    chunks = prompt_chunks(cases, estimates.setting.engine.chunked_prefill)[1]
    return float(np.clip(decoding / steps * chunks, 1.0, prompts_a_step(cases))[0])


def _share_steps(oddity: Oddity, pair: Pair) -> bool:
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
        answer = serving_estimate(estimates.setting, cases).row(0).to_json()
        alone.append(Case(case.request, answer))
    served = all(case.answer["feasible"] for case in alone)
    return not served or not oddity.seen(Pair(*alone))


CACHE = {"kv_needed_bytes", "runtime_bytes"}


def _risen(pair: Pair) -> set[str]:
    """Parts of memory that rise."""
    before, after = (case.memory for case in pair)
    wholes = {"total_bytes", "usable_bytes", "capacity_bytes", "kv_cache_bytes", "start_bytes"}
    skipped = wholes | {"host_bytes", "encoder_bytes"}  # of encoders, weights have them
    names = {name for name in before if name.endswith("_bytes")} - skipped
    return {name for name in names if after[name] > before[name] * (1 + 1e-9)}


def _buffers(_: Oddity, pair: Pair) -> bool:
    return _risen(pair) == {"runtime_bytes"}


def _whole_towers(_: Oddity, pair: Pair) -> bool:
    """An encoder that was cut is whole where its heads do not divide."""
    rise = pair.after.memory["encoder_bytes"] - pair.before.memory["encoder_bytes"]
    total = pair.after.memory["total_bytes"] - pair.before.memory["total_bytes"]
    return bool(rise > total)


def _holds_more(_: Oddity, pair: Pair) -> bool:
    """Requests waited, and a larger cache holds more of them at once."""
    held = [float(case.estimates.serving.resident[0]) for case in pair]
    return pair.before.says("run at once") and held[1] > held[0] and _risen(pair) <= CACHE


def _stays_longer(_: Oddity, pair: Pair) -> bool:
    """At the same rate requests that take longer are more at once (Little's law)."""
    before, after = (case.estimates.serving for case in pair)
    more = float(after.resident[0] / before.resident[0])
    longer = float(after.request_latency_s[0] / before.request_latency_s[0])
    rate = pair.before.workload["mode"] == "open" and _risen(pair) <= CACHE
    return rate and 1 < more <= 1.02 * longer


def _gathers(_: Oddity, pair: Pair) -> bool:
    """States take less, but what is gathered of them for a layer takes more."""
    return _risen(pair) <= {"gathered_bytes", "reserve_bytes"}


def _whole_logits(_: Oddity, pair: Pair) -> bool:
    """Full logits fit after all, so the loss is no longer computed in chunks."""
    chunked = [case.says(IN_CHUNKS) for case in pair]
    return chunked == [True, False] and _risen(pair) <= {"loss_bytes", "reserve_bytes"}


def _one_more_step(_: Oddity, pair: Pair) -> bool:
    """The prompts of a static batch no longer fit into as many steps, each as long as before."""
    if pair.before.workload["mode"] != "static":
        return False
    steps = []
    for case in pair:
        cases = case.estimates.cases
        tokens = prompt_chunks(cases, chunked=False)[0] * case.estimates.serving.resident
        steps.append(float(np.ceil(tokens / cases.max_batched_tokens)[0]))
    return steps[1] == steps[0] + 1 and pair.change("ttft_s") <= 1.01 * steps[1] / steps[0] - 1


def _idle_ranks(_: Oddity, pair: Pair) -> bool:
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


def _traffic(_: Oddity, pair: Pair) -> bool:
    return _step(pair.after)[1] <= _step(pair.before)[1] * (1 + 1e-9)


def _hides_traffic(_: Oddity, pair: Pair) -> bool:
    before, after = map(_step, pair)
    return after[0] < before[0] and after[1] >= before[1] * (1 - 1e-9)


IN_CHUNKS = "fused_loss: full logits would not fit"
LOGITS = Reason("full logits fit, which fused_loss cut before", _whole_logits, IN_CHUNKS)
FREE, REST = "gone where they take no time", "the rest takes no longer"
LINK_NOTE = "Links between devices take"
LINKS = Reason(f"links: {FREE}", _taken_away(free_links), LINK_NOTE)
LAUNCHES = Reason(f"kernel launches: {FREE}", _taken_away(free_launches), "to launch kernels")
ALONE = "prompts share steps: gone, or no longer served, where none do"
TOGETHER = Reason(ALONE, _share_steps, "prompts that share a step")
ONE_MORE = "the prompts of a static batch need one step more"
IDLE = "ranks without a request take part in steps of shared experts"
AS_GOOD = "8-bit kernels: gone where they are as good as 16-bit ones"

REASONS: dict[str, tuple[Reason, ...]] = {
    "one prompt token more: a time jumps by over 20 %": (
        Reason(ONE_MORE, _one_more_step, "prompts of a batch take"),
    ),
    "load doubled: time to first token falls by over 1 %": (LAUNCHES, TOGETHER),
    "dp doubled: throughput falls by over 2 %": (
        LINKS,
        LAUNCHES,
        Reason(IDLE, _idle_ranks, "data-parallel ranks have no request"),
        TOGETHER,
    ),
    "tp doubled: throughput halves or worse": (LINKS,),
    "tp doubled: memory rises": (
        Reason("communication buffers alone rise", _buffers, "Communication buffers take"),
        Reason("an encoder is held whole", _whole_towers, "cut over tp where tp divides"),
        Reason("a larger cache holds more of the waiting requests", _holds_more, "run at once"),
        Reason("at the same rate slower requests are more at once", _stays_longer, LINK_NOTE),
    ),
    "fp8 weights: throughput over 5 % below bf16": (
        Reason(AS_GOOD, _taken_away(alike_kernels), "kernels are slower here than"),
        LAUNCHES,
    ),
    "training, dp doubled: a step takes over 2 % longer": (
        Reason(f"traffic of gradients and states: {REST}", _traffic),
    ),
    "training in fp8: a step takes over 5 % longer": (
        Reason(f"casts to 8 bits: {FREE}", _taken_away(free_casts)),
        Reason("casts and power of 8-bit products", _taken_away(free_casts, alike_pace)),
        Reason(f"a shorter backward pass hides less traffic: {REST}", _traffic),
    ),
    "training, tp doubled: memory rises": (LOGITS,),
    "training, all recomputed: memory rises": (LOGITS,),
    "training, all recomputed: a step takes less time": (
        Reason("a longer backward pass hides more traffic of gradients", _hides_traffic),
    ),
    "training, states divided (ZeRO 3): memory rises": (
        LOGITS,
        Reason("parameters gathered for a layer alone rise", _gathers),
    ),
}


def reason_for(oddity: Oddity, pair: Pair) -> str | None:
    """The first reason that explains an odd pair and that an answer of it states."""
    for reason in REASONS.get(oddity.name, ()):
        if reason.stated(pair) and reason.holds(oddity, pair):
            return reason.name
    return None


def over_reason(case: Case) -> str | None:
    """Why a split that needs more memory than may be used can run, where its notes say it."""
    memory, says = case.memory, case.says
    if "training" in case.answer:
        most = memory["usable_bytes"] * (1 + training_data().figures.tight.value)
        if memory["total_bytes"] <= most and says("memory is tight"):
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
