"""One training step of one rank: the real model under fake tensors in a fake process group.

``python -m oracle.step`` reads tasks as JSON from standard input and answers
them: a process has one process group, and changes to torch's classes must not outlive the trace.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from oracle.adapters import adapt
from oracle.build import DTYPES, build, keep_layers, layer_list
from oracle.meter import Meter, watched
from oracle.parallel import (
    ATTENTION,
    FusedLoss,
    flash_attention,
    fuse_gates,
    fuse_norms,
    recompute,
    shard,
    tensor_parallel,
)
from recipe_core.models.catalog import load_model_spec

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}
MESH = ("pipeline", "replicate", "shard", "tensor")


@dataclass(frozen=True, slots=True)
class Task:
    """One rank's step of ``micro_batches`` micro-batches of ``micro_batch`` sequences.

    chunks: the rank's positions among the ``stages`` of a pipeline; layers: those of each chunk.
    states: the format of trained parameters and of their optimizer's states. lora_rank: of
    adapters on a model frozen in 16 bits; 0 where all is trained.
    """

    config: dict[str, Any]
    layers: list[list[int]]
    chunks: list[int]
    stages: int
    pp: int
    replicate: int
    shard: int
    tp: int
    sequence_parallel: bool
    reshard: bool
    recompute: str
    schedule: str
    micro_batch: int
    micro_batches: int
    sequence: int
    fused_norm: bool
    fused_gate: bool
    fused_loss: bool
    loss_chunks: int
    fused_optimizer: bool
    states: str
    lora_rank: int
    lora_targets: str


class Stage(nn.Module):
    """A chunk of the model, which tells the meter the phase of a step.

    Token ids or hidden states in, hidden states or logits out; ``headless``: hidden states, also
    where the head is.
    """

    def __init__(
        self, model: nn.Module, meter: Meter, tokens: int, number: int, *, headless: bool
    ) -> None:
        super().__init__()
        self.model, self.meter, self.tokens, self.number = model, meter, tokens, number
        self.headless = headless
        owner, name = layer_list(model)
        layers = list(getattr(owner, name))
        for i, layer in enumerate(layers):
            place = _place(i, len(layers))
            layer.register_forward_hook(lambda _m, _a, out, place=place: self._mark(out, place))

    def _mark(self, out: torch.Tensor, place: str) -> None:
        if out.requires_grad:
            out.register_hook(lambda _: self.enter(f"backward of {place} layer"))  # type: ignore[no-untyped-call]

    def enter(self, phase: str) -> None:
        """Starts a phase of the step."""
        role = "activations" if phase == "forward" else "temporary"
        self.meter.enter(f"{phase} of chunk {self.number}", role)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states or logits for ``[batch, tokens]`` or ``[batch, tokens, hidden]``."""
        self.enter("forward")
        inputs = {"input_ids" if x.dtype == torch.long else "inputs_embeds": x}
        positions = torch.arange(self.tokens)[None]
        model: Any = self.model.base_model if self.headless else self.model
        answer = model(**inputs, position_ids=positions, use_cache=False)
        out: torch.Tensor = answer.last_hidden_state if self.headless else answer.logits
        return out


def _place(i: int, count: int) -> str:
    if i == count - 1:
        return "last"
    return "inner" if i else "first"


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, fused: bool) -> torch.Tensor:
    """Mean loss in fp32, as torchtitan's; ``fused``: as one compiled kernel."""
    if fused:
        local = logits.to_local() if isinstance(logits, DTensor) else logits
        out: torch.Tensor = FusedLoss.apply(local)  # type: ignore[no-untyped-call]
        return out
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def chunk(task: Task, number: int, layers: list[int], mesh: DeviceMesh, meter: Meter) -> Stage:
    """A chunk of the model on the meta device, parallelised, before it is given memory."""
    frozen = task.lora_rank > 0
    stored = "bf16" if frozen else task.states
    model: Any = build(load_model_spec(task.config), stored).train().requires_grad_(True)
    model.config._attn_implementation = ATTENTION
    model.config._experts_implementation = "grouped_mm"
    keep_layers(model, layers)
    if number > 0:
        model.set_input_embeddings(nn.Identity())
    if number < task.stages - 1:
        model.lm_head = model.base_model.norm = nn.Identity()
    if frozen:
        adapt(model, task.lora_rank, task.lora_targets)
    if task.fused_norm:
        fuse_norms(model)
    if task.fused_gate:
        fuse_gates(model)
    if task.tp > 1:
        tensor_parallel(model, mesh["tensor"], sequence_parallel=task.sequence_parallel)
    if task.recompute != "none":
        recompute(model, task.recompute)
    chunked = task.loss_chunks > 1
    stage = Stage(model, meter, task.sequence, number, headless=chunked)
    shard(
        stage,
        mesh["replicate", "shard"] if task.replicate > 1 else mesh["shard"],
        reshard=task.reshard,
        head_apart=chunked,
        reduced=DTYPES[task.states],
    )
    return stage


