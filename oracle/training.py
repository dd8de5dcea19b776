"""A training split's real model, stepped without data: peak and traffic of each pipeline stage.

Stages are traced in separate processes (`oracle.step`): process groups and
changes to torch are global. Deep models are traced at two small depths and extrapolated: in each
phase of a step memory is linear in equal layers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle import need_torch
from oracle.text import ROLES
from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError
from recipe_core.estimates.columns.training import (
    OFFLOADS,
    RECOMPUTE,
    SCHEDULES,
    TrainingCases,
    TrainingSetting,
)
from recipe_core.estimates.training.activations import BYTES, FP32_LOSS, boundary_bytes
from recipe_core.estimates.training.frozen_base import gathered_weight_bytes
from recipe_core.estimates.training.memory import PARTS
from recipe_core.estimates.training.peak_memory import hsdp_groups
from recipe_core.estimates.training.stages import parameters_by_stage, stage_layer_counts

if TYPE_CHECKING:
    from recipe_core.estimates.training.estimates import TrainingEstimates


def fsdp_traffic(setting: TrainingSetting, cases: TrainingCases) -> dict[str, Float]:
    """Bytes by group for frameworks that shard layer by layer, of shape (cases, stages)."""
    states, rank = setting.states, parameters_by_stage(setting, cases)
    count, first, last = stage_layer_counts(setting, cases)
    layers = rank.dense + rank.experts
    parameters = layers + rank.vocabulary
    table = last * (setting.model.vocabulary * setting.model.hidden / cases.tp)[:, None]
    m, piped = cases.micro_batches[:, None].astype(float), cases.pp[:, None] > 1
    stays = cases.zero_stage[:, None] == 2
    gathers = np.where(stays, np.where(piped, 1.0, m), np.where(piped, m + 1, 2 * m))
    head = np.where(piped, 1.0, m)
    trained = rank.adapters if setting.frozen else parameters
    scattered = states.reduced * trained * np.where(piped, 1.0, m)
    copies = hsdp_groups(cases)[:, None]
    ranks = cases.replicas[:, None] / copies
    beside = rank.vocabulary - table + (rank.adapters if setting.frozen else 0.0)
    units = gathered_weight_bytes(setting) * layers + states.gathered * beside
    shard = gathers * units + states.gathered * head * table + scattered
    tensor = m * _tensor_traffic(setting, cases, count, first, last)
    none = 0.0 * count  # NaN where there is no stage
    return {
        "shard": np.where(ranks > 1, shard, none),
        "replicate": np.where(copies > 1, 2 * scattered / ranks, none),
        "tensor": np.where(cases.tp[:, None] > 1, tensor, none),
        "pipeline": np.where(piped, m * _hand_over_bytes(setting, cases, first, last), none),
    }


def _tensor_traffic(
    setting: TrainingSetting, cases: TrainingCases, count: Float, first: Float, last: Float
) -> Float:
    """Bytes of a micro-batch: halves of layers, and both ends as one, gather and reduce a pass."""
    model = setting.model
    halves = sum(
        n * ((kind.attention is not None) + (kind.mlp is not None)) for kind, n in model.kinds
    ) / len(model.layers)
    full = (cases.recompute == RECOMPUTE.index("full")) & (cases.sequence_parallel > 0)
    repeated = np.where(full, 0.75, np.where(cases.recompute > 0, 0.5, 0.0))
    hidden = (BYTES * cases.tokens * setting.model.hidden)[:, None]
    out: Float = 2 * hidden * (halves * count * (2 + repeated[:, None]) + first + last)
    return out


def _hand_over_bytes(
    setting: TrainingSetting, cases: TrainingCases, first: Float, last: Float
) -> Float:
    """Bytes of a micro-batch: hidden states to the next chunk, their gradients to the previous."""
    chunks = cases.virtual_stages[:, None]
    return (cases.tokens * boundary_bytes(setting, cases))[:, None] * (2.0 * chunks - first - last)


# Layers of a chunk at which a deeper one is traced: a first, a last, and one or two in between.
DEPTHS = (3, 4)
# Most micro-batches of a pipeline that are traced: the schedule runs each of them.
MICRO_BATCHES = 16


@dataclass(frozen=True, slots=True)
class Traced:
    """One stage: bytes at its peak by role, the phase of the peak, and bytes sent by collective."""

    phase: str
    roles: dict[str, float]
    sent: dict[str, dict[str, float]]

    @property
    def peak_bytes(self) -> float:
        return sum(self.roles.values())


def trace_training(
    estimates: TrainingEstimates, row: int, *, every_layer: bool = False
) -> dict[str, Any]:
    """Return what the real model of a row holds and sends, by pipeline stage, as plain JSON values.

    stages: for each ``peak_bytes``, its parts by role, the ``phase`` of the peak, and
    ``sent_bytes`` of a step by group and collective. differences: formula / trace − 1, of the peak
    without the allocator's reserve, of every stage, and of each group's traffic. ``every_layer``:
    no extrapolation.

    Raises:
        InputError: torch or transformers are missing, or the split cannot be traced.
    """
    return trace_many([(estimates, row)], every_layer=every_layer)[0]


def trace_many(
    rows: Sequence[tuple[TrainingEstimates, int]], *, every_layer: bool = False
) -> list[dict[str, Any]]:
    """`trace_training` of several rows in one process: a short trace mostly imports torch."""
    need_torch()
    jobs = [_Job(estimates, row, every_layer=every_layer) for estimates, row in rows]
    started = time.perf_counter()
    answers = iter(_run([task for job in jobs for task in job.tasks()]))
    traces = [job.read(answers) for job in jobs]
    seconds = round(time.perf_counter() - started, 2)
    return [{**trace, "seconds": seconds} for trace in traces]


def _run(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "oracle.step"],
        input=json.dumps(tasks),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
        raise InputError(
            f"the trace failed with exit code {done.returncode}: {reason}",
            field="trace",
            hint=_HINT,
        )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


_HINT = "The estimate itself does not need --trace."


class _Job:
    """A row: the tasks that trace it, and the reading of their answers."""

    def __init__(self, estimates: TrainingEstimates, row: int, *, every_layer: bool) -> None:
        self.estimates, self.row = estimates, row
        self.setting, self.cases = estimates.setting, estimates.cases.take([row])
        _must_be_traceable(estimates, row)
        self.pp, self.v = int(self.cases.pp[0]), int(self.cases.virtual_stages[0])
        counts = stage_layer_counts(self.setting, self.cases)[0][0] / self.v
        self.layers = [int(count) for count in counts]
        even = len(self.setting.model.kinds) == 1 and not every_layer
        self.depths = [DEPTHS if even and count > DEPTHS[-1] else (count,) for count in self.layers]
        m = int(self.cases.micro_batches[0])
        # without a pipeline the second is like all that follow
        self.micro_batches = m if self.pp > 1 else min(m, 2)

    def tasks(self) -> Iterator[dict[str, Any]]:
        for stage in range(self.pp):
            for depth in self.depths[stage]:
                yield self._task(stage, depth)

    def _task(self, stage: int, depth: int) -> dict[str, Any]:
        c, framework = self.cases, self.setting.framework
        chunks = [stage + k * self.pp for k in range(self.v)]
        starts = np.cumsum([0, *(self.layers * self.v)])
        shard = int(c.shard[0]) if c.zero_stage[0] else 1
        return {
            "config": dict(self.setting.model.config),
            "layers": [list(range(int(starts[k]), int(starts[k]) + depth)) for k in chunks],
            "chunks": chunks,
            "stages": self.pp * self.v,
            "pp": self.pp,
            "replicate": int(c.dp[0]) // shard,
            "shard": shard,
            "tp": int(c.tp[0]),
            "sequence_parallel": bool(c.sequence_parallel[0]) and int(c.tp[0]) > 1,
            "reshard": int(c.zero_stage[0]) != 2,
            "recompute": RECOMPUTE[c.recompute[0]],
            "schedule": SCHEDULES[c.schedule[0]],
            "micro_batch": int(c.micro_batch[0]),
            "micro_batches": self.micro_batches,
            "sequence": int(c.sequence_length[0]),
            "fused_norm": framework.fused_norm,
            "fused_gate": framework.fused_gate,
            "fused_loss": framework.loss_bytes.value < FP32_LOSS,
            "loss_chunks": int(framework.pieces.count or 1) if c.fused_loss[0] else 1,
            "fused_optimizer": self.setting.states.step == 0,
            "states": self.setting.state_dtype or "fp32",
            "lora_rank": self.setting.lora_rank if self.setting.frozen else 0,
            "lora_targets": self.setting.lora_targets,
        }

    def read(self, answers: Iterator[dict[str, Any]]) -> dict[str, Any]:
        """The trace from the answers to this job's tasks."""
        stages = [
            self._stage(stage, [next(answers) for _ in self.depths[stage]])
            for stage in range(self.pp)
        ]
        fullest = max(range(self.pp), key=lambda stage: stages[stage].peak_bytes)
        return {
            "peak_bytes": stages[fullest].peak_bytes,
            "fullest_stage": fullest,
            "stages": [_stage_view(stage) for stage in stages],
            "devices": int(self.cases.devices[0]),
            "layers": [count * self.v for count in self.layers],
            "layers_traced": [max(depths) * self.v for depths in self.depths],
            "micro_batches_traced": self.micro_batches,
            "method": self._method(),
            "differences": self._differences(stages),
        }

    def _stage(self, stage: int, answers: list[dict[str, Any]]) -> Traced:
        for answer in answers:
            if "error" in answer:
                name = self.setting.model.name
                raise InputError(
                    f"transformers cannot step {name}, stage {stage}: {answer['error']}",
                    field="trace",
                    hint=_HINT,
                )
        depths, layers = self.depths[stage], self.layers[stage]
        common = set.intersection(*(set(answer["peaks"]) for answer in answers))
        phases = {
            phase: _extended([answer["peaks"][phase] for answer in answers], depths, layers)
            for phase in common
        }
        phase = max(phases, key=lambda name: sum(phases[name].values()))
        repeats = float(self.cases.micro_batches[0]) / self.micro_batches
        sent = {}
        for group in answers[-1]["sent"]:
            kinds = [answer["sent"].get(group, {}) for answer in answers]
            extended = _extended(kinds, depths, layers)
            sent[group] = {kind: n * repeats for kind, n in extended.items()}
        return Traced(phase, phases[phase], sent)

    def _differences(self, stages: list[Traced]) -> dict[str, float]:
        parts = self.estimates.memory.parts
        total = np.asarray(sum(parts[name] for name in PARTS if name != "reserve"))
        formula = [float(total[self.row][stage]) for stage in range(self.pp)]
        peaks = [stage.peak_bytes for stage in stages]
        out = {"peak_memory": max(formula) / max(peaks) - 1}
        if self.pp > 1:
            out |= {
                f"peak_memory_stage_{i}": f / t - 1
                for i, (f, t) in enumerate(zip(formula, peaks, strict=True))
            }
        traffic = fsdp_traffic(self.setting, self.cases)
        for group in traffic:
            traced = sum(ring_bytes(stage.sent.get(group, {})) for stage in stages)
            if traced > 0:
                out[f"{group}_traffic"] = float(traffic[group][0, : self.pp].sum()) / traced - 1
        return out

    def _formats(self) -> str:
        """In which formats what is traced is kept."""
        shards = f"{self.setting.state_dtype or 'fp32'} shards"
        return f"a bf16 base and adapters in {shards}" if self.setting.frozen else shards

    def _method(self) -> str:
        """Say what was really run, as sentences for the user."""
        framework = self.setting.framework
        sentences = [
            "The second step of the real transformers model under torch's FSDP2, tensor "
            "parallelism and pipelines, in a fake process group of "
            f"{int(self.cases.devices[0])}: {self._formats()}, bf16 compute, AdamW."
        ]
        depths = next((depths for depths in self.depths if len(depths) > 1), None)
        if depths:
            sentences.append(
                f"Traced with {depths[0]} and {depths[1]} layers per chunk and extrapolated: "
                "phases of a step are linear in equal layers."
            )
        if framework.fused_norm:
            sentences.append("RMS norms save what a fused kernel saves.")
        if framework.fused_gate:
            sentences.append("A gate's activation and its product with up are one kernel.")
        if framework.loss_bytes.value < FP32_LOSS:
            sentences.append("The loss is one compiled kernel.")
        if self.cases.fused_loss[0]:
            sentences.append("Head and loss run chunk by chunk, as torchtitan's wrapper runs them.")
        sentences.append(
            "Attention is the flash operator. Left out: the allocator's reserve, workspaces, rope "
            "scaling."
        )
        return " ".join(sentences)


def ring_bytes(kinds: dict[str, float]) -> float:
    """Bytes of collectives as `collectives` counts them: an all-reduce twice."""
    return sum(n * (2 if kind == "all_reduce" else 1) for kind, n in kinds.items())


def _extended(
    answers: list[dict[str, float]], depths: Sequence[int], layers: int
) -> dict[str, float]:
    """Bytes by name at ``layers``, on the line through two depths; unchanged with one depth."""
    if len(depths) == 1:
        return {name: float(n) for name, n in answers[0].items()}
    low, high = answers
    share = (layers - depths[0]) / (depths[1] - depths[0])
    return {
        name: low.get(name, 0) + share * (high.get(name, 0) - low.get(name, 0))
        for name in {**low, **high}
    }


def _stage_view(stage: Traced) -> dict[str, Any]:
    return {
        "peak_bytes": stage.peak_bytes,
        "phase": stage.phase,
        **{f"{role}_bytes": float(stage.roles.get(role, 0.0)) for role in ROLES},
        "sent_bytes": stage.sent,
    }


def _must_be_traceable(estimates: TrainingEstimates, row: int) -> None:
    """Refuses what the trace has no counterpart of, by name."""
    broken = [
        refusal.say(row)
        for refusal in estimates.refusals
        if refusal.broken[row] and refusal.code != "memory"
    ]
    if broken:
        raise InputError(
            f"the layout cannot run: {broken[0]}.", field="trace", hint="Trace a layout that can."
        )
    for field, odd, traced in _limits(estimates.setting, estimates.cases.take([row])):
        if odd is not None:
            raise InputError(
                f"{field} {odd} cannot be traced, only {traced}.", field="trace", hint=_HINT
            )


