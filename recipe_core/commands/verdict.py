"""One command's verdict, read off the plan that it shares with others: whether it starts, what it wastes, a better command."""

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
"""A start that leaves less than this share of the engine's memory is tight: weights are known to about as much."""

TRIED = 8
"""Splits, best first, of which one is offered that a command can say."""

KEPT = ("memory_fraction", "block_size")
"""Limits of a command that other splits keep; those on a batch are chosen with the split."""

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
    def own_devices(self) -> int | None:
        """Devices of this server, which may be one data-parallel rank of several; None where a degree is left open."""
        rank = grammars()[self.launch.engine].rank
        used, alone = self.meant.devices, rank is not None and rank[0] in self.arguments.values
        return used // self.meant.candidate["dp"] if used and alone else used


@dataclass(slots=True)
class Ready:
    """One command as columns: of its own split (of all that agree with it, where it leaves degrees open).

    ``rows`` of its group's table: the first of its own, the first of all other splits of its devices, past the last of those.
    """

    case: Case
    found: ServingProblem
    setting: Setting
    own: Cases
    rows: tuple[int, int, int] = (0, 0, 0)

    @property
    def others_key(self) -> tuple[Any, ...]:
        """Commands of a group with the same key have the same other splits."""
        limits = tuple(self.case.meant.candidate.get(name) for name in KEPT)
        hardware = self.found.request.hardware
        return (self.found.workload, hardware.per_node, hardware.nodes, limits)


@dataclass(frozen=True)
class Group:
    """The plan of commands that share a setting: one block of rows."""

    table: ServingPlan

    @property
    def block(self) -> EvaluatedCases[Any, Any, Any]:
        """All rows."""
        return self.table.blocks[0]

    @cached_property
    def positions(self) -> Int:
        """Where each row ranks; those that cannot run come last."""
        out = np.full(len(self.table), len(self.table))
        out[self.table.order] = np.arange(len(self.table.order))
        return out

    def best(self, start: int, end: int) -> int:
        """The best of some rows, the one that lacks least memory where none can run; counted from ``start``."""
        position = self.positions[start:end]
        if position.min() < len(self.table):
            return int(np.argmin(position))
        return int(
            np.argmin(np.nan_to_num(self.table.columns["shortfall_bytes"][start:end], nan=np.inf))
        )

    def refused(self, rows: Iterable[int]) -> dict[int, tuple[Estimates, int]]:
        """Estimates of rows that the block did not estimate, because a rule of splits refuses them: all in one call."""
        kept = set(self.block.legal.tolist()) if self.block.estimates is not None else set()
        lost = np.array(sorted(set(rows) - kept), dtype=np.int64)
        if not len(lost):
            return {}
        found = estimate(self.block.setting, self.block.cases.take(lost))
        return {int(row): (found, k) for k, row in enumerate(lost)}


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
        """What is known of it all the same."""
        findings = [finding.to_json() for finding in self.case.findings]
        known = {"findings": findings, "unread": self.case.arguments.unread}
        return {
            "ok": None,
            "verdict": "unknown",
            **_head(self.case, ground),
            **self.error.to_json(),
            **known,
        }