@contextmanager
def fake_ranks(task: Task) -> Iterator[DeviceMesh]:
    """A process group in which this process is the first rank of its pipeline stage."""
    shape = (task.pp, task.replicate, task.shard, task.tp)
    world = task.pp * task.replicate * task.shard * task.tp
    dist.init_process_group(
        "fake",
        rank=task.chunks[0] % task.pp * (world // task.pp),
        world_size=world,
        store=FakeStore(),
    )
    try:
        yield init_device_mesh("cpu", shape, mesh_dim_names=MESH)
    finally:
        dist.destroy_process_group()


def measured(task: Task) -> dict[str, Any]:
    """Peaks by phase and role, and bytes sent by group and collective, in the second step.

    The first step creates the optimizer's state.
    """
    with fake_ranks(task) as mesh:
        meter = Meter({mesh.get_group(name).group_name: name for name in MESH})
        parts = [
            chunk(task, number, layers, mesh, meter)
            for number, layers in zip(task.chunks, task.layers, strict=True)
        ]
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            loss_parallel() if task.tp > 1 else nullcontext(),
        ):
            parameters = [p for part in parts for p in part.to_empty(device="cpu").parameters()]
            trained = [parameter for parameter in parameters if parameter.requires_grad]
            optimizer = torch.optim.AdamW(
                trained, foreach=not task.fused_optimizer, fused=task.fused_optimizer
            )
            stages = pipeline_stages(task, parts, mesh) if task.stages > 1 else []
            plain = chunked_step if task.loss_chunks > 1 else plain_step
            step = pipeline_step(task, stages) if stages else plain(task, parts[0])
            step()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            for parameter in parameters:
                meter.hold(parameter, "parameters")
            _hold_what_stays(meter, optimizer, stages)
            with watched(meter):
                step()
                meter.enter("optimizer step", "temporary")
                optimizer.step()
    return {
        "parameters": sum(p.numel() for p in parameters),
        "peaks": {phase: dict(roles) for phase, (_, roles) in meter.peaks.items()},
        "sent": {group: dict(kinds) for group, kinds in meter.sent.items()},
    }


def _hold_what_stays(
    meter: Meter, optimizer: torch.optim.Optimizer, stages: list[PipelineStage]
) -> None:
    """Counts what the first step leaves beside parameters: optimizer states, receive buffers."""
    for state in optimizer.state.values():
        for item in state.values():
            meter.hold(item, "optimizer")
    for stage in stages:
        for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
            for buffer in (info.buffer for info in infos if info.buffer is not None):
                meter.hold(buffer, "activations")


def plain_step(task: Task, stage: Stage) -> Callable[[], None]:
    """Forward and backward of each micro-batch, with gradients reduced after each."""

    def step() -> None:
        for _ in range(task.micro_batches):
            ids = torch.zeros(task.micro_batch, task.sequence, dtype=torch.long)
            loss = cross_entropy(stage(ids), ids, fused=task.fused_loss)
            stage.enter("loss")
            loss.backward()  # type: ignore[no-untyped-call]

    return step


