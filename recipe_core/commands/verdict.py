"""One command's verdict, read off a plan: whether it starts, its waste, a better command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.base.errors import RecipeError
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.context import CommandContext
from recipe_core.commands.launches import Launch
from recipe_core.commands.option_meanings import Meant
from recipe_core.commands.render import Rendered, render_commands
from recipe_core.commands.rewrite import Reread, compare_commands, rewrite_layout
from recipe_core.compression.required import row_estimate_json
from recipe_core.engines.option_releases import ReleaseTable
from recipe_core.engines.options import OPTIONS
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.starts import start_errors
from recipe_core.launch.process import Candidate, Deployment
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import doubt_text
from recipe_core.plans.plans import plan_candidate, plan_cases, plan_splits
from recipe_core.plans.problem import ServingProblem
from recipe_core.plans.rank import ties_elsewhere
from recipe_core.plans.serving_candidates import every_split
from recipe_core.plans.serving_kind import count_cache_tokens
from recipe_core.plans.serving_settings import served_context
from recipe_core.plans.splits import broken_rules, row_state
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.describe import model_short_name
from recipe_core.request.metrics import Goal
from recipe_core.request.schema import PlanRequest


def judge_request(request: PlanRequest, *, folders: bool = True) -> dict[str, Any]:
    """Return whether the request's split (or any, when it states none) can run, and a better one.

    Returns:
        ``{"ok", "verdict", "reasons", "candidate", "estimate", "confidence", "better",
        "changes"}``; ``verdict`` is the row's state: ``holds``, ``queues``, ``uncertain`` (``ok``
        is None, and the reason says with which probability it starts) or ``cannot run``;
        ``confidence`` is the probability that it keeps the limits (None without limits, or where
        it cannot run), ``better`` is None where the checked split is the best of the whole plan;
        its ``tie`` says that nobody can tell which of the two would measure better.

    Raises:
        InputError: for a request that cannot be planned.
    """
    checked, row = plan_candidate(request, folders=folders)
    candidate, estimate = checked.candidate(row), checked.estimate(row)
    full = plan_splits(request, folders=folders)
    better = None
    if full.best is not None and full.best.candidate != candidate:
        better = {
            "candidate": full.best.candidate,
            "estimate": row_estimate_json(full, full.best.row),
            "tie": ties_elsewhere(full, full.best.row, checked, row),
        }
    sure = float(checked.chances[row]) if stated_limits(checked) and checked.runs[row] else None
    doubts = [doubt] if (doubt := doubt_text(checked, row)) else []
    return {
        "ok": None if checked.uncertain[row] else estimate.feasible,
        "verdict": row_state(checked, row),
        "reasons": [*estimate.reasons, *doubts],
        "candidate": candidate,
        "estimate": row_estimate_json(checked, row),
        "confidence": sure,
        "better": better,
        "changes": [change.to_json() for change in full.changes()],
    }


# A split that is better by less is not offered.
WORTHWHILE = 0.02

# Splits, best first, of which one is offered that a command can say.
TRIED = 8

# What other splits keep of a command: its limits are its owner's.
KEPT = tuple(option.name for option in OPTIONS)
# Limits of a server, which ranks of data-parallel attention share.
SHARED = ("max_batched_tokens", "max_num_seqs")

# Whether a command starts, by its verdict; None where estimates do not tell.
OK = {"fits": True, "tight": True, "uncertain": None, "cannot start": False}


class Case(Meant):
    """A server that a command starts: what it means, and what to judge it on."""

    def __init__(self, context: CommandContext, launch: Launch, judged: ReleaseTable) -> None:
        self.context, self.launch = context, launch
        args, program, env = launch.args, launch.program, launch.env
        super().__init__(Arguments(launch.engine, args, judged, program, env), env)

    @property
    def server_devices(self) -> int | None:
        """Devices of this server, which may be one data-parallel rank; None for an open degree."""
        used, rank = self.devices, self.grammar.rank
        is_rank = rank is not None and rank[0] in self.arguments.values
        return used // self.candidate["dp"] if used and is_rank else used

    @property
    def elastic(self) -> str:
        """Say why a lack of memory may not stop the server; empty where it does."""
        automatic, title = self.grammar.automatic, self.spec.title
        if automatic and automatic.weights in self.left_to_engine:
            flag = f"--{automatic.weights.replace('_', '-')}"
            return f"without {flag}, {title} leaves layers that do not fit in the host's memory."
        caches = [name for name, meaning in self.grammar.means.items() if meaning == "kv_dtype"]
        for name in caches:
            value = self.arguments.values.get(name)
            if value is not None and value not in self.grammar.words.get(name, {value: None}):
                cache = f"a {value} cache is counted as one of the model's own format"
                return f"{cache}, which is larger."
        return ""

    def head(self) -> dict[str, Any]:
        """Engine, table of options and model, which every answer names."""
        judged = self.arguments.judged
        return {
            "engine": {"name": self.engine, "version": judged.version or self.spec.version},
            "judged_with": judged.to_json(),
            "model": self.context.model or self.model,
        }


@dataclass(frozen=True, slots=True)
class Unknown:
    """A command that has no estimate."""

    case: Case
    error: RecipeError

    def answer(self) -> dict[str, Any]:
        return {
            "ok": None,
            "verdict": "unknown",
            **self.case.head(),
            **self.error.to_json(),
            "findings": self.case.findings.to_json(),
            "unread": self.case.arguments.unread,
        }


def plan_commands(views: Sequence[View], *, alone: bool = False) -> None:
    """Estimate commands that share a setting as rows of one plan, and all other splits with them.

    Those are of each command's devices and keep its share of memory; ``alone`` leaves them out.
    """
    blocks, rows, at = list[Cases](), list[slice](), 0
    splits: dict[tuple[Any, ...], slice] = {}
    for view in views:
        if not alone and view.splits_key not in splits:
            blocks.append(view.every_split())
            splits[view.splits_key] = slice(at, at := at + len(blocks[-1]))
        blocks.append(view.cases)
        rows.append(slice(at, at := at + len(view.cases)))
    plan = plan_cases(views[0].problem, views[0].setting, stack_columns(blocks))
    for view, its_rows in zip(views, rows, strict=True):
        view.plan, view.splits = plan, splits.get(view.splits_key, slice(0, 0))
        view.row = view.best_of(its_rows)


@dataclass(slots=True)
class View:
    """One command as columns: its own split, or all that agree with it where degrees are open.

    ``plan``: where `plan_commands` put it, ``row``: of its own split there, ``splits``: the rows of
    all splits of its devices. ``mended``: the command without what its engine refuses; ``changes``:
    the fewest words after which it starts. ``reread``: see `rewrite_layout`.
    """

    case: Case
    problem: ServingProblem
    setting: Setting
    cases: Cases
    reread: Reread
    plan: Plan = field(init=False)
    row: int = field(init=False)
    splits: slice = field(init=False)
    mended: View | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def splits_key(self) -> tuple[Any, ...]:
        """Commands of one setting with the same key have the same other splits."""
        hardware = self.problem.request.hardware
        limits = tuple(sorted(self.kept.items()))
        return (self.problem.workload, hardware.per_node, hardware.nodes, limits)

    @property
    def kept(self) -> dict[str, Any]:
        """Limits and sizes that the command states for a server, which other splits keep."""
        case = self.case
        names = (name for name in KEPT if case.candidate.get(name) is not None)
        limits = {name: case.candidate[name] for name in names}
        for name in SHARED if case.attention_dp else ():
            if name in limits:  # which each rank has a share of
                limits[name] = case.arguments.values[case.by_meaning[name]]
        return limits

    def every_split(self) -> Cases:
        """Every split of the command's devices that keeps what it says beside the split."""
        limits = self.kept
        fixed = CandidateRequest.model_validate(limits)
        splits = every_split(self.problem, self.setting, fixed)
        if "attention_dp" in self.case.grammar.means.values():
            ranks = np.where(splits.shares_experts, splits.dp, 1)
            for name in SHARED:
                if name in limits:
                    getattr(splits, name)[:] = np.maximum(limits[name] // ranks, 1)
        return splits

    def ranked(self, rows: slice) -> Int:
        """The rows among some that can run, the best first."""
        order = self.plan.order
        return np.asarray(order[(order >= rows.start) & (order < rows.stop)])

    def best_of(self, rows: slice) -> int:
        """The best of some rows: the one that is least short of memory if none runs."""
        if len(ranked := self.ranked(rows)):
            return int(ranked[0])
        shortfall = self.columns["shortfall_bytes"][rows]
        start: int = rows.start
        return start + int(np.argmin(np.nan_to_num(shortfall, nan=np.inf)))

    @property
    def columns(self) -> Mapping[str, Any]:
        return self.plan.columns

    def answer(self) -> dict[str, Any]:
        """The verdict as plain values."""
        case, request, verdict = self.case, self.problem.request, self.verdict
        estimate = self.plan.estimate(self.row)
        doubt = [doubt_text(self.plan, self.row)] if verdict == "uncertain" else []
        doubt = [case.elastic] if self.stretched else doubt
        return {
            "ok": OK[verdict],
            "verdict": verdict,
            "start_probability": estimate.memory.start_probability,
            **case.head(),
            "hardware": request.hardware.model_dump(mode="json", exclude_none=True),
            "workload": request.workload.model_dump(mode="json", exclude_none=True),
            "request": request.model_dump(mode="json", exclude_unset=True, exclude_none=True),
            "candidate": self.plan.candidate(self.row),
            "reasons": [*estimate.reasons, *self.refused_words, *doubt],
            "findings": case.findings.to_json(),
            "waste": self.waste(),
            "estimate": estimate.to_json(),
            "start_bytes": estimate.memory.start_bytes,
            "better": (self.mended or self).better(case.context.optimize, case),
            "changes": self.changes,
            "unread": case.arguments.unread,
        }

    @property
    def refused_words(self) -> list[str]:
        """Say what the engine refuses of the command, whatever its split."""
        return list(map(str, self.case.findings.errors))

    @property
    def refused(self) -> bool:
        """Return whether a rule refuses the split before it is estimated."""
        return self.row not in self.plan.blocks[0].legal

    @property
    def verdict(self) -> str:
        """``fits``, ``tight``, ``uncertain`` or ``cannot start``."""
        if self.stretched:
            return "uncertain"
        if self.refused_words or self.refused or not self.feasible:
            return "cannot start"
        if self.plan.uncertain[self.row]:
            return "uncertain"
        return "tight" if self.tight else "fits"

    @property
    def stretched(self) -> bool:
        """Return whether only memory is short, for which the engine makes room by itself."""
        refused = self.refused_words or self.refused
        short = not self.feasible and broken_rules(self.plan, self.row) <= {"memory"}
        return bool(self.case.elastic) and not refused and short

    @property
    def feasible(self) -> bool:
        return bool(self.columns["feasible"][self.row])

    @property
    def tight(self) -> bool:
        """Return whether memory just suffices, or the cache holds less than the load in flight."""
        chance, capacity = (
            float(self.columns[name][self.row]) for name in ("start_probability", "max_concurrency")
        )
        concurrency = self.problem.workload.concurrency or 1
        return chance < start_errors().sure or capacity < concurrency

    def waste(self) -> dict[str, Any]:
        """Devices that the split leaves idle, and the output of more replicas on them."""
        c, row, splits = self.plan.blocks[0].cases, self.row, self.splits
        devices, used = self.problem.request.hardware.devices, int(c.devices[row])
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
        for better in splits.start + np.flatnonzero(same & self.columns["feasible"][splits])[:1]:
            rate = float(self.columns["output_tokens_per_s"][better])
            own_rate = float(self.columns["output_tokens_per_s"][row])
            gain = rate / own_rate - 1 if own_rate > 0 else None
            out |= {"replicas": copies, "output_tokens_per_s": rate, "gain": gain}
        return out

    def _gain(self, goal: Goal, row: int) -> float | None:
        """Return the gain of a row by the goal, as a share; None where the own split cannot run."""
        name, sign = self.plan.spec.goals[goal]
        name = self.plan.spec.unpriced.get(name, name)
        more = sign < 0 or goal == "cost"  # output for each device in place of a price
        before, after = float(self.columns[name][self.row]), float(self.columns[name][row])
        if not self.feasible or not (before > 0 and after > 0):
            return None
        return (after / before if more else before / after) - 1

    def better(self, goal: Goal, original: Case) -> dict[str, Any] | None:
        """The best split worth the change that a command can state, on the same engine and devices.

        Where the command does not surely start, any split that does is worth it. ``original``: the
        user's command, which this one may mend.
        """
        needed, without_command = OK[self.verdict] is not True, None
        for row in self.ranked(self.splits)[:TRIED]:
            gain = self._gain(goal, row)
            worth = needed or gain is None or gain > WORTHWHILE
            if not self.plan.certain[row] or not worth:
                break
            offer = {
                "candidate": self.plan.candidate(row),
                **({} if gain is None else {"gain": gain}),
                "estimate": self.plan.estimate(row).to_json(),
            }
            try:
                commands = [
                    {**command.to_json(), "difference": compare_commands(original, command)}
                    for command in self._commands(row)
                ]
            except RecipeError as error:
                offer |= {"commands": [], "why_no_command": str(error)}
                without_command = without_command or offer
            else:
                return {**offer, "commands": commands}
        return without_command

    def _commands(self, row: int) -> list[Rendered]:
        """The commands of a row: in the user's own words where one process can say it."""
        rendered = self._render(row)
        if len(rendered) > 1:
            return rendered
        candidate = self.plan.candidate(row)
        rewritten = rewrite_layout(self.case, rendered[0], candidate, self.reread)
        return rendered if rewritten is None else [rewritten]

    def _render(self, row: int) -> list[Rendered]:
        case, problem = self.case, self.problem
        model = str(case.model)
        setting, table = self.plan.setting(row), case.arguments.table.version
        spec = setting.engine.with_options_of(table)
        deployment = Deployment(
            setting=replace(setting, cluster=problem.cluster, engine=spec),
            candidate=Candidate.of(self.plan.candidate(row)),
            max_context=served_context(problem.workload, problem.model),
            cache_tokens=count_cache_tokens(self.plan, row),
            served_name=model_short_name(model),
        )
        longest = "auto" if case.max_context == "auto" else None
        return render_commands(
            deployment, model, case.arguments.values, case.launch.program, longest=longest
        )
