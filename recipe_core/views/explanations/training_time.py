"""The time of a training step down to operations and bytes, and its pipeline as a timetable.

The step is computed again with the ledger open (docs/method/physics.md, "Training"). In the
timetable each stage works through its list in order; a forward pass waits for the stage before, a
backward pass for the stage after. Lists: GPipe runs all forwards, then all backwards; 1F1B ``p - i
- 1`` forwards ahead, then one of each in turn (Narayanan et al., arXiv:1806.03377); interleaved the
same over chunks of a stage (arXiv:2104.04473). Hand-over between stages is assumed to be hidden.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.errors import InputError
from recipe_core.base.units import share_text
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
from recipe_core.views.texts import Phrases

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
            "this layout has no pipeline: every device holds all layers.",
            hint="Choose a layout with PP above 1.",
        )
    parts, training = require_part(estimate.breakdown_s).step, require_part(estimate.training)
    total = training.micro_batches
    forward_s = _sum_passes(parts, "forward_") / total
    backward_s = (_sum_passes(parts, "backward_") + parts.get("recompute", 0.0)) / total
    fitting = max(2 * stages, MOST_TASKS // (2 * stages * chunks))
    shown = min(total, fitting - fitting % stages)
    tasks = timeline(candidate["schedule"], stages, shown, forward_s, backward_s, chunks)
    extent = f"the first {shown:,} of {total:,}" if shown < total else f"all {total:,}"
    bubble = share_text(training.bubble_share, 1)
    return tasks, (
        f"{candidate['schedule'].upper()}, {extent} micro-batches. Stages idle for {bubble} of the "
        "step. Hover over a bar for its micro-batch. Embedding, head and gradients are not shown."
    )


HIDDEN = "Less what computing hides of it"
STEP = "Parts of a step"
# Parts that follow from others.
DERIVED = frozenset(
    {
        *("recompute", "reference", "launch", "host_parameters", "bubble", "stragglers"),
        "data_loading",
    }
)
_PHRASES = Phrases("training_time", exact=efficiency_text, plain=plain_number, time=time_text)


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
        Line(_part_title(name), "its operators", text, time_text(step[name]))
        for name, texts in terms.items()
        if name in step and (text := " + ".join(texts).replace("+ -", "- "))
    ]
    numbers = _derived_numbers(block.setting, estimates.cases.take([k]), parts, step)
    lines += _part_lines("derived", defaultdict(float, step), numbers, STEP_TITLES)
    if loop is not None:
        seconds = {
            name: float(loop.phases[name][k]) for name in PHASE_TITLES if name in loop.phases
        }
        seconds = {name: value for name, value in seconds.items() if value > 0}
        of_phases = _phase_numbers(estimates, loop, k)
        lines += _part_lines("phases", seconds, of_phases, PHASE_TITLES)
    sources = [*hardware_constants([operators]), *_framework_constants(block.setting, step)]
    return Times({STEP: lines}, (table,), tuple(sources))


def _step_seconds(estimates: TrainingEstimates, k: int, case: TrainingCases) -> dict[str, float]:
    """Seconds of a step's parts that take time; of one optimizer step where answers are sampled."""
    parts = estimates.parts
    if estimates.reinforcement is not None:
        parts, k = training_step_parts(estimates.setting, case), 0
    return {name: float(of[k]) for name, of in parts.items() if of[k] > 0}


def _part_title(name: str) -> str:
    return STEP_TITLES.get(name, name)


def _part_lines(
    macro: str, seconds: Mapping[str, float], numbers: Mapping[str, Any], titles: Mapping[str, str]
) -> Iterator[Line]:
    for name, formula, text in _PHRASES.rows(macro, seconds, numbers):
        yield Line(titles.get(name, name), formula, text, time_text(seconds[name]))


