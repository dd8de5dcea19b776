"""Refusals of a case, as data rather than as exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np

from recipe_core.base.arrays import Bool, Int
from recipe_core.estimates.columns.columns import Columns

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule over many cases.

    ``broken`` has one entry per case; ``say(i)`` is the sentence for case ``i``, with its numbers.
    """

    code: str
    broken: Bool
    say: Callable[[int], str]

    def take(self, rows: Int) -> Refusal:
        """The rule over the chosen cases."""
        return Refusal(self.code, self.broken[rows], lambda i: self.say(int(rows[i])))


def indivisible_refusal(code: str, broken: Bool, subject: str, **degrees: Int) -> Refusal:
    """That the ranks of a degree, which is named, cannot cut something evenly."""
    ((name, ranks),) = degrees.items()
    return Refusal(code, broken, lambda i: f"{subject} not divisible by {name.upper()} {ranks[i]}")


class Judged(Columns, Generic[Result]):
    """Estimates of many cases, with the rules that refuse some of them."""

    __slots__ = ()
    cases: Any
    refusals: tuple[Refusal, ...]

    def __len__(self) -> int:
        return len(self.cases)

    def take(self, rows: Int) -> Self:
        """The chosen cases, in that order."""
        judged: Any = Columns.take(self, rows)
        refusals = tuple(refusal.take(rows) for refusal in self.refusals)
        return replace(judged, refusals=refusals)  # type: ignore[no-any-return]

    @property
    def feasible(self) -> Bool:
        """Mark where no rule is broken."""
        broken = np.zeros(len(self), dtype=np.bool_)
        for refusal in self.refusals:
            broken |= refusal.broken
        return ~broken

    def reasons(self, i: int) -> list[str]:
        """Every reason why case ``i`` cannot run; empty when it can."""
        return self.reasons_of(np.array([i]))[0]

    def reasons_of(self, rows: Int) -> list[list[str]]:
        """Every reason why each of the chosen cases cannot run."""
        out: list[list[str]] = [[] for _ in rows]
        for refusal in self.refusals:
            for place in np.flatnonzero(refusal.broken[rows]).tolist():
                out[place].append(refusal.say(int(rows[place])))
        return out

    @property
    def uncertain(self) -> Bool:
        """Cases of which estimates do not tell whether they start."""
        raise NotImplementedError

    def doubts(self, rows: Int) -> list[str]:
        """Say why the start of each of the chosen cases is uncertain; empty for the others."""
        return [
            self.doubt(row) if open_question else ""
            for row, open_question in zip(rows.tolist(), self.uncertain[rows], strict=True)
        ]

    def doubt(self, i: int) -> str:
        """Say why the start of case ``i`` is uncertain, as a sentence without its full stop."""
        raise NotImplementedError

    def row(self, i: int, limits: Sequence[str] = (), *, explained: bool = False) -> Result:
        """The estimate of case ``i``, ``explained`` with its times by cause too."""
        return self.rows(np.array([i]), [limits], explained=explained)[0]

    def rows(
        self, rows: Int, limits: Sequence[Sequence[str]], *, explained: bool = False
    ) -> list[Result]:
        """The estimates of the chosen cases.

        Infeasible cases (also by broken ``limits``, one list a case) keep their memory and have no
        other figures.
        """
        raise NotImplementedError


