"""What would let a refused split run, and what would let any run where none does: changes to the request, each really judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.errors import RecipeError
from recipe_core.base.labels import serving_split, training_split
from recipe_core.base.units import significant
from recipe_core.request.edit import change
from recipe_core.request.schema import CandidateRequest, PlanRequest
from recipe_core.search import advice
from recipe_core.search.board import Board
from recipe_core.search.limits import LIMITS
from recipe_core.search.serving_board import ServingBoard
from recipe_core.search.serving_candidates import one_split, resolve
from recipe_core.search.serving_plan import judged
from recipe_core.search.training_board import TrainingBoard

AT_MOST = 3
CLOSE = 50
"""Rows with the nearest degrees whose other choices are compared."""


@dataclass(frozen=True, slots=True)
class Fix:
    """What helps a refused split: ``changes`` to the request after which it runs, or else the nearest split (``key``) that runs now."""

    changes: dict[str, Any]
    key: str | None = None


def fixes(board: Board, row: int, at_most: int = AT_MOST) -> list[Fix]:
    """Changes that let this very split run, and the nearest split that runs already; none for a row that is not refused."""
    if board.feasible[row]:
        return []
    found: list[Fix] = []
    if isinstance(board, ServingBoard):
        for changes in _changes(board, row):
            if len(found) < at_most - 1 and _helps(board, row, changes):
                found.append(Fix(changes))
    near = nearest_fitting(board, row)
    return [*found, *([] if near is None else [Fix({}, board.key(near))])]


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes to a request, and the name of the split that is best after them."""

    changes: dict[str, Any]
    split: str


def remedies(board: Board) -> list[Remedy]:
    """Where nothing fits: a few changes after which something does."""
    if isinstance(board, ServingBoard):
        return [
            Remedy(found.changes, serving_split(found.candidate))
            for found in advice.remedies(board.table)
        ]
    if isinstance(board, TrainingBoard):
        return [
            Remedy({found.field: found.value}, training_split(found.candidate))
            for found in board.table.remedies
        ]
    return []


def nearest_fitting(board: Board, row: int) -> int | None:
    """The feasible row whose degrees are nearest (by their logarithms), and whose other choices differ least; None when nothing fits."""
    if not len(board.ranked):
        return None
    wanted = board.candidate(row)
    distance = np.zeros(len(board.ranked))
    for name in ("tp", "pp", "dp", "ep", "cp"):
        distance += np.abs(np.log2(board.degree(name)[board.ranked] / wanted[name]))
    close = board.ranked[np.argsort(distance, kind="stable")[:CLOSE]]
    return min(
        (int(each) for each in close), key=lambda each: _apart(wanted, board.candidate(each))
    )


def _apart(a: dict[str, Any], b: dict[str, Any]) -> float:
    """How far two candidates are apart: doublings of degrees, and one for every other choice that differs."""
    out = 0.0
    for name, value in a.items():
        other = b.get(name)
        if (
            isinstance(value, bool | str)
            or not isinstance(value, int | float)
            or not isinstance(other, int | float)
        ):
            out += value != other
        elif name not in (
            "shard",
            "max_num_seqs",
            "max_batched_tokens",
            "block_size",
            "memory_fraction",
        ):
            out += abs(math.log2(max(value, 0.5) / max(other, 0.5)))
    return out


def _helps(board: ServingBoard, row: int, changes: dict[str, Any]) -> bool:
    """Whether the row's split runs after the changes: resolved and judged anew, its own formats replaced by those changed."""
    try:
        request = change(_here(board, row), changes)
        candidate = board.candidate(row)
        if "options.weight_dtypes" in changes:
            candidate["weight_dtype"] = changes["options.weight_dtypes"][0]
        if "options.engines" in changes:
            candidate = {
                name: value
                for name, value in candidate.items()
                if name in ("tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype")
            }
            candidate["engine"] = changes["options.engines"][0]
        found = resolve(request, folders=True)
        exact = one_split(found, CandidateRequest.model_validate(candidate))
        return exact is not None and bool(judged(found, *exact).feasible[0])
    except RecipeError:
        return False


