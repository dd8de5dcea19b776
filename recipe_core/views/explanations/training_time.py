"""The time of a training step down to operations and bytes, and how its parts add up.

The step is computed again with the ledger open; its rows are the estimate's own numbers
(docs/method/physics.md, "Training").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from recipe_core.base.units import gib, token_rate_text
from recipe_core.engines.frameworks import Number, training_data
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.ledger import Overhead, Sum, only_number, recorded_sums, recording
from recipe_core.estimates.training.estimates import TrainingEstimates
from recipe_core.estimates.training.memory import stored_parameters
from recipe_core.estimates.training.optimizer_states import copied_s
from recipe_core.estimates.training.reinforcement import Reinforcement, at_mean, work_batches
from recipe_core.estimates.training.results import PHASE_TITLES, STEP_TITLES
from recipe_core.estimates.training.schedule import (
    bubble_micro_batches,
    gradient_copies_s,
    parts_of_length,
    training_step_parts,
)
from recipe_core.estimates.training.stages import parameters_by_stage
from recipe_core.plans.plan import Plan
from recipe_core.views.explanations.operators import (
    Constant,
    Line,
    Times,
    cited,
    efficiency_text,
    hardware_constants,
    plain_number,
    tabulate_operators,
    time_text,
)

HIDDEN = "Less what computing hides of it"
STEP = "Parts of a step"
# Parts that follow from others, with their formulas.
DERIVED = {
    "recompute": "forward pass · share that is computed again",
    "reference": "forward pass of the frozen model",
    "launch": "layers · micro-batches · host time of a layer - what the device takes for them",
    "host_parameters": "copies of layers and gradients over the host link - what computing hides "
    "of them",
    "bubble": "idle micro-batches, (pp - 1) ÷ chunks for 1F1B · mean time of one in a stage",
    "stragglers": "fitted share · log2(nodes) · all of the above",
    "data_loading": "time to load the tokens of a step - all of the above where data is prefetched",
}
# Hidden seconds below this are not shown.
_SHORTEST_S = 1e-6
# Formulas of the phases of a step of reinforcement learning.
_PHASES = {
    "rollout": "tokens of answers ÷ rate of a full engine + the longest alone",
    "weight_sync": "weights in 16 bits, to every device",
    "state_moves": "states moved ÷ rate of the host's link",
    **dict.fromkeys(
        ("old_log_probs", "reference", "values"), "batches of an optimizer step · its forward pass"
    ),
    **dict.fromkeys(("update", "critic"), "updates · an optimizer step"),
}


def training_times(plan: Plan, row: int) -> Times:
    """The sources of the time of a step of a feasible row."""
    block, i = plan.at(row)
    estimates, k = block.detail(i)
    case, loop = estimates.cases.take([k]), estimates.reinforcement
    if loop is not None:  # an optimizer step, of which there are several
        case = at_mean(loop.sampling, case)
    with recording():
        parts = recorded_sums(parts_of_length(block.setting, case))
    operators = {name: of for name, of in parts.items() if name not in DERIVED}
    title = "Operators of a step on a device of the slowest stage"
    table = tabulate_operators(title, operators, HIDDEN)
    step = _step_seconds(estimates, k, case)
    terms: dict[str, list[str]] = {}
    for operator in table.rows:
        terms.setdefault(operator.part, []).append(operator.time)
    lines = [
        _part_line(name, "its operators", " + ".join(texts).replace("+ -", "- "), step)
        for name, texts in terms.items()
        if name in step
    ]
    numbers = _derived_numbers(block.setting, estimates.cases.take([k]), parts, step)
    lines += [_part_line(name, DERIVED[name], text, step) for name, text in numbers]
    if loop is not None:
        lines += _phase_lines(estimates, loop, k)
    sources = [*hardware_constants([operators]), *_framework_constants(block.setting, step)]
    return Times({STEP: lines}, (table,), tuple(sources))


def _step_seconds(estimates: TrainingEstimates, k: int, case: TrainingCases) -> dict[str, float]:
    """Seconds of a step's parts that take time; of one optimizer step where answers are sampled."""
    if estimates.reinforcement is None:
        return {name: float(of[k]) for name, of in estimates.parts.items() if of[k] > 0}
    parts = training_step_parts(estimates.setting, case)
    return {name: float(of[0]) for name, of in parts.items() if of[0] > 0}


def _part_line(name: str, formula: str, numbers: str, step: Mapping[str, float]) -> Line:
    return Line(STEP_TITLES.get(name, name), formula, numbers, time_text(step[name]))


def _derived_numbers(
    setting: TrainingSetting,
    case: TrainingCases,
    parts: Mapping[str, Sum],
    step: Mapping[str, float],
) -> Iterator[tuple[str, str]]:
    """Names of the parts that follow from others, and their formulas with numbers."""
    forward_s = sum(seconds for name, seconds in step.items() if name.startswith("forward_"))
    for name in ("recompute", "reference"):
        if name in step:
            yield name, _share_numbers(step[name] / forward_s, forward_s)
    if "launch" in step:
        entry, count = next(
            (entry, count)
            for entry, count in parts["launch"].terms
            if isinstance(entry, Overhead) and count > 0
        )
        hidden_s = entry.seconds * count - step["launch"]
        host = f"{plain_number(count)} × {time_text(entry.seconds)}"
        yield "launch", f"{host} - {time_text(hidden_s)}"
    if "host_parameters" in step:
        copies_s = _host_copies_s(setting, case)
        hidden_s = copies_s - step["host_parameters"]
        hides = f" - {time_text(hidden_s)}" if hidden_s > _SHORTEST_S else ""
        yield "host_parameters", time_text(copies_s) + hides
    if "bubble" in step:
        idle = only_number(bubble_micro_batches(case))
        yield "bubble", _share_numbers(idle, step["bubble"] / idle)
    loading_s = step.get("data_loading", 0.0)
    before_s = sum(step.values()) - loading_s
    if "stragglers" in step:
        others_s = before_s - step["stragglers"]
        yield "stragglers", _share_numbers(step["stragglers"] / others_s, others_s)
    if "data_loading" in step:
        if setting.loading.prefetch == 0:
            yield "data_loading", time_text(loading_s)
        else:
            yield "data_loading", f"{time_text(loading_s + before_s)} - {time_text(before_s)}"