# Rules by code, as a person calls them; those of limits are in the registry of metrics.
RULE_TITLES = {
    "devices": "More devices than available",
    "runtime": "Engine does not run on the device",
    "weight-dtype": "No kernels for the weight format",
    "engine-weights": "Engine has no kernels for the weight format",
    "engine-kernels": "Engine's release refuses the model on this device",
    "uneven-experts": "Experts not divisible over ranks",
    "stated-cache": "Stated cache holds no request",
    "claim": "Engine claims memory that is not free",
    "emulated": "Engine only emulates the format",
    "engine-technique": "Engine refuses the technique",
    "kv-dtype": "KV cache format not supported",
    "heads": "Attention heads not divisible",
    "kv-heads": "KV heads not divisible",
    "idle-replicas": "Replicas would idle",
    "idle-stages": "Pipeline stages would idle",
    "output-groups": "Output projection groups not divisible",
    "layers": "Too few layers for the pipeline",
    "context": "Longer than the model's context",
    "task": "Engine does not make what is asked for",
    "whole-prompts": "Prompts run whole and exceed a step",
    "width": "Feed-forward width not divisible",
    "block": "Quantisation blocks would be cut",
    "no-links": "Slices of devices have no links",
    "no-tensor": "Engine has no tensor parallelism",
    "no-pipeline": "Engine has no pipeline parallelism",
    "no-experts": "Model has no experts",
    "experts": "Experts do not divide over the ranks",
    "no-expert-parallel": "Engine has no expert parallelism",
    "ep-divides": "Ranks not divisible by EP",
    "ep-ranks": "Engine shares experts over all ranks",
    "no-context": "Engine has no context parallelism",
    "cp-divides": "KV head copies not divisible by CP",
    "cp-cache": "Cache cannot be shared between ranks",
    "no-pools": "Engine has no prefill pools",
    "no-drafts": "Engine has no speculative decoding",
    "attention-dp": "Attention is either tensor- or data-parallel",
    "no-attention-dp": "Engine has no data-parallel attention",
    "looked-up-drafts": "No prompt-lookup drafts with data-parallel attention",
    "pipelined-drafts": "No speculative decoding with a pipeline",
    "one-node": "Engine cannot span nodes",
    "uneven-nodes": "Ranks cannot be spread evenly over nodes",
    "packing": "Servers do not fit into the nodes",
    "cache-dtype": "Engine has no flag for the cache format",
    "memory": "Does not fit in memory",
    "batch": "Batch does not fit in memory",
    "rate": "Requests arrive faster than they are served",
    "kv-offload": "Cache cannot be offloaded this way",
    "kv-offload-pools": "No offloading beside a prefill pool",
    "kv-link": "Cached blocks load too slowly",
    "host-memory": "Does not fit in the host's memory",
    "unsimulated": "Percentile not simulated",
    "confidence": "Too likely to miss a limit",
    "precision": "Device does not support the precision",
    "attention": "Device does not run the attention kernel",
    "fp8-recipe": "8-bit recipe does not go with the run",
    "cuda-graphs": "Graphs do not go with the run",
    "compile": "Framework does not compile models",
    "hidden": "Hidden size not divisible",
    "expert-ranks": "Ranks not divisible by EP",
    "global-batch": "Batch not divisible",
    "dualpipe": "DualPipe does not fit the pipeline",
    "sequence": "Sequence not divisible",
    "virtual-stages": "Chunks without a pipeline",
    "schedule": "Schedule cannot run the layout",
    "shard": "Replicas not divisible by shard",
    "offload": "Parameters cannot wait in host memory",
    "rollout": "Answers cannot be sampled beside it",
    "time-limit": "No checkpoint within the time limit",
    "framework": "Framework cannot launch what is asked",
    "launch-degree": "Framework does not launch the degree",
    "launch-nodes": "Devices do not fill whole nodes",
    "launch-sharding": "Framework does not launch the ZeRO stage",
    "launch-recompute": "Framework does not launch the recomputation",
    "launch-schedule": "Framework lacks the pipeline schedule",
    "launch-gradients": "Framework exchanges gradients otherwise",
    "launch-pipeline": "Framework does not launch the pipeline",
    "launch-tensor": "Framework does not cut the model this way",
    "launch-experts": "Framework does not share experts this way",
    "launch-rollout": "Framework does not sample this way",
    "launch-adapters": "Framework does not train such adapters",
    "launch-activation": "Framework keeps activations on the device",
    "launch-batch": "Framework does not take the batch",
    "launch-weights": "Weights do not divide into 4-bit blocks",
    "launch-host": "Whole models exceed the host's memory while they are loaded",
    "launch-context": "Framework does not cut contexts this way",
    "launch-offload": "Framework does not move states this way",
    "launch-moments": "Framework keeps moments otherwise",
    "launch-predictions": "Framework does not launch multi-token prediction this way",
    "launch-overlap": "Framework does not overlap the exchange of tokens",
    "launch-pairs": "Pairs of answers are not divided",
    "launch-precision": "Framework does not launch the precision",
    "launch-sequence": "Framework does not cut sequences this way",
}