def _derived_numbers(
    setting: TrainingSetting,
    case: TrainingCases,
    parts: Mapping[str, Sum],
    step: Mapping[str, float],
) -> dict[str, float]:
    out = {
        "forward_s": _sum_passes(step, "forward_"),
        "before_s": sum(step.values()) - step.get("data_loading", 0.0),
        "prefetched": setting.loading.prefetch,
    }
    if "launch" in step:
        terms = parts["launch"].terms
        hosts = (term for term in terms if isinstance(term[0], Overhead) and term[1] > 0)
        entry, out["layers"] = next(hosts)
        out["layer_s"] = entry.seconds
    if "host_parameters" in step:
        out["copies_s"] = _host_copies_s(setting, case)
    if "bubble" in step:
        out["idle"] = only_number(bubble_micro_batches(case))
    return out


def _sum_passes(step: Mapping[str, float], prefix: str) -> float:
    return sum(seconds for name, seconds in step.items() if name.startswith(prefix))


def _host_copies_s(setting: TrainingSetting, case: TrainingCases) -> float:
    """Seconds of a step in which a device's layers cross the host link, none hidden."""
    stored = stored_parameters(setting, case, parameters_by_stage(setting, case))
    copies = copied_s(setting, case, *(np.nanmax(part, axis=1) for part in stored))
    gradients = gradient_copies_s(setting, case)
    return float((case.micro_batches * (copies[0] + copies[1]) + gradients)[0])


def _phase_numbers(
    estimates: TrainingEstimates, loop: Reinforcement, i: int
) -> dict[str, float | None]:
    sampling, rollouts = loop.sampling, loop.rollouts
    return {
        "tokens": sampling.work.sequences * sampling.work.response_tokens,
        "tokens_per_s": float(rollouts.tokens_per_s[i]),
        "tail_s": float(rollouts.tail_s[i]),
        "sync_bytes": loop.sync_bytes,
        "host_link": estimates.setting.calibration.host_link_bytes_per_s.value,
        "batches": work_batches(sampling),
        "updates": sampling.updates,
    }


def _framework_constants(setting: TrainingSetting, step: Iterable[str]) -> Iterator[Constant]:
    data, framework, figures = training_data(), setting.framework, setting.calibration
    device, title, experts = setting.cluster.device, framework.title, framework.experts
    paces = figures.sustained_fp8 if setting.precision == "fp8" else figures.sustained
    pace = paces.get(device.architecture[:-1], paces[device.runtime])
    exchange = "forward_expert_parallel"
    fullest = ("Spread of experts' loads, of their mean", figures.router_spread)
    if setting.method == "pretrain":
        fullest = ("Fullest rank over the mean, experts", figures.imbalance)
    # of every step, or of one with a part that takes time
    rows: list[tuple[str, str, Number, Callable[[float], str]]] = [
        (name, part, number, efficiency_text)
        for part, name, number in (
            ("", "Pace of products when busy for long", pace),
            ("", "Attention, over a prompt's kernel", figures.attention_slowdown),
            ("", f"{title}, passes of elementwise kernels", framework.elementwise_passes),
            (
                "forward_tensor_parallel",
                f"{title}, exposed tensor-parallel traffic",
                framework.tensor_exposed,
            ),
            (
                "data_parallel",
                f"{title}, share of passes that hides traffic",
                framework.data_overlap,
            ),
            (
                "recompute",
                f"{title}, selective recomputation repeats",
                framework.selective_recomputes,
            ),
            ("pipeline_parallel", "Exposed pipeline traffic", figures.pipeline_exposed),
            (exchange, *fullest),
            ("stragglers", "Stragglers, for each doubling of nodes", figures.straggler),
        )
    ]
    link, host_layer = figures.host_link_bytes_per_s, f"{title}, host time of a layer"
    rows += [
        ("Host link", "host_parameters", link, lambda rate: f"{rate / 1e9:.0f} GB/s"),
        (host_layer, "launch", framework.launch_s, time_text),
        ("Fixed time of a step", "fixed", figures.step_s, time_text),
    ]
    if experts:
        wait, moves = "host reads an exchange's sizes", "reads and writes of a routed row"
        rows.append((f"{title}, {wait}", exchange, experts.wait_s, time_text))
        rows.append((f"{title}, {moves}", exchange, experts.row_moves, efficiency_text))
    parts = {"", *step}
    for name, part, of, show in rows:
        if part in parts:
            source = cited(data.sources, of.source, of.note)
            yield Constant(name, show(of.value), of.status, source)
