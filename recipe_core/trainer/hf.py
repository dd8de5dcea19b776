"""The same run with transformers' trainer, for DeepSpeed and Accelerate."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from .data import Sequences, token_file
from .errors import TrainError
from .metrics import Metrics, Row, peak_memory_bytes
from .model import read_config
from .settings import Settings, data_paths, load_settings
from .tokenizer import get_tokenizer

_ATTENTION = {"flash": "sdpa", "eager": "eager"}
_OPTIMIZER = {"adamw": "adamw_torch", "sgd": "sgd"}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Sequences in the order of the run, each once; the trainer distributes them to replicas."""

    def __init__(self, sequences: Sequences, count: int) -> None:
        self.sequences, self.count = sequences, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.sequences.sequence(index)[:-1]
        return {"input_ids": ids, "labels": ids}


class InOrder(Trainer):
    """A trainer without shuffling: the sequences are shuffled already."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        rows: Any = train_dataset if train_dataset is not None else self.train_dataset
        return SequentialSampler(rows)


class Figures(TrainerCallback):
    """Writes the metrics files that the launcher reads."""

    def __init__(self, settings: Settings, run: Path) -> None:
        self.settings, self.run = settings, run
        self.metrics: Metrics | None = None
        self.began = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Start the clock; the first time, the files."""
        if state.is_world_process_zero and self.metrics is None:
            self.metrics = Metrics(self.run, self.settings.name, state.global_step)
        self.began = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, **values: Any) -> None:  # noqa: ARG002
        """Write a row for the step; the summary at the end has no rate."""
        logs: dict[str, float] = values["logs"]
        if self.metrics is None or "learning_rate" not in logs or "loss" not in logs:
            return
        s, seconds = self.settings, time.perf_counter() - self.began
        rate = s.batch.global_batch * s.batch.sequence_length / seconds
        per_device = rate / args.world_size
        mfu = None
        if s.figures.flops_per_token and s.figures.peak_flops_per_s:
            mfu = per_device * s.figures.flops_per_token / s.figures.peak_flops_per_s
        row = Row(
            state.global_step,
            logs["loss"],
            logs["learning_rate"],
            float(logs.get("grad_norm", 0.0)),
            seconds,
            rate,
            per_device,
            mfu,
            peak_memory_bytes(args.device),
            state.global_step * s.batch.global_batch * s.batch.sequence_length,
            1.0,
        )
        self.metrics.write(row)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 trained; 2 something a person has to change."""
    options = _parser().parse_args(argv)
    try:
        train(load_settings(options.config), options)
    except TrainError as error:
        print(f"train: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def train(settings: Settings, options: argparse.Namespace) -> None:
    """Build the model, train from the last checkpoint, save a model folder."""
    root = options.config.resolve().parent
    run = (options.out or root / "run").resolve()
    data = data_paths(options.data, settings.data, root)
    config: Any = read_config(settings, options.model)
    torch.manual_seed(settings.seed)
    tokenizer = get_tokenizer(
        settings.model.tokenizer,
        options.model,
        data,
        config.vocab_size,
        config.max_position_embeddings,
    )
    # Before the model, which ZeRO-3 divides while it is built.
    arguments = _arguments(settings, options.deepspeed, run)
    with arguments.main_process_first(desc="tokens"):
        path = token_file(data, tokenizer, run / "data")
    sequences = Sequences(
        path, settings.batch.sequence_length, settings.batch.global_batch, settings.seed
    )
    kwargs = {"dtype": torch.float32, "attn_implementation": _ATTENTION[settings.attention]}
    if settings.model.weights == "pretrained":
        model: Any = AutoModelForCausalLM.from_pretrained(options.model, **kwargs)
    else:
        model = AutoModelForCausalLM.from_config(config, **kwargs)  # type: ignore[no-untyped-call]
    rows = Rows(sequences, settings.steps * settings.batch.global_batch)
    trainer = InOrder(
        model=model, args=arguments, train_dataset=rows, callbacks=[Figures(settings, run)]
    )
    whole = checkpoints(run / "checkpoints")
    trainer.train(resume_from_checkpoint=str(whole[-1]) if whole else None)
    model.config.use_cache = True
    trainer.save_model(str(run / "model"))
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(run / "model")
        # A pickle, which nothing that serves needs.
        (run / "model" / "training_args.bin").unlink(missing_ok=True)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints that were written to the end, oldest first: the trainer's state comes last."""
    whole = (path.parent for path in folder.glob("checkpoint-*/trainer_state.json"))
    return sorted(whole, key=lambda path: int(path.name.rpartition("-")[2]))


def _arguments(settings: Settings, deepspeed: Path | None, run: Path) -> TrainingArguments:
    o, batch = settings.optimizer, settings.batch
    world = int(os.environ.get("WORLD_SIZE", "1"))
    sequences = world * batch.micro_batch
    if batch.global_batch % sequences:
        terms = f"processes({world}) × micro_batch({batch.micro_batch}) = {sequences}"
        message = f"global_batch({batch.global_batch}) is not divisible by {terms}."
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
        save_steps=settings.checkpoints.every_steps,
        save_total_limit=settings.checkpoints.keep,
        seed=settings.seed,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        deepspeed=str(deepspeed) if deepspeed else None,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train_hf.py",
        description="Train what train.json describes, with transformers' trainer.",
    )
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the run's train.json"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where metrics, checkpoints and the model go (default: run/ beside it)",
    )
    parser.add_argument(
        "--model", metavar="FOLDER|ID", help="the model's configuration, tokenizer and weights"
    )
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="texts (.txt, .jsonl) instead of the bundle's",
    )
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="DeepSpeed's configuration")
    # DeepSpeed's launcher passes it.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser
