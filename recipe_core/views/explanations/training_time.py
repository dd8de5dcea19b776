"""The time of a training step down to operations and bytes, and its pipeline as a timetable.

The step is computed again with the ledger open (docs/method/physics.md, "Training"). In the
timetable each stage works through its list in order; a forward pass waits for the stage before, a
backward pass for the stage after. Lists: GPipe runs all forwards, then all backwards; 1F1B ``p - i
- 1`` forwards ahead, then one of each in turn (Narayanan et al., arXiv:1806.03377); interleaved the
same over chunks of a stage (arXiv:2104.04473). Hand-over between stages is assumed to be hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.errors import InputError
from recipe_core.base.units import gib, token_rate_text
from recipe_core.engines.frameworks import Number, training_data
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.ledger import Overhead, Sum, only_number, recorded_sums, recording
from recipe_core.estimates.prediction import require_part
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

# Schedules whose order is known here; zero-bubble schedules split the backward pass.
DRAWN = ("1f1b", "interleaved", "gpipe")
# Passes that a chart stays readable with.
MOST_TASKS = 600


@dataclass(frozen=True, slots=True)
class Task:
    """One pass of a micro-batch through a chunk of a stage; seconds from the start of the step."""

    stage: int
    chunk: int
    micro_batch: int
    backward: bool
    start_s: float
    end_s: float


def timeline(
    schedule: str,
    stages: int,
    micro_batches: int,
    forward_s: float,
    backward_s: float,
    chunks: int = 1,
) -> list[Task]:
    """Every task of a step, in order of stage and start.

    ``forward_s`` and ``backward_s`` are those of a whole stage.

    Raises:
        InputError: for a schedule whose order is not known here, or micro-batches that do not fill
            an interleaved pipeline.
    """
    if schedule not in DRAWN:
        raise InputError(
            f"the order of {schedule} cannot be drawn.",
            field="candidate.schedule",
            hint=f"Available: {', '.join(DRAWN)}.",
        )
    if chunks > 1 and micro_batches % stages:
        raise InputError(
            f"{micro_batches} micro-batches do not fill {stages} stages: use a multiple.",
            field="candidate.virtual_stages",
        )
    lists = [_stage_passes(schedule, n, stages, micro_batches, chunks) for n in range(stages)]
    return _scheduled(lists, stages, chunks, forward_s / chunks, backward_s / chunks)


# Backward or not, chunk, micro-batch.
Pass = tuple[bool, int, int]


def _stage_passes(
    schedule: str, stage: int, stages: int, micro_batches: int, chunks: int
) -> list[Pass]:
    order = _by_group(stages, micro_batches, chunks)
    forwards = [(False, chunk, m) for chunk, m in order]
    backwards = [(True, chunks - 1 - chunk, m) for chunk, m in order]
    if schedule == "gpipe":
        return [*forwards, *backwards]
    ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(ahead, len(forwards))
    out: list[Pass] = list(forwards[:ahead])
    for k, forward in enumerate(forwards[ahead:]):
        out += [forward, backwards[k]]
    return out + backwards[len(forwards) - ahead :]


def _by_group(stages: int, micro_batches: int, chunks: int) -> list[tuple[int, int]]:
    """Chunk and micro-batch in the order of an interleaved pipeline.

    As many micro-batches as stages pass through a chunk at a time.
    """
    if chunks == 1:
        return [(0, m) for m in range(micro_batches)]
    groups = range(0, micro_batches, stages)
    return [
        (chunk, first + m) for first in groups for chunk in range(chunks) for m in range(stages)
    ]


def _scheduled(
    lists: Sequence[Sequence[Pass]], stages: int, chunks: int, forward_s: float, backward_s: float
) -> list[Task]:
    """Start and end of every pass; each stage starts the next of its list as soon as it can."""
    done: dict[tuple[int, Pass], float] = {}
    free, position = [0.0] * stages, [0] * stages
    tasks: list[Task] = []
    progress = True
    while progress:
        progress = False
        for stage, passes in enumerate(lists):
            while position[stage] < len(passes):
                step = passes[position[stage]]
                ready = _ready(done, stage, step, stages, chunks)
                if ready is None:
                    break
                backward, chunk, micro_batch = step
                start = max(free[stage], ready)
                end = start + (backward_s if backward else forward_s)
                done[stage, step] = free[stage] = end
                position[stage] += 1
                progress = True
                tasks.append(Task(stage, chunk, micro_batch, backward, start, end))
    return sorted(tasks, key=lambda task: (task.stage, task.start_s))


def _ready(
    done: dict[tuple[int, Pass], float], stage: int, step: Pass, stages: int, chunks: int
) -> float | None:
    """Return when the passes that a pass waits for are done; None while they are not."""
    backward, chunk, m = step
    if not backward:
        if stage == 0 and chunk == 0:
            return 0.0
        before = (stage - 1, (False, chunk, m)) if stage else (stages - 1, (False, chunk - 1, m))
        return done.get(before)
    forward = done.get((stage, (False, chunk, m)))
    if stage == stages - 1 and chunk == chunks - 1:
        return forward
    after = (stage + 1, (True, chunk, m)) if stage < stages - 1 else (0, (True, chunk + 1, m))
    later = done.get(after)
    return None if forward is None or later is None else max(forward, later)


def best_with_pipeline(plan: Plan) -> int | None:
    """The best feasible row with several stages; None where there is none."""
    piped = plan.order[plan.columns["pp"][plan.order] > 1]
    return int(piped[0]) if len(piped) else None


def step_timeline(plan: Plan, row: int) -> tuple[list[Task], str]:
    """The timetable of a row's step, with no more micro-batches than a chart can show, and a note.

    A pass takes its parts of the step divided by the micro-batches. Gradients and the optimizer are
    left out.

    Raises:
        InputError: for a split without a pipeline, or a schedule whose order is not known here.
    """
    candidate, estimate = plan.candidate(row), plan.estimate(row)
    stages, chunks = int(candidate["pp"]), int(candidate["virtual_stages"])
    if stages == 1:
        raise InputError(
            "this split has no pipeline: every device holds all layers.",
            hint="Choose a split with pp above 1.",
        )
    parts, training = require_part(estimate.breakdown_s).step, require_part(estimate.training)
    total = training.micro_batches
    forward_s = _sum_passes(parts, "forward_") / total
    backward_s = (_sum_passes(parts, "backward_") + parts.get("recompute", 0.0)) / total
    fitting = max(2 * stages, MOST_TASKS // (2 * stages * chunks))
    shown = min(total, fitting - fitting % stages)
    tasks = timeline(candidate["schedule"], stages, shown, forward_s, backward_s, chunks)
    extent = f"the first {shown:,} of {total:,}" if shown < total else f"all {total:,}"
    bubble = f"{training.bubble_share:.1%}"
    return tasks, (
        f"{candidate['schedule'].upper()}, {extent} micro-batches. Stages idle for {bubble} of the "
        "step. Hover over a bar for its micro-batch. Embedding, head and gradients are not shown."
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
    parts = estimates.parts
    if estimates.reinforcement is not None:
        parts, k = training_step_parts(estimates.setting, case), 0
    return {name: float(of[k]) for name, of in parts.items() if of[k] > 0}


def _part_line(name: str, formula: str, numbers: str, step: Mapping[str, float]) -> Line:
    return Line(STEP_TITLES.get(name, name), formula, numbers, time_text(step[name]))


def _derived_numbers(
    setting: TrainingSetting,
    case: TrainingCases,
    parts: Mapping[str, Sum],
    step: Mapping[str, float],
) -> Iterator[tuple[str, str]]:
    forward_s = _sum_passes(step, "forward_")
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


def _sum_passes(step: Mapping[str, float], prefix: str) -> float:
    return sum(seconds for name, seconds in step.items() if name.startswith(prefix))


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
    data, framework, figures = training_data(), setting.framework, setting.calibration
    device, title, parts = setting.cluster.device, framework.title, {"", *step}
    paces = figures.sustained_fp8 if setting.precision == "fp8" else figures.sustained
    pace = paces.get(device.architecture[:-1], paces[device.runtime])

    def number(
        name: str, of: Number, part: str = "", show: Callable[[float], str] = efficiency_text
    ) -> Iterator[Constant]:
        if part in parts:
            source = cited(data.sources, of.source, of.note)
            yield Constant(name, show(of.value), of.status, source)

    yield from number("Pace of products when busy for long", pace)
    yield from number("Attention, over a prompt's kernel", figures.attention_slowdown)
    yield from number(f"{title}, passes of elementwise kernels", framework.elementwise_passes)
    exposed = f"{title}, exposed tensor-parallel traffic"
    yield from number(exposed, framework.tensor_exposed, "forward_tensor_parallel")
    hides = f"{title}, share of passes that hides traffic"
    yield from number(hides, framework.data_overlap, "data_parallel")
    link = figures.host_link_bytes_per_s
    yield from number("Host link", link, "host_parameters", lambda rate: f"{rate / 1e9:.0f} GB/s")
    repeats = f"{title}, selective recomputation repeats"
    yield from number(repeats, framework.selective_recomputes, "recompute")
    yield from number(f"{title}, host time of a layer", framework.launch_s, "launch", time_text)
    yield from number("Exposed pipeline traffic", figures.pipeline_exposed, "pipeline_parallel")
    exchange, experts = "forward_expert_parallel", framework.experts
    if setting.method == "pretrain":
        yield from number("Fullest rank over the mean, experts", figures.imbalance, exchange)
    else:
        spread = "Spread of experts' loads, of their mean"
        yield from number(spread, figures.router_spread, exchange)
    if experts:
        wait = f"{title}, host reads an exchange's sizes"
        yield from number(wait, experts.wait_s, exchange, time_text)
        moves = f"{title}, reads and writes of a routed row"
        yield from number(moves, experts.row_moves, exchange)
    yield from number("Fixed time of a step", figures.step_s, "fixed", time_text)
    yield from number("Stragglers, for each doubling of nodes", figures.straggler, "stragglers")
