"""Checkpoints for any number of devices, written in the background, and as model folders.

torch.distributed.checkpoint stores tensors by name, so that a reader may divide them otherwise.
Nothing but tensors is stored.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from transformers import AutoModelForCausalLM

from .disk import put_in_place, sync_to_disk
from .errors import TrainError
from .lora import merge_adapters
from .model import Part
from .rollbacks import remove_left
from .settings import Lora
from .steps import STATES, LossScale

# The folder of the adapters alone, next to the model's.
ADAPTER = "adapter"
_AT_ONCE = 1 << 30  # bytes in fp32 beside the converted ones


def export_checkpoint(
    checkpoint: Path, reference: Any, tokenizer: Any, target: Path, dtype: torch.dtype
) -> None:
    """Write ``target`` atomically from a checkpoint of any split; holds one copy in memory."""
    weights: dict[str, torch.Tensor] = {}
    pending: dict[str, torch.Tensor] = {}
    for name, parameter in reference.named_parameters():
        pending[name] = torch.empty(parameter.shape, dtype=parameter.dtype)
        if sum(tensor.nbytes for tensor in pending.values()) > _AT_ONCE:
            weights |= _load_checkpoint_weights(checkpoint, pending, dtype)
            pending = {}
    weights |= _load_checkpoint_weights(checkpoint, pending, dtype)
    _write_exported_model(weights, reference, tokenizer, target, dtype)


def export_adapters(
    checkpoint: Path, tokenizer: Any, target: Path, dtype: torch.dtype, lora: Lora, base: str
) -> None:
    """Write the adapters alone, in peft's format, and ``target``: ``base`` with them merged."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    merged: list[Any] = []

    def write(part: Path) -> None:
        merged.append(merge_adapters(model, lora, read, part))

    def read(tensors: dict[str, torch.Tensor]) -> None:
        _load_checkpoint_weights(checkpoint, tensors, torch.float32)

    _replaced(target.with_name(ADAPTER), write)
    weights = {name: tensor.to(dtype) for name, tensor in merged[0].state_dict().items()}
    _write_exported_model(weights, merged[0], tokenizer, target, dtype)


def _write_exported_model(
    weights: dict[str, torch.Tensor],
    reference: Any,
    tokenizer: Any,
    target: Path,
    dtype: torch.dtype,
) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
        raise TrainError(
            "the trained weights are not finite; no model was exported.",
            hint="Train with a lower learning rate.",
        )
    # The stored configuration states the dtype of the model's parameters.
    config: Any = reference.to(dtype).config
    config.use_cache = True
    config.bos_token_id, config.eos_token_id, config.pad_token_id = (
        getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")
    )
    reference.generation_config = type(reference.generation_config).from_model_config(config)

    def save(part: Path) -> None:
        reference.save_pretrained(part, state_dict=weights)
        tokenizer.save_pretrained(part)

    _replaced(target, save)


def _replaced(target: Path, write: Callable[[Path], None]) -> None:
    """Replace a folder, or leave it unchanged where writing fails."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        write(part)
        if target.exists():
            shutil.rmtree(target)
        put_in_place(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _load_checkpoint_weights(
    checkpoint: Path, empty: dict[str, torch.Tensor], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in empty.items()}
    with warnings.catch_warnings():  # torch warns that a single process reads, as is meant
        warnings.simplefilter("ignore", UserWarning)
        load(tensors, checkpoint_id=checkpoint, no_dist=True)
    return {name.removeprefix("model."): tensor.to(dtype) for name, tensor in tensors.items()}


# What a checkpoint contains and where; it is written last, so whatever has it was complete.
METADATA = ".metadata"


def damage(folder: Path, rank: int, ranks: int) -> str | None:
    """The first fault in this rank's share of the stored tensors; None where there is none.

    Reading a checkpoint checks no sums: a bit that flipped on a disk would be trained on.
    """
    try:
        stored: dict[Any, Any] = FileSystemReader(folder).read_metadata().storage_data
    except Exception as error:  # whatever unpickling a damaged file raises
        return f"{METADATA}: {in_words(error)}"
    items = sorted((item.relative_path, item.offset, item.length) for item in stored.values())
    for name, offset, length in items[rank::ranks]:
        try:
            with (folder / name).open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if len(data) < length:
            return f"{name} is cut short"
        if not _intact(data):
            return f"{name} differs from its check sums"
    return None


def _intact(data: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.testzip() is None
    except Exception:  # zipfile raises several kinds for damaged archives
        return False


def in_words(error: BaseException) -> str:
    """An error in one line, for a collective one that of the first rank where something failed."""
    if isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__


_NAME = re.compile(r"step-(\d+)")
# Appended to the name of a checkpoint that could not be read; nothing looks at it again.
_DAMAGED = ".damaged"
# Checkpoints: the newest may turn out damaged.
LEAST_KEPT = 2


def list_checkpoint_folders(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints with their steps, oldest first; some may be cut short."""
    return sorted(
        (int(match.group(1)), path)
        for path in folder.glob("step-*")
        if (match := _NAME.fullmatch(path.name))
    )