def _share_numbers(share: float, seconds: float) -> str:
    return f"{efficiency_text(share)} × {time_text(seconds)}"


def _host_copies_s(setting: TrainingSetting, case: TrainingCases) -> float:
    """Seconds of a step in which a device's layers cross the host link, none hidden."""
    stored = stored_parameters(setting, case, parameters_by_stage(setting, case))
    copies = copied_s(setting, case, *(np.nanmax(part, axis=1) for part in stored))
    gradients = gradient_copies_s(setting, case)
    return float((case.micro_batches * (copies[0] + copies[1]) + gradients)[0])


def _phase_lines(estimates: TrainingEstimates, loop: Reinforcement, i: int) -> Iterator[Line]:
    for name, label in PHASE_TITLES.items():
        seconds = float(loop.phases[name][i]) if name in loop.phases else 0.0
        if seconds > 0:
            formula = _PHASES.get(name, "as stated, and a forward pass of a model that rewards")
            numbers = _phase_numbers(estimates, loop, name, i, seconds)
            yield Line(label, formula, numbers, time_text(seconds))


def _phase_numbers(
    estimates: TrainingEstimates, loop: Reinforcement, name: str, i: int, seconds: float
) -> str:
    sampling, rollouts = loop.sampling, loop.rollouts
    if name == "rollout":
        tokens = sampling.work.sequences * sampling.work.response_tokens
        pace, tail_s = token_rate_text(float(rollouts.tokens_per_s[i])), float(rollouts.tail_s[i])
        return f"{tokens:,} ÷ {pace} + {time_text(tail_s)}"
    if name in ("old_log_probs", "reference", "values"):
        batches = work_batches(sampling)
        return f"{plain_number(batches)} × {time_text(seconds / batches)}"
    if name in ("update", "critic"):
        return f"{sampling.updates} × {time_text(seconds / sampling.updates)}"
    if name == "weight_sync":
        return gib(loop.sync_bytes)
    if name == "state_moves":
        return gib(seconds * estimates.setting.calibration.host_link_bytes_per_s.value)
    return time_text(seconds)


def _framework_constants(setting: TrainingSetting, step: Iterable[str]) -> Iterator[Constant]:
    """Numbers of the framework and of training in general that the parts use."""
    data, framework = training_data(), setting.framework
    figures, device = setting.calibration, setting.cluster.device
    parts = set(step)
    paces = figures.sustained_fp8 if setting.precision == "fp8" else figures.sustained
    pace = paces.get(device.architecture[:-1], paces[device.runtime])

    def number(name: str, of: Number, text: str = "") -> Constant:
        source = cited(data.sources, of.source, of.note)
        return Constant(name, text or efficiency_text(of.value), of.status, source)

    yield number("Pace of products when busy for long", pace)
    yield number("Attention, over a prompt's kernel", figures.attention_slowdown)
    title = framework.title
    yield number(f"{title}, passes of elementwise kernels", framework.elementwise_passes)
    if "forward_tensor_parallel" in parts:
        yield number(f"{title}, exposed tensor-parallel traffic", framework.tensor_exposed)
    if "data_parallel" in parts:
        yield number(f"{title}, share of passes that hides traffic", framework.data_overlap)
    if "host_parameters" in parts:
        link = figures.host_link_bytes_per_s
        yield number("Host link", link, f"{link.value / 1e9:.0f} GB/s")
    if "recompute" in parts:
        again = framework.selective_recomputes
        yield number(f"{title}, selective recomputation repeats", again)
    if "launch" in parts:
        launch = framework.launch_s
        yield number(f"{title}, host time of a layer", launch, time_text(launch.value))
    if "pipeline_parallel" in parts:
        yield number("Exposed pipeline traffic", figures.pipeline_exposed)
    if "forward_expert_parallel" in parts:
        yield from _expert_constants(setting, number)
    if "fixed" in parts:
        yield number("Fixed time of a step", figures.step_s, time_text(figures.step_s.value))
    if "stragglers" in parts:
        yield number("Stragglers, for each doubling of nodes", figures.straggler)


def _expert_constants(
    setting: TrainingSetting, number: Callable[..., Constant]
) -> Iterator[Constant]:
    """Numbers of the exchange of tokens."""
    figures, title = setting.calibration, setting.framework.title
    if setting.method == "pretrain":
        yield number("Fullest rank over the mean, experts", figures.imbalance)
    else:
        yield number("Spread of experts' loads, of their mean", figures.router_spread)
    if experts := setting.framework.experts:
        wait = experts.wait_s
        yield number(f"{title}, host reads an exchange's sizes", wait, time_text(wait.value))
        yield number(f"{title}, reads and writes of a routed row", experts.row_moves)
