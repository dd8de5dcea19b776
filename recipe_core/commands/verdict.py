"""One command's verdict, read off a plan: whether it starts, its waste, a better command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.base.errors import RecipeError
from recipe_core.commands.arguments import Arguments, Finding, Level
from recipe_core.commands.ground import Ground
from recipe_core.commands.launches import Launch
from recipe_core.commands.meaning import Meant
from recipe_core.commands.render import Rendered, render
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine
from recipe_core.launch.process import Candidate, Deployment
from recipe_core.physics.serving.estimates import Estimates, estimate
from recipe_core.request.describe import short_name
from recipe_core.request.schema import Goal
from recipe_core.search.evaluated import EvaluatedCases
from recipe_core.search.problem import ServingProblem
from recipe_core.search.serving_candidates import served_context
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.space.serving import Cases, Setting

WORTHWHILE = 0.02
"""A split that is better by less is not offered."""
TIGHT = 0.02
"""A start that leaves less of the engine's memory is tight: weights are known to about as much."""

TRIED = 8
"""Splits, best first, of which one is offered that a command can say."""

KEPT = ("memory_fraction", "block_size", "stream_interval", "scheduler_recv_interval")
"""What other splits keep of a command; limits on a batch are chosen with the split."""

_GAINS: dict[Goal, tuple[str, int]] = {
    "throughput": ("output_tokens_per_s", 1),
    "cost": ("output_tokens_per_s_per_gpu", 1),
    "latency": ("request_latency_s", -1),
    "ttft": ("ttft_s", -1),
    "tpot": ("tpot_s", -1),
    "gpus": ("gpus", -1),
    "energy": ("joules_per_token", -1),
}
"""What each goal is measured by, and whether more of it is better."""


@dataclass(slots=True)
class Case:
    """One command, read."""

    launch: Launch
    arguments: Arguments
    meant: Meant
    findings: list[Finding]

    def say(
        self,
        level: Level,
        code: str,
        message: str,
        hint: str | None = None,
        option: str | None = None,
    ) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, code, option, message, hint))

    @property
    def server_devices(self) -> int | None:
        """Devices of this server, which may be one data-parallel rank; None for an open degree."""
        rank = grammars()[self.launch.engine].rank
        used, is_rank = self.meant.devices, rank is not None and rank[0] in self.arguments.values
        return used // self.meant.candidate["dp"] if used and is_rank else used


@dataclass(slots=True)
class Ready:
    """One command as columns: its own split, or all that agree with it where degrees are open.

    ``rows`` of its group's plan: the first of its own, the first of all other splits of its
    devices, past the last of those.
    """

    case: Case
    problem: ServingProblem
    setting: Setting
    cases: Cases
    rows: tuple[int, int, int] = (0, 0, 0)

    @property
    def others_key(self) -> tuple[Any, ...]:
        """Commands of a group with the same key have the same other splits."""
        limits = tuple(self.case.meant.candidate.get(name) for name in KEPT)
        hardware = self.problem.request.hardware
        return (self.problem.workload, hardware.per_node, hardware.nodes, limits)


@dataclass(frozen=True)
class Group:
    """The plan of commands that share a setting: one block of rows."""

    plan: ServingPlan

    @property
    def block(self) -> EvaluatedCases[Any, Any, Any]:
        """Every row of the plan, with its estimate."""
        return self.plan.blocks[0]

    @cached_property
    def positions(self) -> Int:
        """Where each row ranks; those that cannot run come last."""
        out = np.full(len(self.plan), len(self.plan))
        out[self.plan.order] = np.arange(len(self.plan.order))
        return out

    def best(self, start: int, end: int) -> int:
        """The best of some rows, counted from ``start``: the least short of memory if none runs."""
        position = self.positions[start:end]
        if position.min() < len(self.plan):
            return int(np.argmin(position))
        shortfall = self.plan.columns["shortfall_bytes"][start:end]
        return int(np.argmin(np.nan_to_num(shortfall, nan=np.inf)))

    def refused(self, rows: Iterable[int]) -> dict[int, tuple[Estimates, int]]:
        """Estimates, in one call, of the rows among these that a rule of splits refuses.

        The block did not estimate them. By row: the estimates, and the row's position in them.
        """
        legal = set(self.block.legal.tolist()) if self.block.estimates is not None else set()
        missing = np.array(sorted(set(rows) - legal), dtype=np.int64)
        if not len(missing):
            return {}
        estimates = estimate(self.block.setting, self.block.cases.take(missing))
        return {int(row): (estimates, k) for k, row in enumerate(missing)}


def _head(case: Case, ground: Ground) -> dict[str, Any]:
    spec = engine(case.launch.engine)
    return {
        "engine": {"name": spec.name, "version": spec.version},
        "model": ground.model or case.meant.model,
    }


@dataclass(frozen=True, slots=True)
class Unknown:
    """A command that has no estimate."""

    case: Case
    error: RecipeError

    def answer(self, ground: Ground) -> dict[str, Any]:
        """The error, and what was read before it."""
        return {
            "ok": None,
            "verdict": "unknown",
            **_head(self.case, ground),
            **self.error.to_json(),
            "findings": [finding.to_json() for finding in self.case.findings],
            "unread": self.case.arguments.unread,
        }