def chunked_step(task: Task, stage: Stage) -> Callable[[], None]:
    """The same with head and loss chunk by chunk, as torchtitan's ``ChunkedLossWrapper``.

    The head stays gathered, its gradient is added up and scattered with the last chunk, and
    gradients of hidden states wait in fp32.
    """
    head: Any = stage.model.lm_head

    def keep(keeps_logits: bool) -> None:
        head.set_reshard_after_forward(not keeps_logits)
        head.set_reshard_after_backward(not keeps_logits)
        head.set_requires_gradient_sync(not keeps_logits, recurse=False)

    def step() -> None:
        for _ in range(task.micro_batches):
            ids = torch.zeros(task.micro_batch, task.sequence, dtype=torch.long)
            hidden = stage(ids)
            stage.enter("loss")
            pieces = [
                piece.contiguous().detach().requires_grad_(True)
                for piece in hidden.chunk(task.loss_chunks, dim=1)
            ]
            gradient = torch.zeros_like(hidden, dtype=torch.float32)
            keep(True)
            start = 0
            for number, piece in enumerate(pieces):
                if number == task.loss_chunks - 1:
                    head.set_requires_gradient_sync(True, recurse=False)
                labels = ids[:, start : start + piece.shape[1]]
                cross_entropy(head(piece), labels, fused=task.fused_loss).backward()  # type: ignore[no-untyped-call]
                gradient[:, start : start + piece.shape[1]] = piece.grad
                piece.grad = None
                start += piece.shape[1]
            keep(False)
            head.reshard()
            del pieces, piece
            hidden_gradient = gradient.to(hidden.dtype)
            del gradient
            hidden.backward(hidden_gradient)

    return step


def pipeline_stages(task: Task, parts: list[Stage], mesh: DeviceMesh) -> list[PipelineStage]:
    """A rank's chunks as pipeline stages of known shapes."""
    ids = torch.zeros(task.micro_batch, task.sequence, dtype=torch.long)
    config: Any = parts[0].model.config
    tokens = task.sequence // (task.tp if task.sequence_parallel else 1)
    hidden = torch.zeros(
        task.micro_batch, tokens, config.hidden_size, dtype=torch.bfloat16, requires_grad=True
    )
    logits = torch.zeros(
        task.micro_batch, task.sequence, config.vocab_size, dtype=torch.bfloat16, requires_grad=True
    )
    out = []
    for number, part in zip(task.chunks, parts, strict=True):
        stage = PipelineStage(
            part,
            number,
            task.stages,
            torch.device("cpu"),
            input_args=hidden if number else ids,
            output_args=logits if number == task.stages - 1 else hidden,
            group=mesh.get_group("pipeline"),
        )
        # shapes are given, so that ranks need not exchange them
        stage._inference_mode = InferenceMode.STATIC
        out.append(stage)
    return out


def pipeline_step(task: Task, stages: list[PipelineStage]) -> Callable[[], None]:
    """One of torch's schedules over this rank's chunks."""

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        value = cross_entropy(logits, labels, fused=task.fused_loss)
        end: Any = stages[-1].submod
        end.enter("loss")
        return value

    kind: Any = SCHEDULES[task.schedule]
    schedule = kind(
        stages if task.schedule == "interleaved" else stages[0],
        n_microbatches=task.micro_batches,
        loss_fn=loss,
    )
    # the warm-up reads what ranks voted, of which there is no data
    schedule._warmup_p2p = lambda *_args, **_kwargs: None
    first, last = 0 in task.chunks, task.stages - 1 in task.chunks

    def step() -> None:
        ids = torch.zeros(task.micro_batch * task.micro_batches, task.sequence, dtype=torch.long)
        schedule.step(
            *((ids,) if first else ()),
            **({"target": ids} if last else {}),
            return_outputs=False,
        )

    return step


def main() -> None:
    """Answers the tasks on standard input in order: what was measured, or why it could not be.

    Each has a process of its own: DTensor caches meshes that look alike, and with them groups that
    are gone.
    """
    tasks = json.load(sys.stdin)
    start = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    workers = min(len(tasks), os.cpu_count() or 1)
    with multiprocessing.get_context(start).Pool(
        workers, initializer=_register, maxtasksperchild=1
    ) as pool:
        json.dump(pool.map(_answer, tasks, chunksize=1), sys.stdout)


def _register() -> None:
    AttentionInterface.register(ATTENTION, flash_attention)
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)


def _answer(task: dict[str, Any]) -> dict[str, Any]:
    try:
        return measured(Task(**task))
    except Exception as error:  # a model's code may fail in any way without data: one clear line
        cause: BaseException = error
        while cause.__cause__ is not None:  # a schedule reports where it was, not what went wrong
            cause = cause.__cause__
        reason = (str(cause).strip().splitlines() or [""])[0][:200]
        return {"error": f"{type(cause).__name__}: {reason}"}


if __name__ == "__main__":
    main()