def _here(board: ServingBoard, row: int) -> PlanRequest:
    """The request on the row's cluster alone."""
    asked = board.table.setting(row).cluster.asked
    parts: dict[str, Any] = {"hardware": asked} if asked else {}
    options = board.request.options.model_copy(update={"hardware": ()})
    return board.request.model_copy(update=parts | {"options": options, "candidate": None})


def _changes(board: ServingBoard, row: int) -> Iterator[dict[str, Any]]:
    """Changes worth trying for the rules that a row breaks, the least intrusive first; several rules are met together."""
    codes = board.codes(row)
    limits = {
        name: value
        for code in sorted(codes & set(LIMITS))
        for name, value in _looser(board, row, code).items()
    }
    if codes and codes <= set(LIMITS):
        yield limits
    for code, suggest in _SUGGEST.items():
        if code in codes:
            yield from (limits | changes for changes in suggest(board, row))


def _looser(board: ServingBoard, row: int, code: str) -> dict[str, Any]:
    """The limit at the row's own figure, rounded so that it passes."""
    rule = LIMITS[code]
    value = float(board.table.bounded(code)[row]) * rule.factor
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    rounded = (math.floor if rule.least else math.ceil)(round(value / step, 6)) * step
    return {
        f"objective.limits.{rule.name}": int(rounded)
        if rule.name == "gpus"
        else float(f"{rounded:.10g}")
    }


def _for_memory(board: ServingBoard, row: int) -> Iterator[dict[str, Any]]:
    """A shorter context, weights that the engine converts itself, a smaller model's worth of them."""
    block, i = board.table.at(row)
    found, k = block.memory(i)
    w, setting = board.table.found.workload, block.setting
    longest = int(found.context_limit[k])
    if w.input_tokens + w.output_tokens <= longest:
        yield {"workload.max_context": longest}
    if setting.model.quantization is None:
        for dtype in setting.engine.online_weight_dtypes:
            if dtype in setting.cluster.device.weight_dtypes and dtype != setting.weight_dtype:
                yield {"options.weight_dtypes": (dtype,)}


def _for_context(board: ServingBoard, _: int) -> Iterator[dict[str, Any]]:
    w, most = board.table.found.workload, board.table.found.model.max_context
    if w.output_tokens < most:
        yield {"workload.input_tokens": most - w.output_tokens, "workload.max_context": None}


def _for_batch(board: ServingBoard, row: int) -> Iterator[dict[str, Any]]:
    most = int(board.columns["max_concurrency"][row])
    if most >= 1:
        yield {"workload.batch": most}


def _for_rate(board: ServingBoard, row: int) -> Iterator[dict[str, Any]]:
    served = float(board.raw("output")[row]) / board.table.found.workload.output_tokens
    if math.isfinite(served) and served > 0:
        yield {"workload.request_rate": float(significant(served * 0.95, 2).replace(",", ""))}


def _for_idle(board: ServingBoard, row: int) -> Iterator[dict[str, Any]]:
    field = {"closed": "concurrency", "static": "batch"}.get(board.table.found.workload.mode)
    if field:
        yield {f"workload.{field}": int(board.candidate(row)["dp"])}


def _for_format(board: ServingBoard, row: int) -> Iterator[dict[str, Any]]:
    for dtype in board.table.setting(row).cluster.device.weight_dtypes:
        yield {"options.weight_dtypes": (dtype,)}


_SUGGEST: dict[str, Callable[[ServingBoard, int], Iterator[dict[str, Any]]]] = {
    "memory": _for_memory,
    "context": _for_context,
    "batch": _for_batch,
    "rate": _for_rate,
    "idle-replicas": _for_idle,
    "weight-dtype": _for_format,
}
"""What helps against a rule, by its code; against rules of divisibility only another split does."""
