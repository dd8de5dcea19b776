"""A plan of training: splits of every framework, ZeRO stage, micro-batch and recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.engines.frameworks import framework
from recipe_core.estimates.columns.training import (
    OFFLOADS,
    RECOMPUTE,
    TrainingCases,
    TrainingSetting,
    stack_cases,
)
from recipe_core.estimates.rules.training_rules import rules
from recipe_core.estimates.training.bands import METRICS, errors, uncertain
from recipe_core.estimates.training.estimates import TrainingEstimates, estimate
from recipe_core.estimates.training.memory import MEMORY_TITLES
from recipe_core.estimates.training.results import TrainingEstimate
from recipe_core.estimates.training.starts import is_uncertain
from recipe_core.hardware.cluster import short_title
from recipe_core.plans.confidence import confident
from recipe_core.plans.evaluated import EvaluatedCases, Physics, evaluate
from recipe_core.plans.launch_rules import (
    FRAMEWORK,
    able,
    search_rules,
    split_rules,
    unable,
    ways_out,
)
from recipe_core.plans.limits import limited
from recipe_core.plans.plan import LENGTH, LOAD, Plan
from recipe_core.plans.problem import MAX_DEVICES, TrainingProblem
from recipe_core.plans.training_candidates import describe, every_case, one_case
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.edit import TRAINING_TOKENS, shared_candidate
from recipe_core.request.metrics import Goal, goals_of, metrics_of, time_to_finish
from recipe_core.request.split_key import TRAINING_FIELDS, cluster_of, split_of

Block = EvaluatedCases[TrainingSetting, TrainingCases, TrainingEstimates]

TABLED = ("gpus", "step", "output", "per_gpu", "mfu", "memory", "bubble", "usd")
"""What a terminal's table compares of steps."""
RUN_TABLED = ("gpus", "step", "output", "mfu", "memory", "goodput", "wall", "usd_run")
"""What a terminal's table compares of runs that end."""
MORE_NODES = (2, 4, 8, 16, 32, 64)
"""How many times as many nodes are tried when nothing can run."""


def _nothing(_setting: TrainingSetting, _cases: TrainingCases) -> list[Any]:
    """Training jobs fill their nodes; no placement or load refuses a stated one."""
    return []


def _rollout_s(estimates: TrainingEstimates) -> Float:
    """Seconds in which answers are sampled, one per case; NaN where none are."""
    if estimates.reinforcement is None:
        return np.full(len(estimates), np.nan)
    return estimates.reinforcement.rollouts.seconds


PHYSICS: Physics[TrainingSetting, TrainingCases, TrainingEstimates] = Physics(
    estimate=estimate,
    rules=rules,
    search_rules=search_rules,
    place_rules=_nothing,
    uncertain=uncertain,
    correlations=dict,
    left=lambda _estimates, _metric: None,
    case_columns={
        "tp": lambda c: c.tp,
        "pp": lambda c: c.pp,
        "dp": lambda c: c.dp,
        "ep": lambda c: c.ep,
        "cp": lambda c: c.cp,
        "gpus": lambda c: c.all_devices,
        "virtual_stages": lambda c: c.virtual_stages,
        "zero_stage": lambda c: c.zero_stage,
        "micro_batch": lambda c: c.micro_batch,
        "shard": lambda c: c.shard,
        "recompute": lambda c: c.recompute,
    },
    quantities={
        "step_s": lambda e: e.step_s,
        "tokens_per_s": lambda e: e.run.run_tokens_per_s,
        "tokens_per_s_per_gpu": lambda e: e.run.tokens_per_s / e.cases.all_devices,
        "mfu": lambda e: e.mfu,
        "hfu": lambda e: e.hfu,
        "usd_per_million_tokens": lambda e: e.run.usd_per_million_tokens,
        "joules_per_token": lambda e: e.run.joules_per_token,
        "peak_memory_bytes": lambda e: e.peak_bytes,
        "shortfall_bytes": lambda e: e.peak_bytes - e.memory.capacity_bytes,
        "usable_bytes": lambda e: e.memory.capacity_bytes,
        "bubble_share": lambda e: e.parts["bubble"] / e.step_s,
        "start_probability": lambda e: e.start_probability,
        "goodput": lambda e: e.run.goodput,
        "run_mfu": lambda e: e.run_mfu,
        "wall_s": lambda e: e.run.wall_s,
        "usd": lambda e: e.run.usd,
        "gpus_rented": lambda e: e.run.devices_rented,
        "usd_per_hour": lambda e: e.run.usd_per_hour,
        "watts": lambda e: e.run.watts,
        "rollout_s": _rollout_s,
    },
)
"""``tokens_per_s`` of all devices over the whole run: its phases, less what padding, evaluations,
checkpoints and failures cost; ``tokens_per_s_per_gpu`` without them, of the workload's own shape;
``mfu`` and ``hfu`` shares of the peak, ``run_mfu`` of the whole run; ``usd_per_million_tokens`` NaN
without a price; ``rollout_s`` NaN where no answers are sampled."""