def list_complete_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints that were written to the end, with their steps, oldest first."""
    return [
        (step, path)
        for step, path in list_checkpoint_folders(folder)
        if (path / METADATA).is_file()
    ]


def collect_checkpoint_tensors(
    parts: list[Part], optimizers: list[torch.optim.Optimizer], optimizer: str
) -> dict[str, Any]:
    """Every tensor that a run changes, by name; reading a checkpoint fills them in place."""
    out: dict[str, Any] = {}
    for part, states in zip(parts, optimizers, strict=True):
        for name, parameter in part.learning():
            out[f"model.{name}"] = parameter.detach()
            for key in STATES[optimizer]:
                out[f"optimizer.{name}.{key}"] = states.state[parameter][key]
    return out


class Checkpointer:
    """Writes checkpoints into ``folder``, one at a time, and keeps the newest ``keep``."""

    def __init__(
        self,
        folder: Path,
        keep: int,
        parts: list[Part],
        optimizers: list[torch.optim.Optimizer],
        optimizer: str,
    ) -> None:
        self.folder, self.keep = folder, max(keep, LEAST_KEPT)
        self.parts, self.optimizers, self.optimizer = parts, optimizers, optimizer
        self._group = dist.new_group(backend="gloo")  # its own, as it is busy during training
        self._pending: Future[Any] | None = None
        self.last: int | None = None

    def save(self, step: int, scale: LossScale) -> None:
        """Copy everything and write it in the background, after the one before."""
        self.wait()
        numbers = {
            "run.step": torch.tensor(step),
            "run.scale": torch.tensor([scale.value, float(scale.good)], dtype=torch.float64),
        }
        target = self.folder / f"step-{step}"
        if dist.get_rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            # One of this step that is written again is not complete until its end.
            (target / METADATA).unlink(missing_ok=True)
        dist.barrier(self._group)
        tensors = {
            **collect_checkpoint_tensors(self.parts, self.optimizers, self.optimizer),
            **numbers,
        }
        pending = async_save(tensors, checkpoint_id=target, process_group=self._group)
        self._pending = pending if isinstance(pending, Future) else pending.upload_completion
        self.last = step

    def wait(self) -> None:
        """Wait until nothing is being written; then remove what is older than the kept ones."""
        if self._pending is None:
            return
        self._pending.result()
        self._pending = None
        if dist.get_rank() == 0:
            newest = list_complete_checkpoints(self.folder)[-self.keep :]
            sync_to_disk(
                newest[-1][1]
            )  # its files are; their names have to be before older ones go
            sync_to_disk(self.folder)
            oldest = min(step for step, _ in newest)
            for step, path in list_checkpoint_folders(self.folder):
                if step < oldest:
                    # First, so that a removal that is cut short leaves nothing that looks complete.
                    (path / METADATA).unlink(missing_ok=True)
                    shutil.rmtree(path, ignore_errors=True)
            remove_left(self.folder)

    def resume(self, choice: str, scale: LossScale) -> int:
        """Read the newest checkpoint (``auto``), a given one or none (``never``).

        A damaged newest one is stepped over by all ranks alike, and put aside under another name.

        Returns the step to go on with.

        Raises:
            TrainError: when a given one, or every one, cannot be read or does not fit the model.
        """
        agreed: list[Any] = [self._choose(choice) if dist.get_rank() == 0 else []]
        dist.broadcast_object_list(agreed, group=self._group)
        steps: list[int] = agreed[0]
        reasons: dict[int, str] = {}
        for step in steps:
            reason = self._read(step, scale)
            if reason is None:
                if dist.get_rank() == 0:
                    self._put_aside(reasons, step)
                return step
            reasons[step] = reason
        if steps:
            raise self._unreadable(reasons)
        return 0

    def _choose(self, choice: str) -> list[int]:
        """Steps of the checkpoints to try, in this order."""
        if choice not in ("auto", "never"):
            return [int(choice)]
        return (
            [step for step, _ in reversed(list_complete_checkpoints(self.folder))]
            if choice == "auto"
            else []
        )

    def _read(self, step: int, scale: LossScale) -> str | None:
        """Fill everything from a checkpoint; None, or on every rank why some rank could not."""
        path = self.folder / f"step-{step}"
        reason = self._agreed(damage(path, dist.get_rank(), dist.get_world_size()))
        if reason is not None:
            return reason
        numbers = {"run.step": torch.tensor(-1), "run.scale": torch.zeros(2, dtype=torch.float64)}
        tensors = {
            **collect_checkpoint_tensors(self.parts, self.optimizers, self.optimizer),
            **numbers,
        }
        try:
            load(tensors, checkpoint_id=path, process_group=self._group)
        except (Exception, CheckpointException) as error:  # the latter is no Exception
            reason = in_words(error)
        else:
            if int(numbers["run.step"]) != step:
                reason = f"it is of step {int(numbers['run.step'])}"
        reason = self._agreed(reason)
        if reason is None:
            scale.value, scale.good = float(numbers["run.scale"][0]), int(numbers["run.scale"][1])
        return reason

    def _agreed(self, reason: str | None) -> str | None:
        """The first rank's reason that has one, on every rank."""
        reasons: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, reason, group=self._group)
        return next(filter(None, reasons), None)

    def _put_aside(self, reasons: dict[int, str], used: int) -> None:
        """Rename damaged checkpoints: the step is written again, and they do not count as kept."""
        for step, reason in reasons.items():
            path = self.folder / f"step-{step}"
            aside = path.with_name(path.name + _DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)  # of the same step, damaged twice
            path.rename(aside)
            text = f"{path} is damaged ({reason}); it is now {aside.name}, and step-{used} is used."
            print(f"train: {text}", file=sys.stderr, flush=True)

    def _unreadable(self, reasons: dict[int, str]) -> TrainError:
        newest = max(reasons)
        path = self.folder / f"step-{newest}"
        earlier = f", nor can the {len(reasons) - 1} before it" if len(reasons) > 1 else ""
        return TrainError(
            f"{path} cannot be read or does not fit this model ({reasons[newest]}){earlier}.",
            hint=f"Restore one, or move {self.folder} away to start from step 0.",
        )
