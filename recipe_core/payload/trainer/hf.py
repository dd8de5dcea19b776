"""The same run with transformers' trainer, for DeepSpeed and Accelerate."""

from __future__ import annotations

import argparse
import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from .checkpoint import LEAST_KEPT
from .data import Sequences
from .errors import TrainError
from .metrics import Metrics, Step, peak_memory_bytes
from .model import choose_attention, load_model_config
from .rollbacks import BROKEN, Watch, end_with_code, read_record, remove_left, roll_back
from .settings import (
    STOP_FILE,
    Loading,
    Settings,
    add_run_options,
    data_paths,
    load_settings,
)
from .tokens import get_tokenizer, token_file

_OPTIMIZER = {"adamw": "adamw_torch", "sgd": "sgd"}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Sequences in the order of the run, each once; the trainer distributes them to replicas.

    Both labels are what follows each token, so that the trainer shifts nothing.
    """

    def __init__(self, sequences: Sequences, count: int) -> None:
        self.sequences, self.count = sequences, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.sequences.window(index)
        return {"input_ids": window[:-1], "labels": window[1:], "shift_labels": window[1:]}


class InOrder(Trainer):
    """A trainer without shuffling: the sequences are shuffled already."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        rows: Any = train_dataset if train_dataset is not None else self.train_dataset
        return SequentialSampler(rows)


class Figures(TrainerCallback):
    """Writes the metrics files that the launcher reads, watches the loss, stops when asked to."""

    def __init__(self, settings: Settings, run: Path) -> None:
        self.settings, self.run = settings, run
        self.metrics: Metrics | None = None
        self.watch = Watch(settings.guard)
        self.began = time.perf_counter()
        self.signalled = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.signalled = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Start the clock; the first time, the files."""
        if state.is_world_process_zero and self.metrics is None:
            self.metrics = Metrics(self.run, self.settings.name, state.global_step)
            scaled = self.settings.precision == "fp16"
            self.watch = Watch(self.settings.guard, self.metrics.earlier_losses, scaled=scaled)
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Save and end where the run folder or a signal asks, all processes after the same step."""
        stops = self.signalled or (self.run / STOP_FILE).exists()
        requested = torch.tensor(float(stops), device=args.device)
        if dist.is_initialized():
            dist.all_reduce(requested, op=dist.ReduceOp.MAX)
        if requested > 0:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            remove_left(self._folder)

    def on_log(self, args: Any, state: Any, control: Any, **values: Any) -> None:  # noqa: ARG002
        """Write a row for the step; the summary at the end has no rate.

        Raises:
            TrainError: when the loss broke; the other processes end with this one.
        """
        logs: dict[str, float] = values["logs"]
        if self.metrics is None or "learning_rate" not in logs or "loss" not in logs:
            return
        seconds, norm = time.perf_counter() - self.began, float(logs.get("grad_norm") or 0.0)
        memory, rate = peak_memory_bytes(args.device), logs["learning_rate"]
        step = Step(state.global_step, logs["loss"], rate, norm, seconds, memory)
        row = step.row(self.settings, args.world_size)
        self.metrics.write(row)
        if self.watch.see(state.global_step, row.loss, norm) == BROKEN:
            assert self.watch.event is not None  # noqa: S101 - what broke
            complete = list_hf_checkpoints(self._folder)
            checkpoints = list_hf_checkpoints(self._folder, complete=False)
            guard = self.settings.guard
            raise roll_back(self.run, self.watch.event, complete, checkpoints, guard)

    @property
    def _folder(self) -> Path:
        return self.run / "checkpoints"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes as those of the embedded trainer: 0, 2 and 3."""
    options = _hf_trainer_parser().parse_args(argv)
    return end_with_code(
        _run_folder(options),
        lambda: train_with_transformers(load_settings(options.config), options),
    )


def _run_folder(options: argparse.Namespace) -> Path:
    folder: Path = options.out or options.config.resolve().parent / "run"
    return folder.resolve()


def train_with_transformers(settings: Settings, options: argparse.Namespace) -> bool:
    """Build the model, train from the last checkpoint, save a model folder.

    Returns whether it came to its last step.
    """
    root = options.config.resolve().parent
    run = _run_folder(options)
    if settings.lora:
        hint = "Use the embedded trainer, or TRL."
        raise TrainError("transformers' trainer trains no adapters here.", hint=hint)
    record = read_record(run)
    record.check(settings.guard.rollbacks)
    data = data_paths(options.data, settings.data, root)
    config: Any = load_model_config(settings, options.model)
    torch.manual_seed(settings.seed)
    tokenizer = get_tokenizer(
        settings.model.tokenizer,
        options.model,
        data,
        config.vocab_size,
        config.max_position_embeddings,
    )
    # Before the model, which ZeRO-3 divides while it is built.
    arguments = _build_hf_arguments(settings, options.deepspeed, run)
    with arguments.main_process_first(desc="tokens"):
        path = token_file(data, tokenizer, run / "data")
    batch = settings.batch
    sequences = Sequences(
        path, batch.sequence_length, batch.global_batch, settings.seed, record.skips
    )
    kwargs = {"dtype": torch.float32, "attn_implementation": choose_attention(settings.attention)}
    if settings.model.weights == "pretrained":
        model: Any = AutoModelForCausalLM.from_pretrained(options.model, **kwargs)
    else:
        model = AutoModelForCausalLM.from_config(config, **kwargs)  # type: ignore[no-untyped-call]
    rows = Rows(sequences, settings.steps * batch.global_batch)
    trainer = InOrder(
        model=model, args=arguments, train_dataset=rows, callbacks=[Figures(settings, run)]
    )
    checkpoints = list_hf_checkpoints(run / "checkpoints")
    ended = trainer.train(resume_from_checkpoint=str(checkpoints[-1][1]) if checkpoints else None)
    if ended.global_step < settings.steps:
        trainer.accelerator.wait_for_everyone()  # all have seen the file
        if trainer.is_world_process_zero():
            (run / STOP_FILE).unlink(missing_ok=True)
        return False
    model.config.use_cache = True
    if trainer.is_fsdp_enabled:  # of shards, which checkpoints hold, it saves no model
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(str(run / "model"))
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(run / "model")
        # A pickle, which nothing that serves needs.
        (run / "model" / "training_args.bin").unlink(missing_ok=True)
    return True


def list_hf_checkpoints(folder: Path, *, complete: bool = True) -> list[tuple[int, Path]]:
    """Checkpoints by steps; ``complete`` ones have the trainer's state, which is written last."""
    paths = folder.glob("checkpoint-*")
    steps = [(path.name.rpartition("-")[2], path) for path in paths]
    return sorted(
        (int(step), path)
        for step, path in steps
        if step.isdigit() and (not complete or (path / "trainer_state.json").is_file())
    )


