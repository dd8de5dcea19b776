"""The time of a training step down to operations and bytes, and how its parts add up.

The step is computed again with the ledger open; its rows are the estimate's own numbers
(docs/method/physics.md, "Training").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from recipe_core.base.labels import TRAINING_CAUSES
from recipe_core.base.provenance import Source
from recipe_core.engines.frameworks import Number, training_data
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.ledger import Overhead, Sum, one, recording, sums
from recipe_core.estimates.training.estimates import TrainingEstimates
from recipe_core.estimates.training.host_states import copied_s
from recipe_core.estimates.training.memory import held, stored_parameters
from recipe_core.estimates.training.reinforcement import at_mean
from recipe_core.estimates.training.schedule import (
    bubble_micro_batches,
    gradient_copies_s,
    parts_of_length,
    step_parts,
)
from recipe_core.plans.training_plan import TrainingPlan
from recipe_core.views.explanations.line import Line
from recipe_core.views.explanations.operators import (
    Constant,
    Working,
    cited,
    constants,
    plain_number,
    share_text,
    time_text,
    working,
)
from recipe_core.views.explanations.reinforcement import phase_lines
from recipe_core.views.explanations.serving_time import Times

HIDDEN = "Less what computing hides of it"
DERIVED = (
    "recompute",
    "reference",
    "launch",
    "host_parameters",
    "bubble",
    "stragglers",
    "data_loading",
)
"""Parts that follow from others."""
STEP = "Parts of a step"
_LEAST_S = 1e-6
"""Of what is hidden, seconds that are not told."""


def training_times(plan: TrainingPlan, row: int) -> Times:
    """Where the time of a step of a feasible row is from."""
    block, i = plan.at(row)
    estimates, k = block.detail(i)
    case, loop = estimates.cases.take([k]), estimates.reinforcement
    if loop is not None:  # an optimizer step, of which there are several
        case = at_mean(loop.sampling, case)
    with recording():
        parts = sums(parts_of_length(block.setting, case))
    operators = {name: of for name, of in parts.items() if name not in DERIVED}
    title = "Operators of a step on a device of the slowest stage"
    table = working(title, operators, HIDDEN)
    step = _step(estimates, k, case)
    lines = [*_lines(table, step), *_derived(block.setting, estimates, k, parts, step)]
    if loop is not None:
        lines += phase_lines(estimates, loop, k)
    sources = [*constants([operators]), *_framework(block.setting, step)]
    return Times({STEP: lines}, (table,), tuple(sources))


def _step(estimates: TrainingEstimates, k: int, case: TrainingCases) -> dict[str, float]:
    """Seconds of a step's parts that take time; of one optimizer step where answers are sampled."""
    if estimates.reinforcement is None:
        return {name: float(of[k]) for name, of in estimates.parts.items() if of[k] > 0}
    parts = step_parts(estimates.setting, case)
    return {name: float(of[0]) for name, of in parts.items() if of[0] > 0}


def _lines(table: Working, step: Mapping[str, float]) -> Iterator[Line]:
    """Every part that is a sum of operators."""
    by_part: dict[str, list[str]] = {}
    for row in table.rows:
        by_part.setdefault(row.part, []).append(row.time)
    for name, texts in by_part.items():
        if name in step:
            numbers = " + ".join(texts).replace("+ -", "- ")
            yield Line(_label(name), "its operators", numbers, time_text(step[name]))


def _label(name: str) -> str:
    return TRAINING_CAUSES.get(name, name)


