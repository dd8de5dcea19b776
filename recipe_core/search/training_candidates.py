"""Every training split that a search looks at."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.base.errors import InputError
from recipe_core.model.spec import MoeMlp
from recipe_core.request.schema import CandidateRequest
from recipe_core.search.training_problem import Asked, shared_columns, stated_columns
from recipe_core.space.training import (
    RECOMPUTE,
    TrainingCases,
    TrainingSetting,
    stack_cases,
    training_cases,
)
from recipe_core.space.training_rules import rules

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
"""Micro-batches that a search tries; more fill no device better."""
VIRTUAL_STAGES = (1, 2, 4)
MAX_CASES = 400_000


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _worlds(asked: Asked) -> list[int]:
    """Numbers of devices to look at: all; also doubling from one device on where fewer nodes may be used."""
    c = asked.cluster
    every = c.per_node * c.nodes
    if asked.request.options.nodes == "all":
        return [every]
    inside = [d for d in _divisors(c.per_node) if c.per_node % d == 0]
    return sorted(
        {
            *inside,
            *(c.per_node * 2**k for k in range(c.nodes.bit_length()) if 2**k <= c.nodes),
            every,
        }
    )


def _degrees(asked: Asked, limits: CandidateRequest) -> list[tuple[int, int, int, int, int]]:
    """tp, pp, cp, dp and ep of every split: tp within a fast island, pp within the layers."""
    model, c = asked.model, asked.cluster
    island = (c.fabric.domain or 1) if c.rack_scale else c.per_node
    moe = next((m for layer, _ in model.kinds if isinstance(m := layer.mlp, MoeMlp)), None)
    out: list[tuple[int, int, int, int, int]] = []
    for world in _worlds(asked):
        for tp in (d for d in _divisors(world) if d <= island):
            for pp in (d for d in _divisors(world // tp) if d <= len(model.layers)):
                for cp in (
                    d
                    for d in _divisors(world // (tp * pp))
                    if d == 1 or asked.workload.sequence_length // d >= 1024
                ):
                    dp = world // (tp * pp * cp)
                    shared = (
                        [e for e in _divisors(tp * cp * dp) if moe.experts % e == 0] if moe else [1]
                    )
                    out.extend((tp, pp, cp, dp, ep) for ep in shared)
    stated = (limits.tp, limits.pp, limits.cp, limits.dp, limits.ep)
    return [
        row
        for row in out
        if all(want is None or want == has for want, has in zip(stated, row, strict=True))
    ]


def every_case(
    asked: Asked, setting: TrainingSetting, limits: CandidateRequest | None = None
) -> TrainingCases:
    """Every split of the request's devices with every ZeRO stage, micro-batch, number of chunks and recomputation.

    FSDP also with states divided inside a node only (HSDP). Splits that break a rule with a micro-batch of one and a chunk a stage are
    listed once.
    """
    limits = limits or CandidateRequest()
    degrees = np.array(_degrees(asked, limits), dtype=np.int64).reshape(-1, 5)
    base = training_cases(
        len(degrees),
        **dict(zip(("tp", "pp", "cp", "dp", "ep"), degrees.T, strict=True)),
        **shared_columns(asked),
    )
    legal = np.ones(len(base), dtype=np.bool_)
    for rule in rules(setting, base):
        legal &= ~rule.broken
    micro = np.array([limits.micro_batch] if limits.micro_batch else MICRO_BATCHES)
    zero = np.array([limits.zero_stage] if limits.zero_stage is not None else range(4))
    virtual = np.array([limits.virtual_stages] if limits.virtual_stages else VIRTUAL_STAGES)
    again = np.array([RECOMPUTE.index(limits.recompute)] if limits.recompute else range(3))
    groups = np.arange(2 if setting.framework.sharding == "fsdp" and not limits.shard else 1)
    grids = np.meshgrid(np.flatnonzero(legal), micro, zero, virtual, again, groups, indexing="ij")
    rows, *grid, hybrid = (axis.ravel() for axis in grids)
    chosen = {name: getattr(base, name)[rows] for name in ("tp", "pp", "cp", "dp", "ep")}
    columns = chosen | dict(
        zip(("micro_batch", "zero_stage", "virtual_stages", "recompute"), grid, strict=True)
    )
    given: dict[str, Any] = stated_columns(limits)
    if limits.sequence_parallel is not None:
        given["sequence_parallel"] = int(limits.sequence_parallel)
    replicas, inside = (
        chosen["dp"] * chosen["cp"],
        np.maximum(base.per_node[rows] // chosen["tp"], 1),
    )
    given["shard"] = limits.shard or np.where(hybrid > 0, inside, replicas)
    sensible = (hybrid == 0) | (
        (columns["zero_stage"] == 3) & (inside > 1) & (replicas > inside) & (replicas % inside == 0)
    )
    found = training_cases(len(rows), **columns, **given, **shared_columns(asked))
    found = found.take(np.flatnonzero(sensible & _worthwhile(asked, setting, found, limits)))
    both = stack_cases([found, base.take(np.flatnonzero(~legal))])
    if len(both) > MAX_CASES:
        raise InputError(
            f"{len(both):,} splits are too many to judge at once.",
            field="candidate",
            hint="State some of tp, pp, cp, ep, or options.nodes: all.",
        )
    return both


def _worthwhile(
    asked: Asked, setting: TrainingSetting, cases: TrainingCases, limits: CandidateRequest
) -> Bool:
    """Which rows differ from another in something, and have a batch and chunks that come out even."""
    drops = not setting.flash or setting.framework.selective_keeps.value < 1
    again = (cases.recompute != RECOMPUTE.index("selective")) | drops
    even = cases.global_batch % (cases.dp * cases.micro_batch) == 0
    chunks = cases.virtual_stages == 1
    layers = len(asked.model.layers)
    chunks |= (
        (cases.pp > 1)
        & (layers % (cases.pp * cases.virtual_stages) == 0)
        & (cases.micro_batches % cases.pp == 0)
    )
    states = (cases.zero_stage == 0) | (cases.replicas > 1)
    stated = [
        (limits.micro_batch, even),
        (limits.virtual_stages, chunks),
        (limits.zero_stage, states),
        (limits.recompute, again),
    ]
    keep = np.ones(len(cases), dtype=np.bool_)
    for want, fine in stated:
        if want is None:
            keep &= fine
    return keep