def _limits(setting: TrainingSetting, cases: TrainingCases) -> Iterator[tuple[str, Any, str]]:
    """Field, its value where that cannot be traced (else None), and what can."""
    yield from _method_limits(setting, cases)
    yield from _split_limits(cases)


def _method_limits(
    setting: TrainingSetting, cases: TrainingCases
) -> Iterator[tuple[str, Any, str]]:
    yield (
        "engine",
        setting.engine if setting.framework.sharding != "fsdp" else None,
        "frameworks on FSDP: torchtitan, torch, accelerate",
    )
    yield (
        "method",
        setting.method if setting.method not in ("pretrain", "finetune", "lora") else None,
        "pretrain, finetune and lora",
    )
    yield "precision", setting.precision if setting.precision != "bf16" else None, "bf16"
    yield (
        "optimizer",
        setting.optimizer_name if setting.optimizer_name != "adamw" else None,
        "adamw",
    )
    yield "attention", None if setting.flash else "eager", "flash"
    alone = cases.tp[0] == 1 and cases.pp[0] <= 1 and not setting.model.tied_embeddings
    chunked = setting.framework.pieces.use == "needed" and alone
    yield (
        "fused_loss",
        "true" if cases.fused_loss[0] and not chunked else None,
        "losses of whole logits, or torchtitan's of chunks without tp, pp and tied embeddings",
    )


