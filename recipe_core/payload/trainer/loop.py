"""The run: join, build, resume, train, save, export."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist

from .checkpoint import (
    Checkpointer,
    export_adapters,
    export_checkpoint,
    list_checkpoint_folders,
    list_complete_checkpoints,
)
from .data import Ahead, Sequences
from .errors import RolledBackError, TrainError
from .lora import check_adapters
from .metrics import Metrics, Row, Step, peak_memory_bytes
from .model import Part, build_meta_model, fill_weights, load_model_config
from .parallel import HALF, World, emulated, join_processes, lay_out
from .rollbacks import BROKEN, CALM, Watch, read_record, roll_back
from .settings import STOP_FILE, Settings
from .steps import (
    LossScale,
    Passes,
    learning_rate,
    make_optimizer,
    update,
)
from .tokens import get_tokenizer, token_file


@dataclass(frozen=True)
class Paths:
    """The bundle, its run folder, the model's folder or id, and the texts.

    ``model`` is None where train.json describes it completely.
    """

    root: Path
    run: Path
    model: str | None
    data: tuple[Path, ...]


def train_on_rank(settings: Settings, paths: Paths, resume: str) -> bool:
    """Run the whole training on this rank, and tell whether it came to its last step.

    Raises:
        TrainError: for what a person has to change.
    """
    world = join_processes(settings)
    try:
        return Run(settings, paths, world).go(resume)
    finally:
        dist.destroy_process_group()


def say(text: str) -> None:
    """Print one line on standard error, from the first rank."""
    if dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)


class Run:
    """The state that a run keeps from step to step."""

    def __init__(self, settings: Settings, paths: Paths, world: World) -> None:
        self.settings, self.paths, self.world = settings, paths, world
        self.record = read_record(paths.run)
        self.record.check(settings.guard.rollbacks)
        config = load_model_config(settings, paths.model)
        check_adapters(settings, paths.model)
        length = settings.batch.sequence_length
        if length > config.max_position_embeddings:
            limit = config.max_position_embeddings
            raise TrainError(f"sequence_length {length} exceeds the model's {limit} positions.")
        positions = config.max_position_embeddings
        self.tokenizer = get_tokenizer(
            settings.model.tokenizer,
            paths.model,
            paths.data,
            config.vocab_size,
            positions,
        )
        where = (paths.data, self.tokenizer, paths.run / "data")
        if int(os.environ["LOCAL_RANK"]) == 0:  # once per node; the others read the file
            token_file(*where)
        dist.barrier()
        batch, skips = settings.batch, self.record.skips
        sequences = Sequences(token_file(*where), length, batch.global_batch, settings.seed, skips)
        degrees, loading = world.degrees, settings.loading
        place = (world.dp_rank, degrees.dp, degrees.micro_batches)
        self.ahead = Ahead(sequences, place, loading.workers, loading.prefetch, settings.steps)
        self.reference = build_meta_model(config, settings)
        self.parts = [self._part(chunk) for chunk in range(settings.split.virtual_stages)]
        self.optimizers = [make_optimizer(settings.optimizer, part) for part in self.parts]
        self.scale = LossScale(used=settings.precision == "fp16")
        self.passes = Passes(self.parts, settings, world, self.scale)
        folder = paths.run / "checkpoints"
        self.checkpoints = Checkpointer(
            folder, settings.checkpoints.keep, self.parts, self.optimizers, settings.optimizer.name
        )
        self.watch = Watch(settings.guard)
        self.stop_signalled = False

    def _part(self, chunk: int) -> Part:
        settings, world = self.settings, self.world
        chunks = settings.split.pp * settings.split.virtual_stages
        model = build_meta_model(self.reference.config, settings)
        part = Part(model, chunk * settings.split.pp + world.pp_rank, chunks)
        part = lay_out(part, settings, world)
        part.to_empty(device=world.device)
        part.train()
        fill_weights(part, self.reference, settings, self.paths.model, world.device)
        return part

    def go(self, resume: str) -> bool:
        """Train to the last step, or until a stop is requested; whether it was the last.

        Leaves a checkpoint, and after the last step a model.

        Raises:
            RolledBackError: when the loss broke.
        """
        step = self.checkpoints.resume(resume, self.scale)
        self._tell(step)
        metrics, due = None, False
        if self.world.rank == 0:
            metrics = Metrics(self.paths.run, self.settings.name, step)
            losses = metrics.earlier_losses
            self.watch = Watch(self.settings.guard, losses, scaled=self.scale.used)
        before = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            while step < self.settings.steps:
                row, stop, verdict = self._step(step)
                step += 1
                if metrics:
                    metrics.write(row)
                rate = f"{row.tokens_per_s:,.0f} tokens/s"
                say(f"step {step} of {self.settings.steps}: loss {row.loss:.4f}, {rate}")
                if verdict == BROKEN:
                    self._roll_back()
                # A checkpoint in what may become a spike would push out one from before it.
                due = due or step % self.settings.checkpoints.every_steps == 0
                if stop or (due and verdict == CALM) or step == self.settings.steps:
                    self.checkpoints.save(step, self.scale)
                    due = False
                if stop:
                    break
            self.checkpoints.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
            self.ahead.close()
        self._finish(step)
        return step >= self.settings.steps

    def _roll_back(self) -> NoReturn:
        """Record where the next start goes on, and what it leaves out."""
        self.checkpoints.wait()
        if self.world.rank != 0:
            raise RolledBackError("the loss broke; rank 0 says where.")
        event, folder = self.watch.event, self.checkpoints.folder
        assert event is not None  # noqa: S101 - the verdict was of this rank
        guard = self.settings.guard
        raise roll_back(
            self.paths.run,
            event,
            list_complete_checkpoints(folder),
            list_checkpoint_folders(folder),
            guard,
        )

    def _step(self, step: int) -> tuple[Row, bool, int]:
        """One optimizer step: its row, whether any rank was asked to stop, and how it looks."""
        settings, degrees = self.settings, self.world.degrees
        began = time.perf_counter()
        loss = self.passes.run(self.ahead.batch(step))
        rate = learning_rate(settings.optimizer, step, settings.steps)
        scale = self.scale.value
        norm, _ = update(
            self.optimizers, settings.optimizer, rate, self.scale, self.world.mesh["pp"]
        )
        # Every rank of a tensor-parallel group has the loss, of a pipeline only the last stage.
        stop_requested = torch.tensor(float(self._stop_requested()), device=loss.device)
        shared = torch.stack([loss / (degrees.dp * degrees.tp), stop_requested])
        dist.all_reduce(shared)
        total, stop = shared.tolist()
        # One rank judges, and all act on what it says.
        verdict = self.watch.see(step + 1, total, norm) if self.world.rank == 0 else CALM
        largest = torch.tensor(
            [float(peak_memory_bytes(self.world.device)), float(verdict)],
            device=loss.device,
            dtype=torch.float64,
        )
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        memory, verdict = (int(value) for value in largest.tolist())
        seconds = time.perf_counter() - began
        done = Step(step + 1, total, rate, norm, seconds, memory, scale)
        return done.row(settings, dist.get_world_size()), stop > 0, verdict

    def _stop_requested(self) -> bool:
        if self.stop_signalled:
            return True
        return self.world.rank == 0 and (self.paths.run / STOP_FILE).exists()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_signalled = True

    def _tell(self, step: int) -> None:
        d, batch = self.world.degrees, self.settings.batch
        parameters = sum(parameter.numel() for parameter in self.reference.parameters())
        terms = f"PP {d.pp} × replicate {d.replicate} × shard {d.shard} × TP {d.tp}"
        work = f"{batch.global_batch} sequences of {batch.sequence_length} per step"
        pieces = f"{d.micro_batches} micro-batches of {batch.micro_batch}"
        begin = "starting" if step == 0 else f"resuming after step {step}"
        processes = f"{terms} = {dist.get_world_size()} processes"
        say(f"{parameters:,} parameters; {processes}; {work}, {pieces}; {begin}")
        if emulated(self.settings.precision, self.world.device):
            say("this processor has no bf16 products: calculating in fp32, with more memory")

    def _finish(self, step: int) -> None:
        if self.world.rank == 0:
            (self.paths.run / STOP_FILE).unlink(missing_ok=True)
            if step >= self.settings.steps:
                self._export(step)
            else:
                say(f"stopped after step {step} of {self.settings.steps}; the next start resumes")
        dist.barrier()

    def _export(self, step: int) -> None:
        checkpoint, target = self.checkpoints.folder / f"step-{step}", self.paths.run / "model"
        dtype, lora = HALF.get(self.settings.precision, torch.float32), self.settings.lora
        if lora:
            base = str(self.paths.model)
            export_adapters(checkpoint, self.tokenizer, target, dtype, lora, base)
        else:
            export_checkpoint(checkpoint, self.reference, self.tokenizer, target, dtype)
        say(f"done: {target} can be served")
