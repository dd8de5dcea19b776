"""``train.json`` as typed objects; errors name the field."""

from __future__ import annotations

import argparse
import json
import os
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union

from .errors import TrainError

DATA = "RECIPE_DATA"
STOP_FILE = "stop"
# Variable with the exit code of a run that stops before its last step; 0 without it. Controllers
# that take 0 for the end of the whole run set another.
STOPPED_EXIT = "RECIPE_STOPPED_EXIT"
"""A file in the run folder that requests a checkpoint and an end after the current step."""
# A variable; ``ignore`` judges no losses, only what is no number.
SPIKES = "RECIPE_SPIKES"


@dataclass(frozen=True)
class Model:
    """The model: ``config`` as in ``config.json`` (None: the model folder's own).

    ``weights``: start from the folder's weights, or at random.

    ``tokenizer``: the model folder's, or one trained on the data (for a model without one).
    """

    config: dict[str, Any] | None = None
    weights: Literal["random", "pretrained"] = "random"
    tokenizer: Literal["model", "data"] = "model"


@dataclass(frozen=True)
class Split:
    """Degrees; ``dp`` is the planned number of replicas, which an elastic run adapts.

    ``shard``: ranks over which states are divided; the rest of ``dp`` are copies (HSDP).
    ``zero_stage``: 0 copies everywhere; 2 divides states but keeps parameters gathered between a
    forward pass and its backward pass; 3 gathers them for each. ``gradient_sync``: replicas
    exchange gradients after every micro-batch, or once per step (pipelines always do).
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
    """Sequences: length in tokens, number per step, and number at once on a replica."""

    sequence_length: int
    global_batch: int
    micro_batch: int = 1


@dataclass(frozen=True)
class Loading:
    """The loading of batches: ``workers`` make up to ``prefetch`` of them ahead of the step.

    With ``prefetch`` 0 every step waits for its own.
    """

    workers: int = 2
    prefetch: int = 2


@dataclass(frozen=True)
class Optimizer:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101), or SGD with momentum ``beta1``.

    Linear warm-up, then a cosine to the least rate.
    """

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
    """Adapters of frozen weights: ``alpha / rank`` times their product is added.

    ``targets``: matrices that get one.
    """

    rank: int
    alpha: float
    targets: Literal["attention", "mlp", "all"] = "all"


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints every so many steps, keeping the newest (two at least: one may be damaged)."""

    every_steps: int = 1000
    keep: int = 2


@dataclass(frozen=True)
class Guard:
    """The guard of a loss: when it is a spike, and how often the run goes back for one.

    ``deviations``: robust standard deviations above the median of the last ``window`` calm steps
    (0: losses are not judged); ``patience``: such steps in a row that make a spike; ``rollbacks``:
    most of them without a checkpoint further on.
    """

    window: int = 50
    deviations: float = 10.0
    patience: int = 5
    rollbacks: int = 3


@dataclass(frozen=True)
class Figures:
    """The figures behind model flops utilisation: flops per token, and a device's peak."""

    flops_per_token: float | None = None
    peak_flops_per_s: float | None = None


@dataclass(frozen=True)
class Settings:
    """All of ``train.json``; ``data`` are texts, relative to the bundle.

    ``elastic``: the run adapts to other numbers of devices.
    """

    schema_version: Literal[1]
    name: str
    batch: Batch
    steps: int
    data: tuple[str, ...]
    model: Model = Model()
    split: Split = Split()
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    recompute: Literal["none", "selective", "full"] = "none"
    attention: Literal["flash", "flash2", "cudnn", "eager"] = "flash"
    seed: int = 0
    elastic: bool = False
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = None
    checkpoints: Checkpoints = Checkpoints()
    guard: Guard = Guard()
    figures: Figures = Figures()
    loading: Loading = Loading()


def load_settings(path: Path) -> Settings:
    """Read ``path``.

    Raises:
        TrainError: when it is not a JSON object, or a field is unknown, missing or mistyped.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainError(
            f"cannot read {path}: {error.strerror}.", hint="Set its path with --config FILE."
        ) from None
    except ValueError as error:
        raise TrainError(f"{path} is not JSON: {error}.") from None
    settings: Settings = _parse_setting_value(value, Settings, path.name)
    if os.environ.get(SPIKES) == "ignore":
        settings = replace(settings, guard=replace(settings.guard, deviations=0.0))
    if min(settings.guard.window, settings.guard.patience) < 1:
        raise TrainError(f"{path.name}.guard: window and patience must be at least 1.")
    if settings.loading.workers < 1 or settings.loading.prefetch < 0:
        message = f"{path.name}.loading: workers must be at least 1, prefetch at least 0."
        raise TrainError(message)
    return settings


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every program that trains what ``train.json`` describes."""
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


def data_paths(options: Sequence[Path], planned: tuple[str, ...], root: Path) -> tuple[Path, ...]:
    """The texts of the command line, else of the environment, else of the bundle.

    Another choice of the bundle has its train.json in a folder of its own, and shares the texts.
    """
    if options:
        return tuple(path.resolve() for path in options)
    if variable := os.environ.get(DATA):
        return tuple(Path(part) for part in variable.split(os.pathsep))
    bundle = Path(__file__).resolve().parents[1]
    return tuple(root / name if (root / name).exists() else bundle / name for name in planned)


def _parse_setting_value(value: Any, kind: Any, path: str) -> Any:
    """``value`` as ``kind``: a dataclass, tuple, optional or literal value, number or text."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _parse_settings_object(value, kind, path)
    if origin in (Union, types.UnionType):
        return None if value is None else _parse_setting_value(value, arguments[0], path)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool):
            hint = f"Use {' or '.join(map(repr, arguments))}."
            raise TrainError(f"{path} is {value!r}.", hint=hint)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise TrainError(f"{path} is {value!r}, not a list.")
        return tuple(
            _parse_setting_value(item, arguments[0], f"{path}[{i}]") for i, item in enumerate(value)
        )
    plain = origin or kind
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise TrainError(f"{path} is {value!r}, not {plain.__name__}.")
    return value


def _parse_settings_object(value: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise TrainError(f"{path} is {value!r}, not an object.")
    hints = typing.get_type_hints(kind)
    fields_by_name = {field.name: field for field in fields(kind)}
    if extra := sorted(value.keys() - fields_by_name.keys()):
        raise TrainError(
            f"{path}.{extra[0]} is unknown.", hint=f"Available: {', '.join(fields_by_name)}."
        )
    for name, field in fields_by_name.items():
        if name not in value and field.default is MISSING:
            raise TrainError(f"{path}.{name} is missing.")
    values = {
        name: _parse_setting_value(item, hints[name], f"{path}.{name}")
        for name, item in value.items()
    }
    return kind(**values)
