"""What a run learns from: examples of signed tokens, and the sequences made of them."""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from .data import IGNORED, Item, Order, Sequences
from .disk import put_in_place
from .errors import TrainError
from .rollbacks import Skips
from .settings import Settings

# What follows each example in a file; no token is that.
_END = -(2**31)


def write_examples(path: Path, examples: Iterable[list[int]]) -> Path:
    """The file ``path`` with examples one after another; it appears whole or not at all."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.uname().nodename}.{os.getpid()}")
        with part.open("wb") as out:
            for example in examples:
                out.write(torch.tensor([*example, _END], dtype=torch.int32).numpy().tobytes())
        put_in_place(part, path)
    return path


class Examples:
    """The examples of a file; an example longer than a sequence and one token loses its end."""

    def __init__(self, path: Path, length: int) -> None:
        size = path.stat().st_size // 4
        self.length = length
        self.tokens = (
            torch.from_file(str(path), size=size, dtype=torch.int32)
            if size
            else torch.empty(0, dtype=torch.int32)
        )
        ends = torch.nonzero(self.tokens == _END).flatten()
        self.starts = torch.cat([torch.zeros(1, dtype=ends.dtype), ends[:-1] + 1])[: len(ends)]
        self.slots = (ends - self.starts - 1).clamp(min=0, max=length).tolist()

    def __len__(self) -> int:
        return len(self.slots)

    def targets(self, number: int) -> torch.Tensor:
        return self._cut(number, 1).where(self._cut(number, 1) >= 0, IGNORED)

    def inputs(self, number: int) -> torch.Tensor:
        """The tokens of an example that something follows."""
        tokens = self._cut(number, 0)
        return tokens.where(tokens >= 0, -1 - tokens)

    def learns(self, number: int) -> bool:
        return bool((self._cut(number, 1) >= 0).any())

    def _cut(self, number: int, after: int) -> torch.Tensor:
        start = int(self.starts[number]) + after
        return self.tokens[start : start + self.slots[number]].long()

    def filled(self, numbers: Sequence[int], *, positions: bool) -> Item:
        """One sequence of some examples, one after another, and what is left of it as padding."""
        inputs = torch.zeros(self.length, dtype=torch.long)
        targets = torch.full((self.length,), IGNORED)
        places = torch.zeros(self.length, dtype=torch.long)
        at = 0
        for number in numbers:
            end = at + self.slots[number]
            inputs[at:end], targets[at:end] = self.inputs(number), self.targets(number)
            places[at:end] = torch.arange(end - at)
            at = end
        places[at:] = torch.arange(self.length - at)
        return Item(inputs, targets, places if positions else None)


def best_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Which sizes share a sequence: the largest first, each where the least is left.

    Best-fit decreasing (Ding et al., Fewer truncations improve language modeling,
    arXiv:2404.10830); equal sizes keep their order, so that equal files are packed alike.
    """
    out: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # sorted rooms that some sequence has
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        size = sizes[number]
        place = bisect_left(rooms, size)
        if place == len(rooms):
            out.append([])
            row, free = len(out) - 1, room
        else:
            free = rooms[place]
            row = by_room[free].pop()
            if not by_room[free]:
                rooms.pop(place)
        out[row].append(number)
        rest = free - size
        if not by_room.setdefault(rest, []):
            insort(rooms, rest)
        by_room[rest].append(row)
    return out


class Chats(Order):
    """Chats, several to a sequence where ``packed``: attention ends where a chat does.

    Otherwise, and where the last one leaves room, the rest of a sequence is padding.
    """

    def __init__(
        self,
        path: Path,
        length: int,
        global_batch: int,
        seed: int,
        skips: Skips | None = None,
        *,
        packed: bool = True,
    ) -> None:
        self.examples, self.packed = Examples(path, length), packed
        numbers = [i for i in range(len(self.examples)) if self.examples.learns(i)]
        self.left_out = len(self.examples) - len(numbers)
        if not numbers:
            raise _no_answer_error("chat", length)
        sizes = [self.examples.slots[i] for i in numbers]
        rows = best_fit(sizes, length) if packed else [[n] for n in range(len(numbers))]
        self.rows = [[numbers[n] for n in row] for row in rows]
        super().__init__(len(self.rows), global_batch, seed, skips)

    def item(self, place: int) -> list[Item]:
        return [self.examples.filled(self.rows[place], positions=self.packed)]


class Pairs(Order):
    """Preferences: the sequence of the chosen answer, then that of the rejected one."""

    sequences_each = 2

    def __init__(
        self, path: Path, length: int, global_batch: int, seed: int, skips: Skips | None = None
    ) -> None:
        self.examples = examples = Examples(path, length)
        pairs = range(0, len(examples), 2)
        self.kept = [n for n in pairs if examples.learns(n) and examples.learns(n + 1)]
        self.left_out = len(pairs) - len(self.kept)
        if not self.kept:
            raise _no_answer_error("preference", length)
        super().__init__(len(self.kept), global_batch, seed, skips)

    def item(self, place: int) -> list[Item]:
        """Two sequences."""
        first = self.kept[place]
        return [self.examples.filled([first + n], positions=False) for n in range(2)]


def _no_answer_error(kind: str, length: int) -> TrainError:
    return TrainError(
        f"no {kind} has an answer within {length} tokens.",
        hint="Use more data or a longer sequence_length.",
    )


# Whose FSDP was seen to hold packed four-bit matrices; 2.11's was not.
LEAST_TORCH = "2.13"


def open_data(path: Path, settings: Settings, skips: Skips) -> Order:
    """The data of a run, from its token file."""
    batch, seed = settings.batch, settings.seed
    shared = (path, batch.sequence_length, batch.global_batch, seed, skips)
    if settings.data_format == "chat":
        return Chats(*shared, packed=settings.packed)
    return Pairs(*shared) if settings.data_format == "preference" else Sequences(*shared)


def check_training_task(settings: Settings, model: str | None) -> None:
    """Refuse what cannot be trained together; ``model`` is the folder of the weights, if any.

    Raises:
        TrainError: with what to change.
    """
    preferences, weights = settings.data_format == "preference", settings.model.weights
    if (settings.lora or preferences) and (weights != "pretrained" or model is None):
        task = "adapters need" if settings.lora else "preferences need"
        raise TrainError(
            f"{task} the weights of a model, and there are none.",
            hint="Set a folder with them: --model FOLDER.",
        )
    if settings.lora and settings.lora.base == "nf4":
        _check_four_bits(settings.split.tp)
    if not preferences:
        return
    if settings.split.pp > 1:
        raise TrainError(
            f"preferences are not trained in a pipeline (pp {settings.split.pp}).",
            hint="Set pp: 1.",
        )
    if settings.batch.micro_batch % 2:
        raise TrainError(
            f"micro_batch {settings.batch.micro_batch} is odd; answers of a pair come together.",
            hint="Set an even micro_batch.",
        )


def _check_four_bits(tp: int) -> None:
    if tp > 1:
        raise TrainError(
            f"tensor parallelism (tp {tp}) does not cut matrices in four bits.", hint="Set tp: 1."
        )
    if torch.__version__ < LEAST_TORCH:
        raise TrainError(
            f"FSDP of torch {torch.__version__} holds no packed bytes.",
            hint=f"Install torch {LEAST_TORCH} or newer.",
        )
