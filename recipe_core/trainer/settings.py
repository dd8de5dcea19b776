"""``train.json`` as typed objects; what is wrong in it is one error that names the field."""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union

from .errors import TrainError

DATA = "RECIPE_DATA"


@dataclass(frozen=True)
class Model:
    """``config`` as ``config.json`` has it (None: the model folder's own). ``weights``: start from the folder's weights, or at random.

    ``tokenizer``: the model folder's, or one made from the data (for a model that has none yet).
    """

    config: dict[str, Any] | None = None
    weights: Literal["random", "pretrained"] = "random"
    tokenizer: Literal["model", "data"] = "model"


@dataclass(frozen=True)
class Split:
    """Degrees. ``dp`` is the planned number of replicas; an elastic run takes as many as there are devices for.

    ``shard``: ranks over which states are divided; the rest of ``dp`` holds copies (HSDP).
    ``zero_stage``: 0 copies everywhere; 2 divides states and keeps parameters gathered from a
    forward pass to its backward pass, 3 gathers them for each. ``gradient_sync``: replicas exchange
    gradients after every micro-batch, or once a step, until which they are whole (pipelines always
    do).
    """

    tp: int = 1
    pp: int = 1
    virtual_stages: int = 1
    dp: int = 1
    shard: int = 1
    zero_stage: Literal[0, 2, 3] = 3
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    sequence_parallel: bool = False
    gradient_sync: Literal["micro-batch", "step"] = "micro-batch"


@dataclass(frozen=True)
class Batch:
    """Sequences: their length in tokens, how many a step and how many at once on a replica."""

    sequence_length: int
    global_batch: int
    micro_batch: int = 1


@dataclass(frozen=True)
class Optimizer:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101) or SGD with momentum ``beta1``; linear warm-up, then a cosine to the least rate."""

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 3e-4
    least_rate_share: float = 0.1
    warmup_steps: int = 0
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0


@dataclass(frozen=True)
class Lora:
    """Adapters beside frozen weights: their rank, and ``alpha`` (alpha / rank times what they give is added)."""

    rank: int
    alpha: float


@dataclass(frozen=True)
class Checkpoints:
    """Every so many steps, keeping the newest."""

    every_steps: int = 1000
    keep: int = 2


@dataclass(frozen=True)
class Figures:
    """What model flop utilisation is counted with: flops of a token, and a device's peak."""

    flops_per_token: float | None = None
    peak_flops_per_s: float | None = None


@dataclass(frozen=True)
class Settings:
    """All of ``train.json``. ``data``: texts, relative to the bundle. ``elastic``: other numbers of devices are fine."""

    schema_version: Literal[1]
    name: str
    batch: Batch
    steps: int
    data: tuple[str, ...]
    model: Model = Model()
    split: Split = Split()
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    recompute: Literal["none", "selective", "full"] = "none"
    attention: Literal["flash", "eager"] = "flash"
    seed: int = 0
    elastic: bool = False
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = None
    checkpoints: Checkpoints = Checkpoints()
    figures: Figures = Figures()


def load_settings(path: Path) -> Settings:
    """Read ``path``.

    Raises:
        TrainError: when the file is no JSON object, or a field is unknown, missing or of another
            type.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainError(
            f"cannot read {path}: {error.strerror}.", hint="Say where it is with --config FILE."
        ) from None
    except ValueError as error:
        raise TrainError(f"{path} is not JSON: {error}.") from None
    settings: Settings = _read(value, Settings, path.name)
    return settings


def data_paths(said: Sequence[Path], planned: tuple[str, ...], root: Path) -> tuple[Path, ...]:
    """Texts: those on the command line, else those in the environment, else the bundle's own."""
    if said:
        return tuple(path.resolve() for path in said)
    if given := os.environ.get(DATA):
        return tuple(Path(part) for part in given.split(os.pathsep))
    return tuple(root / name for name in planned)


def _read(value: Any, kind: Any, where: str) -> Any:
    """``value`` as ``kind``: dataclasses from objects, tuples from lists, optional and literal values, numbers and text."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _object(value, kind, where)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(value, arguments[0], where)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool):
            raise TrainError(
                f"{where} is {value!r}.", hint=f"Use {' or '.join(map(repr, arguments))}."
            )
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise TrainError(f"{where} is {value!r}, not a list.")
        return tuple(
            _read(item, arguments[0], f"{where}[{index}]") for index, item in enumerate(value)
        )
    plain = origin or kind
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise TrainError(f"{where} is {value!r}, not {plain.__name__}.")
    return value


def _object(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise TrainError(f"{where} is {value!r}, not an object.")
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    if extra := sorted(value.keys() - known.keys()):
        raise TrainError(f"{where}.{extra[0]} is unknown.", hint=f"Known are {', '.join(known)}.")
    missing = [
        name for name, field in known.items() if name not in value and field.default is MISSING
    ]
    if missing:
        raise TrainError(f"{where}.{missing[0]} is missing.")
    return kind(
        **{name: _read(item, hints[name], f"{where}.{name}") for name, item in value.items()}
    )
