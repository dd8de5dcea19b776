"""What an engine is, as data: its version, what it can split, how it divides memory, batches and loses time.

One YAML file an engine beside this module; ``engines/<name>.py`` says how its options become a command.
Differences between engines live here, not in the physics.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.documents import read_document
from recipe_core.errors import InputError, unknown
from recipe_core.hardware.profile import Figure, Runtime, Sourced

Whole = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitSupport(_Data):
    """Which degrees the engine has.

    ``experts``: "all-ranks" spreads experts over all of tp × dp or not at all; "divisors" over any divisor of it, cutting each expert
    over the rest. ``enforces_context``: whether requests longer than the model's own context are refused.
    """

    tensor: bool
    pipeline: bool
    experts: Literal["all-ranks", "divisors", "none"]
    data_parallel: Literal["engine", "processes"]
    enforces_context: bool = True


class MemoryUse(_Data):
    """How the engine divides a device, and when it refuses to start.

    ``fraction`` of what a process can allocate (M), with weights W, workspace A and runtime N, leaves for the cache:

    * ``of-device``: M · fraction - W - A - N (vLLM's gpu_memory_utilization)
    * ``static``: M · fraction - W, while A and N live in the rest (SGLang's mem_fraction_static)
    * ``of-free``: (M - W - A - N) · fraction (TensorRT-LLM's free_gpu_memory_fraction)

    ``needs_longest``: it refuses to start unless one request of the longest context fits into the cache.
    """

    fraction: Figure
    pool: Literal["of-device", "static", "of-free"]
    needs_longest: bool
    context_single_bytes: Figure
    context_parallel_bytes: Figure
    sampler_bytes_per_logit: Figure
    block_tokens: Whole


class BatchLimits(_Data):
    """The engine's default batch limits on devices with at least ``memory_at_least_bytes``, but on none of ``not_on``."""

    memory_at_least_bytes: NonNegative
    not_on: tuple[str, ...] = ()
    max_batched_tokens: Whole
    max_num_seqs: Whole


class Overheads(_Data):
    """Time the engine itself takes: per step, per running sequence and layer of a step, per request and input token."""

    step_s: NonNegative
    sequence_s: NonNegative
    layer_s: NonNegative
    request_s: NonNegative
    input_token_s: NonNegative
    source: str
    status: Literal["measured", "fitted", "published", "assumed"]
    note: str | None = None


class Option(_Data):
    """One command-line option of the engine's pinned version."""

    flag: str
    short: tuple[str, ...] = ()
    type: Literal["int", "float", "str", "switch"]
    choices: tuple[str, ...] = ()


class Engine(Sourced):
    """An engine at one version. Of the engines that run on a device the one with the lowest ``preference`` is the default."""

    name: str
    title: str
    version: str
    buildable: bool
    preference: Whole
    runtimes: tuple[Runtime, ...]
    program: str
    module: str
    install: str
    split: SplitSupport
    memory: MemoryUse
    batching: tuple[BatchLimits, ...]
    chunked_prefill: bool
    overheads: dict[Runtime, Overheads]
    online_weight_dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...]
    options: dict[str, Option]

    def batch_limits(self, memory_bytes: float, architecture: str) -> BatchLimits:
        """The default limits on a device of this size and architecture."""
        fitting = [b for b in self.batching if memory_bytes >= b.memory_at_least_bytes and architecture not in b.not_on]
        return max(fitting, key=lambda b: b.memory_at_least_bytes)

    def overhead(self, runtime: Runtime) -> Overheads:
        """The engine's own time on a runtime; one that it does not run on (and that is refused) borrows another's figures."""
        return self.overheads.get(runtime) or next(iter(self.overheads.values()))

    def argv(self, values: dict[str, Any]) -> list[str]:
        """Options as separate argv words, in the order given.

        Raises:
            InputError: for an option this version does not have, or a value of the wrong type.
        """
        return [word for name, value in values.items() for word in self._words(name, value)]

    def _words(self, name: str, value: Any) -> list[str]:
        option = self.options.get(name)
        if option is None:
            message, hint = unknown(f"{self.title} {self.version} option", name, list(self.options))
            raise InputError(message, field="options", hint=hint)
        wanted = {"int": int, "float": (int, float), "str": str, "switch": bool}[option.type]
        if not isinstance(value, wanted) or (option.type != "switch" and isinstance(value, bool)):  # type: ignore[arg-type]
            raise InputError(f"{option.flag} takes {option.type}, not {value!r}.", field=f"options.{name}")
        if option.choices and value not in option.choices:
            raise InputError(f"{option.flag} takes {', '.join(option.choices)}, not {value!r}.", field=f"options.{name}")
        if option.type == "switch":
            return [option.flag] if value else []
        return [option.flag, str(value)]


def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}


def engine_names() -> list[str]:
    """The engines there are, sorted."""
    return list(_files())


@cache
def engine(name: str) -> Engine:
    """An engine by name; raises InputError naming close ones when there is none."""
    path = _files().get(name.casefold())
    if path is None:
        message, hint = unknown("engine", name, engine_names())
        raise InputError(message, field="candidate.engine", hint=hint)
    try:
        return Engine.model_validate(read_document(path))
    except ValidationError as error:
        raise InputError(f"{path.name} is malformed: {error}.", field="engines") from None


def default_engine(runtime: Runtime) -> Engine:
    """The engine taken when a request names none: the preferred one that can be built for the runtime; where none can, any refuses."""
    buildable = [e for e in map(engine, engine_names()) if e.buildable]
    return min([e for e in buildable if runtime in e.runtimes] or buildable, key=lambda e: e.preference)