class View:
    """A command's part of its group's table."""

    def __init__(self, ready: Ready, group: Group) -> None:
        self.ready, self.group, self.table = ready, group, group.table
        self.cases, self.columns = group.block.cases, group.table.columns
        first, self.start, self.end = ready.rows
        self.own = first + group.best(first, first + len(ready.own))
        self.refused: tuple[Estimates, int] | None = None

    def answer(self, ground: Ground) -> dict[str, Any]:
        """The whole verdict."""
        case, request = self.ready.case, self.ready.found.request
        own = (
            self.refused[0].row(self.refused[1]) if self.refused else self.table.estimate(self.own)
        )
        refused = [str(finding) for finding in case.findings if finding.level == "error"]
        ok = own.feasible and not refused
        return {
            "ok": ok,
            "verdict": "cannot start" if not ok else "tight" if self.tight else "fits",
            **_head(case, ground),
            "hardware": request.hardware.model_dump(mode="json", exclude_none=True),
            "workload": request.workload.model_dump(mode="json", exclude_none=True),
            "candidate": self.table.candidate(self.own),
            "reasons": [*own.reasons, *refused],
            "findings": [finding.to_json() for finding in case.findings],
            "waste": self.waste(ground.optimize),
            "estimate": own.to_json(),
            "better": self.better(ground.optimize, needed=bool(refused)),
            "changes": [],
            "unread": case.arguments.unread,
        }

    @property
    def feasible(self) -> bool:
        """Whether the command's own split can run."""
        return bool(self.columns["feasible"][self.own])

    @property
    def tight(self) -> bool:
        """Whether the cache holds fewer requests than are in flight, or next to nothing is left beyond what the start needs."""
        shortfall, usable, held = (
            float(self.columns[name][self.own])
            for name in ("shortfall_bytes", "usable_bytes", "max_concurrency")
        )
        return -shortfall < TIGHT * usable or held < (self.ready.found.workload.concurrency or 1)

    def waste(self, goal: Goal) -> dict[str, Any]:
        """Devices that the split leaves idle, and what as many replicas as fit would do with them."""
        c, rows = self.cases, slice(self.start, self.end)
        there, used = self.ready.found.request.hardware.devices, int(c.devices[self.own])
        out: dict[str, Any] = {"devices": there, "used": used, "idle": max(there - used, 0)}
        copies = there // used
        if copies < 2 or c.ep[self.own] > 1 or not self.feasible:
            return out
        same = (
            (c.tp[rows] == c.tp[self.own])
            & (c.pp[rows] == c.pp[self.own])
            & (c.dp[rows] == c.dp[self.own] * copies)
            & (c.ep[rows] == 1)
        )
        for row in self.start + np.flatnonzero(same & self.columns["feasible"][rows])[:1]:
            rate = float(self.columns["output_tokens_per_s"][row])
            out |= {"replicas": copies, "output_tokens_per_s": rate, "gain": self._gain(goal, row)}
        return out

    def _gain(self, goal: Goal, row: int) -> float | None:
        """How much better a row is by the goal, as a share; None where the command's own cannot run."""
        name, sign = _GAINS[goal]
        here, there = float(self.columns[name][self.own]), float(self.columns[name][row])
        if not self.feasible or not (here > 0 and there > 0):
            return None
        return (there / here if sign > 0 else here / there) - 1

    def better(self, goal: Goal, needed: bool) -> dict[str, Any] | None:
        """The best split of the same engine on the same devices that a command can say and that is worth the change.

        Where something else than the split keeps the command from starting (``needed``), any that starts is.
        """
        unsaid: dict[str, Any] | None = None
        for row in (
            self.start
            + np.argsort(self.group.positions[self.start : self.end], kind="stable")[:TRIED]
        ):
            gain = self._gain(goal, row)
            if not self.columns["feasible"][row] or not (
                needed or gain is None or gain > WORTHWHILE
            ):
                break
            try:
                return self._offer(row, gain) | {
                    "commands": [each.to_json() for each in self._commands(row)]
                }
            except RecipeError as error:
                unsaid = unsaid or self._offer(row, gain) | {
                    "commands": [],
                    "why_no_command": str(error),
                }
        return unsaid

    def _offer(self, row: int, gain: float | None) -> dict[str, Any]:
        return {
            "candidate": self.table.candidate(row),
            "gain": gain,
            "estimate": self.table.estimate(row).to_json(),
        }

    def _commands(self, row: int) -> list[Rendered]:
        case, found = self.ready.case, self.ready.found
        name = str(case.meant.model)
        deployment = Deployment(
            setting=replace(self.table.setting(row), cluster=found.cluster),
            candidate=Candidate(
                **{
                    name: value
                    for name, value in self.table.candidate(row).items()
                    if name in Candidate.__slots__
                }
            ),
            max_context=served_context(found.workload, found.model),
            cache_tokens=self.table.cache_tokens(row),
            served_name=short_name(name),
        )
        auto = case.meant.max_context == "auto"
        return render(
            deployment,
            name,
            case.arguments.values,
            case.launch.program,
            longest="auto" if auto else None,
        )
