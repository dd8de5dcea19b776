"""Changes of a training request that may help, and what its decision may depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recipe_core.estimates.columns.training import OFFLOADS, TrainingSetting
from recipe_core.hardware.cluster import short_title
from recipe_core.plans.kind import Block, Cures, Fields
from recipe_core.plans.launch_rules import (
    FRAMEWORK,
    able_frameworks,
    launch_lacks,
    split_rules,
    ways_out,
)
from recipe_core.plans.problem import MAX_DEVICES
from recipe_core.plans.table import PlanTable
from recipe_core.request.edit import TRAINING_TOKENS
from recipe_core.request.split_key import TRAINING_FIELDS

# How far the sequence length (as a share) and the batch (as a factor) are moved.
LENGTH, LOAD = 0.5, 2.0
# How many times as many nodes are tried when nothing can run.
MORE_NODES = (2, 4, 8, 16, 32, 64)


def _training_remedies(table: PlanTable) -> Iterator[tuple[str, Fields]]:
    """Another framework, states on the host, up to ``MORE_NODES`` times the nodes.

    All on a framework that can launch what is asked, where the plan's cannot.
    """
    names = _other_frameworks(table)
    for name in names:
        yield f"framework {name}", {"candidate.engine": name}
    refused = bool(names) and all(map(_is_refused, table.blocks))
    on_framework = {"candidate.engine": names[0]} if refused else {}
    if table.problem.candidate.offload is None and table.blocks:
        yield from (
            ("offload", fields) for fields in _offload_changes(table, table.blocks[0].setting)
        )
    if table.problem.candidate.offload == "optimizer" and table.blocks:
        more = _offload_changes(table, table.blocks[0].setting, "parameters")
        yield from (("offload", fields) for fields in more)
    hardware = table.request.hardware
    for factor in MORE_NODES:
        if hardware.devices * factor <= MAX_DEVICES["training"]:
            yield "nodes", {"hardware.nodes": hardware.nodes * factor, **on_framework}


def _is_refused(block: Block) -> bool:
    return any(rule.code == FRAMEWORK for rule in block.outside)


def _cure_training_row(table: PlanTable, row: int, codes: frozenset[str]) -> Iterator[Fields]:
    """Changes that may let a refused row run: against memory, states on the host."""
    if "memory" in codes and table.candidate(row).get("offload") is None:
        yield from _offload_changes(table, table.setting(row))
        yield from _offload_changes(table, table.setting(row), "parameters")


def _other_frameworks(table: PlanTable) -> list[str]:
    if not table.blocks:
        return []
    used = {block.setting.engine for block in table.blocks}
    needs = _launch_needs(table)
    names = [name for block in table.blocks for name in able_frameworks(block.setting, *needs)]
    return [name for name in dict.fromkeys(names) if name not in used]


def _launch_needs(table: PlanTable) -> tuple[str, bool]:
    return table.problem.candidate.offload or "none", bool(table.problem.workload.fused_loss)


def _offload_changes(
    table: PlanTable, setting: TrainingSetting, states: str = "optimizer"
) -> Iterator[Fields]:
    """States on the host, on a framework that can be told so.

    Nothing where only without them a bundle can be made.
    """
    names = able_frameworks(setting, states, _launch_needs(table)[1])
    if setting.engine in names or training_launch_note(table):
        yield {"candidate.offload": states}
    elif names:
        yield {"candidate.offload": states, "candidate.engine": names[0]}


def _without_launch(table: PlanTable) -> list[TrainingSetting]:
    needs = _launch_needs(table)
    return [block.setting for block in table.blocks if not able_frameworks(block.setting, *needs)]


def training_launch_note(table: PlanTable) -> str | None:
    """Say why no bundle of any split can be made, as sentences; None where one can.

    Of several clusters also where only some have none.
    """
    needs, bare = _launch_needs(table), _without_launch(table)
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


def unlaunchable_reasons(table: PlanTable, row: int) -> list[str]:
    """Say what the framework of a row cannot be told of the request or the split, as sentences."""
    setting, (block, i) = table.setting(row), table.at(row)
    title, offload = setting.framework.title, OFFLOADS[int(block.cases.offload[i])]
    if lacks := [lack.phrase for lack in launch_lacks(setting, offload, _launch_needs(table)[1])]:
        return [f"{title} cannot launch {lack}." for lack in lacks]
    rules = split_rules(setting, block.cases.take([i]))
    return [f"{title}: {rule.say(0)}. {rule.hint}" for rule in rules if rule.broken[0]]


def _launch_cures(table: PlanTable) -> Iterator[Fields]:
    """Changes after which a bundle can be made, where none can: the fewest first."""
    if training_launch_note(table) is None:
        return
    tokens = {"workload.tokens": TRAINING_TOKENS} if table.problem.workload.tokens is None else {}
    bare = _without_launch(table)
    if not bare:
        yield dict(tokens)
        return
    for changes in ways_out(bare[0], *_launch_needs(table)):
        yield {**changes, **tokens}


def _training_moves(table: PlanTable) -> Iterator[tuple[str, Fields]]:
    """Move sequence length and batch down and up.

    Phases state lengths and batches of their own: what they are part of is not moved.
    """
    workload = table.problem.workload
    if workload.phases:
        return
    for sign in (-1, 1):
        tokens = max(round(workload.sequence_length * (1 + sign * LENGTH)), 1)
        yield f"sequence length {sign * LENGTH:+.0%}", {"workload.sequence_length": tokens}
    for factor in (1 / LOAD, LOAD):
        batch = max(round(workload.global_batch * factor), 1)
        yield f"global batch × {factor:g}", {"workload.global_batch": batch}


def _training_identity(table: PlanTable, row: int) -> tuple[Any, ...]:
    candidate, place = table.candidate(row), table.setting(row).cluster
    names = ("shard", *TRAINING_FIELDS)
    states = candidate.get("offload")
    return (place.device.digest, states, *(candidate[name] for name in names))


CURES = Cures(
    remedies=_training_remedies,
    row_cures=_cure_training_row,
    row_reliefs=lambda _table, _row, _codes: iter(()),
    carried=lambda _fields: {},
    finer_formats=lambda _table: iter(()),
    launches=_launch_cures,
    moves=_training_moves,
    identity=_training_identity,
)