def _split_limits(cases: TrainingCases) -> Iterator[tuple[str, Any, str]]:
    names = ("cp", "ep", "zero_stage", "schedule", "offload", "recompute_layers", "sync_step")
    c = {name: int(getattr(cases, name)[0]) for name in names}
    m, schedule = int(cases.micro_batches[0]), SCHEDULES[c["schedule"]]
    piped = int(cases.pp[0]) > 1
    yield "CP", c["cp"] if c["cp"] > 1 else None, "layouts without context parallelism"
    yield "EP", c["ep"] if c["ep"] > 1 else None, "experts that every rank computes"
    yield "offload", OFFLOADS[c["offload"]] if c["offload"] else None, "states on devices"
    yield "recompute_layers", c["recompute_layers"] or None, "all layers recomputed alike"
    yield (
        "gradient_sync",
        "step" if c["sync_step"] and m > 1 else None,
        "gradients scattered after every micro-batch",
    )
    yield "zero_stage", 1 if c["zero_stage"] == 1 else None, "0, 2 and 3, which FSDP has"
    yield (
        "schedule",
        schedule if piped and schedule.startswith("zb") else None,
        "1f1b, gpipe and interleaved",
    )
    yield (
        "micro_batches",
        m if piped and m > MICRO_BATCHES else None,
        f"pipelines of up to {MICRO_BATCHES}",
    )