def _derived(
    setting: TrainingSetting,
    estimates: TrainingEstimates,
    k: int,
    parts: Mapping[str, Sum],
    step: Mapping[str, float],
) -> Iterator[Line]:
    """Parts that follow from others."""
    case = estimates.cases.take([k])
    forward_s = sum(seconds for name, seconds in step.items() if name.startswith("forward_"))
    for name, formula in (
        ("recompute", "forward pass · share that is computed again"),
        ("reference", "forward pass of the frozen model"),
    ):
        if name in step:
            share = step[name] / forward_s
            numbers = f"{time_text(forward_s)} × {share_text(share)}"
            yield Line(_label(name), formula, numbers, time_text(step[name]))
    if "launch" in step:
        launched = next(
            (entry, count)
            for entry, count in parts["launch"].terms
            if isinstance(entry, Overhead) and count > 0
        )
        host_s = launched[0].seconds * launched[1]
        numbers = (
            f"{plain_number(launched[1])} × {time_text(launched[0].seconds)} - "
            f"{time_text(host_s - step['launch'])}"
        )
        formula = "layers · micro-batches · host time of a layer - what the device takes for them"
        yield Line(_label("launch"), formula, numbers, time_text(step["launch"]))
    if "host_parameters" in step:
        copies_s = _host_copies_s(setting, case)
        hidden_s = copies_s - step["host_parameters"]
        hides = f" - {time_text(hidden_s)}" if hidden_s > _LEAST_S else ""
        numbers = f"{time_text(copies_s)}{hides}"
        formula = "copies of layers and gradients over the host link - what computing hides of them"
        value = time_text(step["host_parameters"])
        yield Line(_label("host_parameters"), formula, numbers, value)
    if "bubble" in step:
        idle = one(bubble_micro_batches(case))
        numbers = f"{share_text(idle)} × {time_text(step['bubble'] / idle)}"
        formula = "idle micro-batches, (pp - 1) ÷ chunks for 1F1B · mean time of one in a stage"
        yield Line(_label("bubble"), formula, numbers, time_text(step["bubble"]))
    if "stragglers" in step:
        others_s = sum(step.values()) - step["stragglers"] - step.get("data_loading", 0.0)
        share = step["stragglers"] / others_s
        numbers = f"{share_text(share)} × {time_text(others_s)}"
        formula = "fitted share · log2(nodes) · all of the above"
        yield Line(_label("stragglers"), formula, numbers, time_text(step["stragglers"]))
    if "data_loading" in step:
        others_s = sum(step.values()) - step["data_loading"]
        behind_s = 0.0 if setting.loading.prefetch == 0 else others_s
        numbers = time_text(step["data_loading"] + behind_s)
        numbers += f" - {time_text(behind_s)}" if behind_s else ""
        formula = "time to load the tokens of a step - all of the above where data is prefetched"
        yield Line(_label("data_loading"), formula, numbers, time_text(step["data_loading"]))


def _host_copies_s(setting: TrainingSetting, case: TrainingCases) -> float:
    """Seconds of a step in which a device's layers cross the host link, none hidden."""
    stored = stored_parameters(setting, case, held(setting, case))
    copies = copied_s(setting, case, *(np.nanmax(part, axis=1) for part in stored))
    gradients = gradient_copies_s(setting, case)
    return float((case.micro_batches * (copies[0] + copies[1]) + gradients)[0])


def _framework(setting: TrainingSetting, step: Iterable[str]) -> Iterator[Constant]:
    """Numbers of the framework and of training in general that the parts use."""
    data, framework = training_data(), setting.framework
    figures, device = setting.calibration, setting.cluster.device
    parts = set(step)
    known = figures.sustained_fp8 if setting.precision == "fp8" else figures.sustained
    pace = known.get(device.architecture[:-1], known[device.runtime])

    def number(name: str, of: Number, text: str = "") -> Constant:
        return Constant(name, text or share_text(of.value), of.status, _from(data.sources, of))

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
        yield from _experts(setting, number)
    if "fixed" in parts:
        yield number("Fixed time of a step", figures.step_s, time_text(figures.step_s.value))
    if "stragglers" in parts:
        yield number("Stragglers, for each doubling of nodes", figures.straggler)


def _experts(setting: TrainingSetting, number: Callable[..., Constant]) -> Iterator[Constant]:
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


def _from(sources: Mapping[str, Source], of: Number) -> str:
    return cited(sources, of.source, of.note)
