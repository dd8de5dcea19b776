"""What a run learns from, and which methods go with which splits."""

from __future__ import annotations

from pathlib import Path

import torch

from .data import Order, Sequences
from .errors import TrainError
from .examples import Chats, Pairs
from .rollbacks import Skips
from .settings import Settings

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