class View:
    """A command's part of its group's plan; ``row`` is its own split."""

    def __init__(self, ready: Ready, group: Group) -> None:
        self.ready, self.group, self.plan = ready, group, group.plan
        self.cases, self.columns = group.block.cases, group.plan.columns
        first, self.start, self.end = ready.rows
        self.row = first + group.best(first, first + len(ready.cases))
        self.refused: tuple[Estimates, int] | None = None

    def answer(self, ground: Ground) -> dict[str, Any]:
        """The verdict as plain values."""
        case, request = self.ready.case, self.ready.problem.request
        if self.refused:
            estimates, position = self.refused
            result = estimates.row(position)
            to_start = float(estimates.memory.start_bytes[position])
        else:
            result = self.plan.estimate(self.row)
            short, usable = (
                float(self.columns[name][self.row]) for name in ("shortfall_bytes", "usable_bytes")
            )
            to_start = usable + short
        refused = [str(finding) for finding in case.findings if finding.level == "error"]
        ok = result.feasible and not refused
        verdict = "cannot start"
        if ok:
            verdict = "tight" if self.tight else "fits"
        return {
            "ok": ok,
            "verdict": verdict,
            **_head(case, ground),
            "hardware": request.hardware.model_dump(mode="json", exclude_none=True),
            "workload": request.workload.model_dump(mode="json", exclude_none=True),
            "candidate": self.plan.candidate(self.row),
            "reasons": [*result.reasons, *refused],
            "findings": [finding.to_json() for finding in case.findings],
            "waste": self.waste(ground.optimize),
            "estimate": result.to_json(),
            "start_bytes": to_start,
            "better": self.better(ground.optimize, needed=bool(refused)),
            "changes": [],
            "unread": case.arguments.unread,
        }

    @property
    def feasible(self) -> bool:
        """Whether the command's own split can run."""
        return bool(self.columns["feasible"][self.row])

    @property
    def tight(self) -> bool:
        """Whether hardly any memory is left, or the cache holds less than the load in flight."""
        shortfall, usable, capacity = (
            float(self.columns[name][self.row])
            for name in ("shortfall_bytes", "usable_bytes", "max_concurrency")
        )
        concurrency = self.ready.problem.workload.concurrency or 1
        return -shortfall < TIGHT * usable or capacity < concurrency

    def waste(self, goal: Goal) -> dict[str, Any]:
        """Devices that the split leaves idle, and what more replicas would do with them."""
        c, row, splits = self.cases, self.row, slice(self.start, self.end)
        devices, used = self.ready.problem.request.hardware.devices, int(c.devices[row])
        out: dict[str, Any] = {"devices": devices, "used": used, "idle": max(devices - used, 0)}
        copies = devices // used
        if copies < 2 or c.ep[row] > 1 or not self.feasible:
            return out
        same = (
            (c.tp[splits] == c.tp[row])
            & (c.pp[splits] == c.pp[row])
            & (c.dp[splits] == c.dp[row] * copies)
            & (c.ep[splits] == 1)
        )
        for better in self.start + np.flatnonzero(same & self.columns["feasible"][splits])[:1]:
            rate = float(self.columns["output_tokens_per_s"][better])
            gain = self._gain(goal, better)
            out |= {"replicas": copies, "output_tokens_per_s": rate, "gain": gain}
        return out

    def _gain(self, goal: Goal, row: int) -> float | None:
        """How much better a row is by the goal, as a share; None where the own split cannot run."""
        name, sign = _GAINS[goal]
        before, after = float(self.columns[name][self.row]), float(self.columns[name][row])
        if not self.feasible or not (before > 0 and after > 0):
            return None
        return (after / before if sign > 0 else before / after) - 1

    def better(self, goal: Goal, needed: bool) -> dict[str, Any] | None:
        """The best split worth the change that a command can state, on the same engine and devices.

        Where something else than the split keeps the command from starting (``needed``), any split
        that starts is worth it.
        """
        without_command: dict[str, Any] | None = None
        positions = self.group.positions[self.start : self.end]
        for row in self.start + np.argsort(positions, kind="stable")[:TRIED]:
            gain = self._gain(goal, row)
            worth = needed or gain is None or gain > WORTHWHILE
            if not self.columns["feasible"][row] or not worth:
                break
            try:
                commands = [command.to_json() for command in self._commands(row)]
            except RecipeError as error:
                if without_command is None:
                    without_command = self._offer(row, gain)
                    without_command |= {"commands": [], "why_no_command": str(error)}
            else:
                return {**self._offer(row, gain), "commands": commands}
        return without_command

    def _offer(self, row: int, gain: float | None) -> dict[str, Any]:
        return {
            "candidate": self.plan.candidate(row),
            "gain": gain,
            "estimate": self.plan.estimate(row).to_json(),
        }

    def _commands(self, row: int) -> list[Rendered]:
        case, problem = self.ready.case, self.ready.problem
        model = str(case.meant.model)
        candidate = self.plan.candidate(row).items()
        deployment = Deployment(
            setting=replace(self.plan.setting(row), cluster=problem.cluster),
            candidate=Candidate(**{k: v for k, v in candidate if k in Candidate.__slots__}),
            max_context=served_context(problem.workload, problem.model),
            cache_tokens=self.plan.cache_tokens(row),
            served_name=short_name(model),
        )
        longest = "auto" if case.meant.max_context == "auto" else None
        return render(
            deployment, model, case.arguments.values, case.launch.program, longest=longest
        )
