"""Training programs as data: ``training/programs.yaml``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import InputError, unknown
from recipe_core.engines.release import ContainerImage

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Packages(_Data):
    """What the image of a framework adds to a base, at exact versions."""

    base: str
    packages: tuple[Annotated[str, Field(pattern=r"^[a-z0-9-]+==[\w.]+$")], ...]


class Base(_Data):
    """An image that holds ``torch`` at a version."""

    image: ContainerImage
    torch: str


class TrainingEngine(_Data):
    """A framework at its pinned release.

    ``module`` is asked for its version; ``requires`` are the modules it must be able to import.

    ``container``: how its image is built, None where it is not a package.
    """

    version: str
    module: str
    install: str
    requires: tuple[str, ...]
    container: Packages | None = None
    source: str


class TitanModel(_Data):
    """A configuration that torchtitan ships, and what tells its model from others."""

    module: str
    config: str
    layers: int
    hidden: int
    vocabulary: int
    head_dim: int


class _Betas(_Data):
    beta1: Amount
    beta2: Amount
    epsilon: Amount
    weight_decay: Amount
    clip_norm: Amount
    least_rate_share: Amount
    source: str


class _Rate(_Data):
    at_one: Amount
    per_log: Amount
    least: Amount
    source: str


class _Share(_Data):
    value: Amount
    source: str


class _Hyper(_Data):
    betas: _Betas
    rate: _Rate
    finetune_share: _Share
    warmup_share: _Share


class _Facts(_Data):
    schema_version: Literal[1]
    engines: dict[str, TrainingEngine]
    bases: dict[str, dict[str, Base]]
    torchtitan_models: tuple[TitanModel, ...]
    hyperparameters: _Hyper


@cache
def facts() -> _Facts:
    """The file ``programs.yaml``."""
    return _Facts.model_validate(
        read_shipped(Path(__file__).with_name("training") / "programs.yaml")
    )


def training_engine(name: str) -> TrainingEngine:
    """A framework's program.

    Raises:
        InputError: for an unknown name.
    """
    known = facts().engines
    if name not in known:
        message, hint = unknown("training engine", name, list(known))
        raise InputError(message, field="candidate.engine", hint=hint)
    return known[name]


@dataclass(frozen=True, slots=True)
class Hyper:
    """Hyperparameters: they change what is learnt, not how fast."""

    learning_rate: float
    warmup_steps: int
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    least_rate_share: float
    seed: int = 0


def usual(parameters: int, steps: int, *, finetune: bool) -> Hyper:
    """Customary values: the learning rate falls with the logarithm of the parameters.

    ``finetune`` means of all weights, at a tenth of the rate. Adapters learn at pre-training's
    (Schulman et al., LoRA without regret, 2025). One step in a hundred warms up.
    """
    h = facts().hyperparameters
    rate = max(h.rate.at_one - h.rate.per_log * math.log(max(parameters, 1)), h.rate.least)
    rate *= h.finetune_share.value if finetune else 1.0
    b = h.betas
    warmup = math.ceil(steps * h.warmup_share.value)
    return Hyper(
        float(f"{rate:.3g}"),
        warmup,
        b.beta1,
        b.beta2,
        b.epsilon,
        b.weight_decay,
        b.clip_norm,
        b.least_rate_share,
    )
