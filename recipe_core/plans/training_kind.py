"""Training as a kind of plan: splits of every framework, ZeRO stage and micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.engines.frameworks import framework
from recipe_core.estimates.columns.training import OFFLOADS, TrainingSetting
from recipe_core.estimates.training.memory import MEMORY_TITLES
from recipe_core.estimates.training.results import TrainingEstimate
from recipe_core.estimates.training.starts import METRICS, is_training_uncertain, training_errors
from recipe_core.hardware.cluster import short_title
from recipe_core.plans.evaluation import repeat_blocks
from recipe_core.plans.kind import Block, Cures, Fields, Kind, Ranking, Shown
from recipe_core.plans.launch_rules import (
    FRAMEWORK,
    able_frameworks,
    launch_lacks,
    split_rules,
    ways_out,
)
from recipe_core.plans.problem import MAX_DEVICES
from recipe_core.plans.training_candidates import describe_training_cases, stated_training_case
from recipe_core.plans.training_search import judge_training_cases, search_training
from recipe_core.plans.training_settings import launch_needs
from recipe_core.request.edit import usual_run
from recipe_core.request.metrics import goals_of, metrics_of, time_to_finish
from recipe_core.request.split_key import TRAINING_FIELDS

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

# How many times as many nodes are tried when nothing can run.
MORE_NODES = (2, 4, 8, 16, 32, 64)
# States that may be moved to the host beside those that are there.
_NEXT_STATES = {None: "optimizer", "optimizer": "parameters"}


def _training_remedies(table: Plan) -> Iterator[tuple[str, Fields]]:
    """Another framework, states on the host, up to ``MORE_NODES`` times the nodes.

    All on a framework that can launch what is asked, where the plan's cannot.
    """
    names = _other_frameworks(table)
    for name in names:
        yield f"framework {name}", {"candidate.engine": name}
    refused = bool(names) and all(
        any(rule.code == FRAMEWORK for rule in block.outside) for block in table.blocks
    )
    on_framework = {"candidate.engine": names[0]} if refused else {}
    states = _NEXT_STATES.get(table.problem.candidate.offload)
    if states and table.blocks:
        changes = _offload_changes(table, table.blocks[0].setting, states)
        yield from (("offload", fields) for fields in changes)
    hardware = table.request.hardware
    for factor in MORE_NODES:
        if hardware.devices * factor <= MAX_DEVICES["training"]:
            yield "nodes", {"hardware.nodes": hardware.nodes * factor, **on_framework}


def _cure_training_row(table: Plan, row: int, codes: frozenset[str]) -> Iterator[Fields]:
    """Changes that may let a refused row run: against memory, states on the host."""
    if "memory" in codes and table.candidate(row).get("offload") is None:
        for states in _NEXT_STATES.values():
            yield from _offload_changes(table, table.setting(row), states)


def _other_frameworks(table: Plan) -> list[str]:
    if not table.blocks:
        return []
    used = {block.setting.engine for block in table.blocks}
    needs = launch_needs(table.problem)
    names = [name for block in table.blocks for name in able_frameworks(block.setting, *needs)]
    return [name for name in dict.fromkeys(names) if name not in used]


def _offload_changes(table: Plan, setting: TrainingSetting, states: str) -> Iterator[Fields]:
    """States on the host, on a framework that can be told so.

    Nothing where only without them a bundle can be made.
    """
    names = able_frameworks(setting, states, launch_needs(table.problem)[1])
    if setting.engine in names or training_launch_note(table):
        yield {"candidate.offload": states}
    elif names:
        yield {"candidate.offload": states, "candidate.engine": names[0]}


def _without_launch(table: Plan) -> list[TrainingSetting]:
    needs = launch_needs(table.problem)
    return [block.setting for block in table.blocks if not able_frameworks(block.setting, *needs)]


def training_launch_note(table: Plan) -> str | None:
    """Say why no bundle of any split can be made, as sentences; None where one can.

    Of several clusters also where only some have none.
    """
    needs, bare = launch_needs(table.problem), _without_launch(table)
    notes = []
    if bare:
        lacks = dict.fromkeys(
            lack.phrase for setting in bare for lack in launch_lacks(setting, *needs)
        )
        some = len(bare) < len(table.blocks)
        titles = dict.fromkeys(short_title(setting.cluster.device) for setting in bare)
        where = f" on {' and '.join(titles)}" if some else ""
        notes.append(
            f"No framework launches {' and '.join(lacks)}{where}: figures"
            f"{' there' if some else ''} are estimates, without a bundle."
        )
    if table.blocks and table.problem.workload.tokens is None:
        notes.append("Without a token budget a step is estimated, and no bundle is made.")
    return " ".join(notes) or None


def unlaunchable_reasons(table: Plan, row: int) -> list[str]:
    """Say what the framework of a row cannot be told of the request or the split, as sentences."""
    setting, (block, i) = table.setting(row), table.at(row)
    title, offload = setting.framework.title, OFFLOADS[int(block.cases.offload[i])]
    if lacks := [*launch_lacks(setting, offload, launch_needs(table.problem)[1])]:
        return [f"{title} cannot launch {lack.phrase}." for lack in lacks]
    rules = split_rules(setting, block.cases.take([i]))
    return [f"{title}: {rule.say(0)}. {rule.hint}" for rule in rules if rule.broken[0]]


def _launch_cures(table: Plan) -> Iterator[Fields]:
    """Changes after which a bundle can be made, where none can: the fewest first."""
    if training_launch_note(table) is None:
        return
    workload = table.problem.workload
    usual = usual_run(workload.method)["tokens"]
    tokens = {"workload.tokens": usual} if workload.tokens is None else {}
    bare = _without_launch(table)
    if not bare:
        yield dict(tokens)
        return
    for changes in ways_out(bare[0], *launch_needs(table.problem)):
        yield {**changes, **tokens}


def _moved_training_fields(table: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """None of phases, which state lengths and batches of their own."""
    if table.problem.workload.phases:
        return (), ()
    return ("sequence_length",), ("global_batch",)


CURES = Cures(
    remedies=_training_remedies,
    row_cures=_cure_training_row,
    launches=_launch_cures,
    moved=_moved_training_fields,
    identity=("offload", "shard", *TRAINING_FIELDS),
)


COMPARED = ("gpus", "output", "per_gpu", "mfu", "step", "memory", "bubble")
STEP_TABLED = ("gpus", "step", "output", "per_gpu", "mfu", "memory", "bubble", "usd")
RUN_TABLED = ("gpus", "step", "output", "mfu", "memory", "goodput", "wall", "usd_run")
# Columns of a terminal's table of steps, of runs that end, and where answers are sampled.
SAMPLED_TABLED = ("gpus", "step", "rollout", "output", "per_gpu", "mfu", "memory", "usd")


def _shown_measures(table: Plan) -> Shown:
    """Measures of a step, or of the run where it has an end."""
    workload, sampled = table.problem.workload, ("rollout",)
    measures = metrics_of("training")
    rollout = workload.rollout is not None
    added = sampled if rollout else ()
    if workload.tokens is None:  # nothing to finish: a step is what is compared
        return Shown(
            measures=measures,
            axes=("step", "per_gpu"),
            listed=(*COMPARED, "usd", *added),
            tabled=SAMPLED_TABLED if rollout else STEP_TABLED,
            headline=("output", "step", "mfu", "usd", "usd_hour"),
            phrased=("output", "step", "usd"),
        )
    if len(table):
        rows = table.feasible if table.feasible.any() else slice(None)
        finish_s = table.columns["wall_s"][rows]
        finite_s = finish_s[np.isfinite(finish_s)]
        fastest_s = float(finite_s.min()) if len(finite_s) else 0.0
        measures = measures | {"wall": time_to_finish(fastest_s)}
    return Shown(
        measures=measures,
        axes=("wall", "per_gpu"),
        listed=(*COMPARED, "goodput", "run_mfu", "wall", "usd_run", *added),
        tabled=SAMPLED_TABLED if rollout else RUN_TABLED,
        headline=("output", "mfu", "goodput", "wall", "usd_run", "usd_hour"),
        phrased=("output", "wall", "usd_run"),
    )


def _training_simplicity(table: Plan) -> tuple[Any, ...]:
    """Fewer devices, more tokens/s, then less of everything that splits a model."""
    c = table.columns
    cut = ("zero_stage", "recompute", "virtual_stages", "cp", "ep", "tp", "pp")
    return (*(c[name] for name in cut), -c["tokens_per_s"], c["gpus"])


def _training_score_moves(table: Plan, rows: Int, *, sized: bool = False) -> Float:  # noqa: ARG001 - alike
    # throughput, cost and energy follow the time of a step; a number of devices is certain
    goals = table.request.objective.goals.items()
    weight = sum(weight for goal, weight in goals if table.spec.goals[goal][0] != "gpus")
    return np.full((len(rows), len(METRICS)), float(weight))


def _training_split_columns(table: Plan) -> Mapping[str, Any]:
    splits = table.candidates(range(len(table)))
    names = dict.fromkeys(name for split in splits for name in split)
    return {
        "device": repeat_blocks(table, lambda block: block.setting.cluster.device.name),
        **{name: [split.get(name) for split in splits] for name in names},
    }


def _is_same_training_split(candidate: Mapping[str, Any], split: Mapping[str, Any]) -> bool:
    key_fields = {"shard": split.get("dp", 1) * split.get("cp", 1), **split}
    names = ("shard", *TRAINING_FIELDS)
    hosted = [row.get("offload") == "parameters" for row in (candidate, split)]
    return hosted[0] == hosted[1] and all(candidate[name] == key_fields.get(name) for name in names)


def _training_memory(table: Plan, rows: Sequence[int]) -> dict[str, Float]:
    names = list(MEMORY_TITLES)
    values = np.reshape(table.by_block(rows, partial(_fullest_parts, names)), (-1, len(names)))
    return dict(zip(names, values.T, strict=True))


def _fullest_parts(names: Sequence[str], block: Block, cases: Int) -> Float:
    """Bytes of each part in the fullest stage (cases, parts); NaN without an estimate."""
    estimates, places = block.details(cases)
    by_stage = estimates.memory.by_stage[places]
    finite = np.isfinite(by_stage)
    fullest = np.argmax(np.where(finite, by_stage, -np.inf), axis=1)
    parts = [estimates.memory.parts[name][places, fullest] for name in names]
    return np.where(finite.any(axis=1)[:, None], np.stack(parts, axis=1).astype(float), np.nan)


def _detail_estimate(table: Plan, row: int) -> TrainingEstimate:
    """The estimate with a note of what a launch of the split cannot be told."""
    estimate: TrainingEstimate = table.estimate(row)
    lacks = unlaunchable_reasons(table, row) if estimate.feasible else []
    notes = [f"No bundle is made of this layout: {lack}" for lack in lacks]
    return replace(estimate, notes=[*estimate.notes, *notes])


def _trim_reasons(table: Plan, rows: list[list[str]]) -> list[list[str]]:
    """Keep the reason of a framework that cannot launch what is asked alone: it is not searched."""
    of_frameworks = {
        rule.say(0) for block in table.blocks for rule in block.outside if rule.code == FRAMEWORK
    }
    return [
        [reason for reason in reasons if reason in of_frameworks] or reasons for reasons in rows
    ]


TRAINING = Kind(
    name="training",
    parts=MEMORY_TITLES,
    goals=goals_of("training"),
    unpriced={"usd_per_million_tokens": "tokens_per_s_per_gpu"},
    frontier=("step_s", "tokens_per_s_per_gpu"),
    settled=("hardware",),
    ranking=Ranking(
        # rows that start, then the others with the most probable first
        precedence=lambda table: (
            np.where(table.uncertain, 1 - table.columns["start_probability"], 0.0),
        ),
        simplicity=_training_simplicity,
        unmeasured=lambda table: np.zeros(len(table), dtype=np.bool_),
        errors=training_errors,
        moves=_training_score_moves,
        software=lambda setting: (setting.cluster.device.name, setting.engine),
    ),
    cures=CURES,
    search_cases=search_training,
    find_case=lambda _kind, problem, candidate: stated_training_case(problem, candidate),
    judge_cases=judge_training_cases,
    shown=_shown_measures,
    is_uncertain=is_training_uncertain,
    names_of=lambda setting: {"engine": setting.engine},
    titles_of=lambda setting: {"engine": framework(setting.engine).title},
    split_columns=_training_split_columns,
    describe=lambda _table, block, cases: describe_training_cases(
        block.setting, block.cases, cases
    ),
    workload=lambda table, _row: table.request.workload,
    is_same_split=_is_same_training_split,
    memory=_training_memory,
    held_memory=_training_memory,
    detailed=_detail_estimate,
    trim_reasons=_trim_reasons,
    launch_note=training_launch_note,
    unlaunchable=unlaunchable_reasons,
)