SAMPLED = ("gpus", "step", "rollout", "output", "per_gpu", "mfu", "memory", "usd")
"""The same where answers are sampled."""


class TrainingPlan(Plan):
    """Training splits of a request, judged and ranked."""

    problem: TrainingProblem
    kind: Literal["serving", "training"] = "training"
    measures = metrics_of("training")
    tabled: tuple[str, ...] = TABLED
    parts = MEMORY_TITLES
    frontier_columns = ("step_s", "tokens_per_s_per_gpu")
    goals: ClassVar[Mapping[Goal, tuple[str, int]]] = goals_of("training")
    unpriced: ClassVar[Mapping[str, str]] = {"usd_per_million_tokens": "tokens_per_s_per_gpu"}

    def __init__(self, problem: TrainingProblem, blocks: Sequence[Any]) -> None:
        super().__init__(problem, blocks)
        compared = ("gpus", "output", "per_gpu", "mfu", "step", "memory", "bubble")
        if problem.workload.tokens is None:  # nothing to finish: a step is what is compared
            self.axes, self.phrased = ("step", "per_gpu"), ("output", "step", "usd")
            self.listed = (*compared, "usd")
            self.headline = ("output", "step", "mfu", "usd", "usd_hour")
        else:
            self.axes, self.phrased = ("wall", "per_gpu"), ("output", "wall", "usd_run")
            self.tabled = RUN_TABLED
            self.listed = (*compared, "goodput", "run_mfu", "wall", "usd_run")
            self.headline = ("output", "mfu", "goodput", "wall", "usd_run", "usd_hour")
            if len(self):
                finish_s = self.columns["wall_s"][self.feasible if self.feasible.any() else ...]
                finite_s = finish_s[np.isfinite(finish_s)]
                fastest_s = float(finite_s.min()) if len(finite_s) else 0.0
                self.measures = self.measures | {"wall": time_to_finish(fastest_s)}
        if problem.workload.rollout is not None:
            self.tabled, self.listed = SAMPLED, (*self.listed, "rollout")

    # planning

    @classmethod
    def search(cls, problem: TrainingProblem, candidate: CandidateRequest | None = None) -> Self:
        """The plan over every case of a problem that agrees with what ``candidate`` states.

        Without one, what all splits of a plan share (framework, precision, offload) is the
        request's. Where no split runs, nor with optimizer states in host memory, those with
        parameters there are added.
        """
        return cls(problem, cls._searched(problem, candidate))

    @classmethod
    def _searched(cls, problem: TrainingProblem, candidate: CandidateRequest | None) -> list[Block]:
        asked = candidate or shared_candidate(problem.request) or CandidateRequest()
        blocks = _blocks(problem, asked)
        if asked.offload is not None or any(block.feasible.any() for block in blocks):
            return blocks
        for states in ("optimizer", "parameters"):
            hosted = [block for block in _on_host(problem, asked, states) if block.feasible.any()]
            if hosted:  # optimizer states there are a change that is offered
                return [*blocks, *hosted] if states == "parameters" else blocks
        return blocks

    is_uncertain = staticmethod(is_uncertain)
    one_case = staticmethod(one_case)
    stack = staticmethod(stack_cases)

    @classmethod
    def of(cls, problem: TrainingProblem, setting: TrainingSetting, cases: TrainingCases) -> Self:
        """The plan of given cases."""
        return cls(problem, [_judged(problem, evaluate(PHYSICS, setting, cases))])

    # columns

    def _simplicity(self) -> tuple[Any, ...]:
        """Fewer devices, more tokens/s, then less of everything that splits a model."""
        c = self.columns
        cut = ("zero_stage", "recompute", "virtual_stages", "cp", "ep", "tp", "pp")
        return (*(c[name] for name in cut), -c["tokens_per_s"], c["gpus"])

    def _moves_with_errors(self, rows: Int) -> Float:
        # throughput, cost and energy follow the time of a step; a number of devices is certain
        goals = self.request.objective.goals.items()
        weight = sum(weight for goal, weight in goals if self.goals[goal][0] != "gpus")
        return np.full((len(rows), len(METRICS)), float(weight))

    def _errors(self, setting: TrainingSetting) -> tuple[Float, Float]:
        return errors(setting)

    def _software(self, setting: TrainingSetting) -> tuple[str, ...]:
        return setting.cluster.device.name, setting.engine

    def _precedence(self) -> tuple[Any, ...]:
        """Rows that start, then the others with the most probable first."""
        return (np.where(self.uncertain, 1 - self.columns["start_probability"], 0.0),)

    @staticmethod
    def names_of(setting: TrainingSetting) -> Mapping[str, str]:
        """The framework."""
        return {"engine": setting.engine}

    @staticmethod
    def titles_of(setting: TrainingSetting) -> Mapping[str, str]:
        """The framework, as people call it."""
        return {"engine": framework(setting.engine).title}

    def split_columns(self) -> Mapping[str, Any]:
        """The device and every field of the candidates, one value per row."""
        splits = self.candidates(range(len(self)))
        names = dict.fromkeys(name for split in splits for name in split)
        devices = [block.setting.cluster.device.name for block in self.blocks]
        sizes = [len(block) for block in self.blocks]
        return {
            "device": np.repeat(devices, sizes),
            **{name: [split.get(name) for split in splits] for name in names},
        }

    # one row

    def _describe(self, block: Any, cases: Int) -> list[dict[str, Any]]:
        """The splits of some cases of a block."""
        return describe(block.setting, block.cases, cases)

    def estimate(self, row: int) -> TrainingEstimate:
        """The estimate of a row."""
        return cast(TrainingEstimate, super().estimate(row))

    def find(self, key: str) -> int | None:
        """The row that a key names."""
        split = split_of(key)
        if split is None or split.get("recompute") not in RECOMPUTE:
            return None
        numbers = {"shard": split["dp"] * split["cp"]} | split
        numbers["recompute"] = RECOMPUTE.index(split["recompute"])
        names = (*TRAINING_FIELDS[2:], "shard")
        agree = np.all([self.columns[name] == numbers[name] for name in names], axis=0)
        hosted = np.concatenate([block.cases.host_parameters for block in self.blocks])
        agree &= hosted == (split.get("offload") == "parameters")
        for row in map(int, np.flatnonzero(agree)):
            setting = self.setting(row)
            same = (setting.engine, setting.precision) == (split["engine"], split["precision"])
            if same and self.cluster_number(row) == cluster_of(key):
                return row
        return None

    def memory(self, rows: Sequence[int]) -> dict[str, Float]:
        """Bytes of each part in the fullest stage, one per row."""
        names = list(self.parts)
        values = np.reshape(self._of_blocks(rows, partial(_fullest_parts, names)), (-1, len(names)))
        return dict(zip(names, values.T, strict=True))

    # refusals

    def sentences(self, rows: Sequence[int] | Int) -> list[list[str]]:
        """The reasons of some rows.

        Only one of a framework that cannot launch what is asked: its splits are not searched.
        """
        return [self._alone(reasons) for reasons in super().sentences(rows)]

    def every_sentence(self) -> Iterator[list[str]]:
        """The reasons of every row, in order."""
        return map(self._alone, super().every_sentence())

    def _alone(self, reasons: list[str]) -> list[str]:
        whole = [reason for reason in reasons if reason in self._of_frameworks]
        return whole or reasons

    @cached_property
    def _of_frameworks(self) -> frozenset[str]:
        """Sentences that refuse all splits of a framework."""
        return frozenset(
            rule.say(0) for block in self.blocks for rule in block.outside if rule.code == FRAMEWORK
        )

    # changes that may help

    def remedies(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Another framework, states on the host, up to ``MORE_NODES`` times the nodes.

        All on a framework that can launch what is asked, where the plan's cannot.
        """
        names = self._launching()
        for name in names:
            yield f"framework {name}", {"candidate.engine": name}
        refused = bool(names) and all(map(self._is_refused, self.blocks))
        other = {"candidate.engine": names[0]} if refused else {}
        if self.problem.candidate.offload is None and self.blocks:
            yield from (("offload", fields) for fields in self._offloaded(self.blocks[0].setting))
        if self.problem.candidate.offload == "optimizer" and self.blocks:
            more = self._offloaded(self.blocks[0].setting, "parameters")
            yield from (("offload", fields) for fields in more)
        hardware = self.request.hardware
        for factor in MORE_NODES:
            if hardware.devices * factor <= MAX_DEVICES["training"]:
                yield "nodes", {"hardware.nodes": hardware.nodes * factor, **other}

    @staticmethod
    def _is_refused(block: Block) -> bool:
        """Whether a block's framework cannot launch what is asked."""
        return any(rule.code == FRAMEWORK for rule in block.outside)

    def cures(self, row: int, codes: frozenset[str]) -> Iterator[dict[str, Any]]:
        """Changes that may let a refused row run: against memory, states on the host."""
        if "memory" in codes and self.candidate(row).get("offload") is None:
            yield from self._offloaded(self.setting(row))
            yield from self._offloaded(self.setting(row), "parameters")

    def _launching(self) -> list[str]:
        """Frameworks beside those of the plan that can launch what is asked."""
        if not self.blocks:
            return []
        used = {block.setting.engine for block in self.blocks}
        names = [name for one in self.blocks for name in able(one.setting, *self._asked)]
        return [name for name in dict.fromkeys(names) if name not in used]

    @property
    def _asked(self) -> tuple[str, bool]:
        """Where the request keeps optimizer states, and whether its loss is in pieces."""
        return self.problem.candidate.offload or "none", bool(self.problem.workload.fused_loss)

    def _offloaded(
        self, setting: TrainingSetting, what: str = "optimizer"
    ) -> Iterator[dict[str, Any]]:
        """States on the host, on a framework that can be told so.

        Nothing where only without them a bundle can be made.
        """
        names = able(setting, what, self._asked[1])
        if setting.engine in names or self.launch_note:
            yield {"candidate.offload": what}
        elif names:
            yield {"candidate.offload": what, "candidate.engine": names[0]}

    @cached_property
    def launch_note(self) -> str | None:
        """Why no bundle of any split can be made, as sentences; None where one can.

        Of several clusters also where only some have none.
        """
        none = [one.setting for one in self.blocks if not able(one.setting, *self._asked)]
        notes = []
        if none:
            lacks = dict.fromkeys(lack.what for one in none for lack in unable(one, *self._asked))
            some = len(none) < len(self.blocks)
            titles = dict.fromkeys(short_title(one.cluster.device) for one in none)
            where = f" on {' and '.join(titles)}" if some else ""
            notes.append(
                f"No framework launches {' and '.join(lacks)}{where}: figures"
                f"{' there' if some else ''} are estimates, without a bundle."
            )
        if self.blocks and self.problem.workload.tokens is None:
            notes.append("Without a token budget a step is estimated, and no bundle is made.")
        return " ".join(notes) or None

    def bundled(self, row: int) -> bool:
        """Whether its framework can be told the request and the split, and the run has an end."""
        return self.problem.workload.tokens is not None and not self.unlaunchable(row)

    def unlaunchable(self, row: int) -> list[str]:
        """What the framework of a row cannot be told of the request or the split, as sentences."""
        setting, (block, i) = self.setting(row), self.at(row)
        title, offload = setting.framework.title, OFFLOADS[int(block.cases.offload[i])]
        if lacks := [lack.what for lack in unable(setting, offload, self._asked[1])]:
            return [f"{title} cannot launch {what}." for what in lacks]
        rules = split_rules(setting, block.cases.take([i]))
        return [f"{title}: {rule.say(0)}. {rule.hint}" for rule in rules if rule.broken[0]]

    def detailed(self, row: int) -> TrainingEstimate:
        """The estimate with a note of what a launch of the split cannot be told."""
        estimate = self.estimate(row)
        lacks = self.unlaunchable(row) if estimate.feasible else []
        notes = [f"No bundle is made of this split: {what}" for what in lacks]
        return replace(estimate, notes=[*estimate.notes, *notes])

    def launch_cures(self) -> Iterator[dict[str, Any]]:
        """Changes after which a bundle can be made, where none can: the fewest first."""
        if self.launch_note is None:
            return
        tokens = (
            {"workload.tokens": TRAINING_TOKENS} if self.problem.workload.tokens is None else {}
        )
        none = [one.setting for one in self.blocks if not able(one.setting, *self._asked)]
        if not none:
            yield dict(tokens)
            return
        setting = none[0]
        for changes in ways_out(setting, *self._asked):
            yield {**changes, **tokens}

    def carried(self, _row: int, _fields: Mapping[str, Any]) -> dict[str, Any]:
        """What of the row's own split has to change with ``fields``: nothing."""
        return {}

    # what may flip the decision

    def moves(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Price, sequence length and batch, each moved down and up.

        Phases state lengths and batches of their own: what they are part of is not moved.
        """
        yield from super().moves()
        workload = self.problem.workload
        if workload.phases:
            return
        for sign in (-1, 1):
            tokens = max(round(workload.sequence_length * (1 + sign * LENGTH)), 1)
            yield f"sequence length {sign * LENGTH:+.0%}", {"workload.sequence_length": tokens}
        for factor in (1 / LOAD, LOAD):
            batch = max(round(workload.global_batch * factor), 1)
            yield f"global batch × {factor:g}", {"workload.global_batch": batch}

    def identity(self, row: int) -> tuple[Any, ...]:
        """What makes a row another choice: the split and the device it is on."""
        candidate, place = self.candidate(row), self.setting(row).cluster
        names = ("shard", *TRAINING_FIELDS)
        where = candidate.get("offload")
        return (place.device.digest, where, *(candidate[name] for name in names))


def _blocks(problem: TrainingProblem, candidate: CandidateRequest) -> list[Block]:
    """Every case that agrees with the candidate, judged."""
    pairs = every_case(problem, candidate)
    return [_judged(problem, evaluate(PHYSICS, *pair, searching=True)) for pair in pairs]


def _on_host(problem: TrainingProblem, candidate: CandidateRequest, states: str) -> Iterator[Block]:
    """The same with some ``states`` in host memory, on frameworks that can be told so.

    Where none can launch the request, with its states on the devices either, on any.
    """
    away = {"offload": states}
    stated = problem.candidate.model_copy(update=away)
    request = problem.request.model_copy(update={"candidate": stated})
    pieces = bool(problem.workload.fused_loss)
    for block in _blocks(replace(problem, request=request), candidate.model_copy(update=away)):
        setting = block.setting
        if setting.engine in able(setting, states, pieces) or not able(setting, "none", pieces):
            yield block


def _judged(problem: TrainingProblem, block: Block) -> Block:
    """The block with the request's limits among its rules."""
    objective = problem.request.objective
    return confident(limited(block, objective.limits), objective)


def _fullest_parts(names: Sequence[str], block: Any, cases: Int) -> Float:
    """Bytes of each part in the fullest stage (cases, parts); NaN without an estimate."""
    estimates, places = block.details(cases)
    by_stage = estimates.memory.by_stage[places]
    known = np.isfinite(by_stage).any(axis=1)
    fullest = np.argmax(np.where(np.isfinite(by_stage), by_stage, -np.inf), axis=1)
    parts = [estimates.memory.parts[name][places, fullest] for name in names]
    return np.where(known[:, None], np.stack(parts, axis=1).astype(float), np.nan)