def _build_hf_arguments(settings: Settings, deepspeed: Path | None, run: Path) -> TrainingArguments:
    o, batch = settings.optimizer, settings.batch
    world = int(os.environ.get("WORLD_SIZE", "1"))
    # Accelerate's own variable: processes that share a sequence
    replicas = world // int(os.environ.get("PARALLELISM_CONFIG_CP_SIZE", "1"))
    sequences = replicas * batch.micro_batch
    if batch.global_batch % sequences:
        terms = f"replicas {replicas} × micro_batch {batch.micro_batch} = {sequences}"
        message = f"global_batch {batch.global_batch} is not divisible by {terms}."
        raise TrainError(message, hint="Start as many processes as planned.")
    by_fsdp = os.environ.get("FSDP_ACTIVATION_CHECKPOINTING", "false") == "true"
    return TrainingArguments(
        output_dir=str(run / "checkpoints"),
        max_steps=settings.steps,
        per_device_train_batch_size=batch.micro_batch,
        gradient_accumulation_steps=batch.global_batch // sequences,
        bf16=settings.precision == "bf16",
        fp16=settings.precision == "fp16",
        gradient_checkpointing=settings.recompute == "full" and not by_fsdp,
        optim=_OPTIMIZER[o.name],
        optim_args=f"momentum={o.beta1}" if o.name == "sgd" else None,
        learning_rate=o.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": o.least_rate_share},
        warmup_steps=o.warmup_steps,
        weight_decay=o.weight_decay,
        adam_beta1=o.beta1,
        adam_beta2=o.beta2,
        adam_epsilon=o.epsilon,
        max_grad_norm=o.clip_norm,
        logging_steps=1,
        accelerator_config={
            "gradient_accumulation_kwargs": {
                "sync_each_batch": settings.split.gradient_sync == "micro-batch"
            }
        },
        # It would drop shift_labels, which no forward pass names, and shift what is shifted.
        remove_unused_columns=False,
        save_steps=settings.checkpoints.every_steps,
        logging_nan_inf_filter=False,
        save_total_limit=max(settings.checkpoints.keep, LEAST_KEPT),
        seed=settings.seed,
        **loader_arguments(settings.loading),
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        deepspeed=str(deepspeed) if deepspeed else None,
    )


def loader_arguments(loading: Loading) -> dict[str, Any]:
    """Worker processes of a replica, which share the mapped tokens, and what each makes ahead."""
    workers = loading.workers if loading.prefetch else 0
    return {
        "dataloader_num_workers": workers,
        "dataloader_prefetch_factor": math.ceil(loading.prefetch / workers) if workers else None,
        "dataloader_persistent_workers": workers > 0,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def _hf_trainer_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train_hf.py",
        description="Train what train.json describes, with transformers' trainer.",
    )
    add_run_options(parser)
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="DeepSpeed's configuration")
    # DeepSpeed's launcher passes it.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser
