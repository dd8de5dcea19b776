"""The input of an engine module (``Deployment``), and its answer (``Launch``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from recipe_core.accuracy.choice import Chosen
from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.engines.options import USUAL
from recipe_core.engines.spec import Engine
from recipe_core.estimates.columns.serving import Setting

# Names of modules that are looked for: no dots, so that nothing outside the folder is imported.
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_NOT_AN_ENGINE = ("start",)  # finds the modules
DTYPE_WORDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Of a request whose answer is as long as it asks, for a benchmark.
EXACT_LENGTH: Mapping[str, Any] = {"ignore_eos": True, "temperature": 0}
# ``server``: answers requests; ``worker``: belongs to a server on another node; ``prefill`` and
# ``decode``: pools behind a ``router``; ``trainer``: trains.
Role = Literal["server", "worker", "prefill", "decode", "router", "trainer"]
FIELD = "parameters.api_key_secret"
SCRIPT = "engine/keyed.py"
GUARD = "keyed.Guard"
_SOURCE = Path(__file__).parent / "serving" / "keyed.py"
_IN_FRONT = (
    "Leave it out, and put a gateway or proxy that checks callers before the servers; until then "
    "keep them on a loopback address or inside the cluster."
)


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """A package of launch modules, each of which defines one function, ``VERB_NAME``.

    ``form``: the arguments and the answer of the functions, for who has to write one.
    """

    package: str
    verb: str
    form: str

    def function(self, engine: str, launcher: str | None = None) -> Callable[[Any], Any]:
        """Return the function that starts an engine: of its YAML's ``launcher``, else its own.

        Raises:
            NoAnswer: naming the engine, the file to add and the function it must define.
        """
        name = launcher or engine.replace("-", "_")
        if not NAME.fullmatch(name) or name in _NOT_AN_ENGINE:
            raise NoAnswer(
                f"{engine} cannot be started: {name!r} is not a name of a launch module.",
                field="candidate.engine",
                hint="Name the engine in small letters, digits and dashes, or set its `launcher`.",
            )
        module, function_name = _import_launcher(f"{self.package}.{name}"), f"{self.verb}_{name}"
        function: Callable[[Any], Any] | None = getattr(module, function_name, None)
        if function is not None:
            return function
        file = f"{self.package.replace('.', '/')}/{name}.py"
        reason = f"{file} does not define {function_name}" if module else f"{file} is missing"
        form = f"{function_name}{self.form}"
        fix = f"Define {form} in it" if module else f"Add it; it defines {form}"
        raise NoAnswer(
            f"{engine} cannot be started: {reason}.",
            field="candidate.engine",
            hint=f"{fix}. Or set `launcher` in the engine's YAML to the module that starts it.",
        )


@cache
def _import_launcher(module: str) -> ModuleType | None:
    return import_module(module) if find_spec(module) else None


@dataclass(frozen=True, slots=True)
class Draft:
    """Speculative decoding: ``tokens`` drafted per step by ``method``.

    ``acceptance`` only shapes the estimate. ``model``: the checkpoint of an eagle draft.
    """

    tokens: int
    acceptance: float
    method: Literal["mtp", "eagle", "ngram"]
    model: str | None = None

    @property
    def checkpoint(self) -> str:
        """Say what an eagle draft is loaded from; raises InputError where none is named."""
        if self.model is None:
            message = "an eagle draft is a checkpoint of its own."
            hint = "Set `model` to its checkpoint."
            raise InputError(message, field="workload.speculative.model", hint=hint)
        return self.model

    @property
    def eagle(self) -> Literal["eagle", "eagle3"]:
        """Return which kind of eagle it is; checkpoints say it by name."""
        name = self.checkpoint.casefold().replace("-", "").replace("_", "")
        return "eagle3" if "eagle3" in name else "eagle"


@dataclass(frozen=True, slots=True)
class Split:
    """The cut of one pool, and the number of its copies (``replicas``)."""

    tp: int
    pp: int
    dp: int
    ep: int
    replicas: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chosen split with the engine's limits; nothing is left to choose.

    ``replicas``: copies of it, beside the dp within each. ``prefill``: the pool that computes
    prompts, if any; the other degrees are then those of the pool that decodes. ``prefill`` and
    ``speculative`` take mappings too, as a plan describes them. ``options``: fields that an engine
    is told where they are not as usual.
    """

    engine: str
    tp: int
    pp: int
    dp: int
    ep: int
    weight_dtype: str
    kv_dtype: str
    max_batched_tokens: int
    max_num_seqs: int
    memory_fraction: float
    block_size: int
    cp: int = 1
    batch_window_ms: float = 0.0
    instances: int = 1
    replicas: int = 1
    prefill: Split | None = None
    speculative: Draft | None = None
    options: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Candidate:
        """The candidate that a plan describes."""
        present = {name: value for name, value in values.items() if value is not None}
        fields = {name: value for name, value in present.items() if name in cls.__slots__}
        return cls(**fields, options={name: present[name] for name in USUAL if name in present})

    def __post_init__(self) -> None:
        for name, kind in (("prefill", Split), ("speculative", Draft)):
            if isinstance(value := getattr(self, name), Mapping):
                object.__setattr__(self, name, kind(**value))

    @property
    def split(self) -> Split:
        """The pool that answers (or decodes)."""
        return Split(self.tp, self.pp, self.dp, self.ep, self.replicas)

    @property
    def devices(self) -> int:
        return sum(pool.devices * pool.replicas for pool in (self.split, self.prefill) if pool)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A candidate on its setting.

    ``max_context`` is the longest request the engine is told to accept; ``cache_tokens`` what a
    replica's cache must hold for the load that was estimated (for engines that are told a size
    rather than a share of the device). ``engine_options`` are the user's own, by name, and
    ``environment`` its variables. ``compression``: how the checkpoint that it serves is made; None
    where one is served as it is.
    """

    setting: Setting
    candidate: Candidate
    max_context: int
    cache_tokens: int
    served_name: str
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    compression: Chosen | None = None

    @property
    def activation_dtype(self) -> str:
        """The 16- or 32-bit format that activations have."""
        return self.setting.activation_dtype

    @property
    def activation_word(self) -> str:
        return DTYPE_WORDS[self.activation_dtype]


@dataclass(frozen=True, slots=True)
class Process:
    """One process: argv words, environment, device indices within its ``node``.

    Words and environment may hold, filled at launch: ``${model}``; ``${host}`` (to listen on) and
    ``${port}`` (of this process); ``${head}`` (the address of the first node of its group),
    ``${node0}``, ``${node1}`` … (addresses of nodes) and ``${port0}``, ``${port1}`` … (the bundle's
    port plus so much: those of other processes, by their offset); ``${root}`` (the bundle) and
    ``${run}`` (its run folder). ``group``: processes of one group are one engine spread over nodes
    (all but the first are workers); groups are replicas or pools.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    port_offset: int
    devices: tuple[int, ...]
    node: int = 0
    role: Role = "server"
    group: int = 0

    @property
    def answers(self) -> bool:
        """Return whether it answers requests of its own (and has a health path)."""
        return self.role not in ("worker", "trainer")


@dataclass(frozen=True, slots=True)
class Launch:
    """All processes of a deployment and how to query them.

    ``options`` are the engine's own, by name, as the recipe records them. ``files``: what the
    engine reads from the bundle, by path below ``${root}`` (a file of options, a model repository).
    A training run has no ``health`` path and no API. ``startup_timeout_s``: what a start may take
    beside the time in which the weights arrive and are read, which module ``startup`` adds.
    ``host_bytes``: memory that a node needs beside that of its processes.
    """

    processes: tuple[Process, ...]
    options: dict[str, Any]
    health: str = "/health"
    startup_timeout_s: int = 1800
    api_path: str = "/v1/completions"
    api_model: str = ""
    api_body: Mapping[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    kind: Literal["serving", "training"] = "serving"
    host_bytes: int = 0

    @property
    def loads_model(self) -> bool:
        """Return whether anything that is started reads the model's files."""
        words = [word for p in self.processes for word in (*p.argv, *p.env.values())]
        texts = (*words, *self.files.values())
        return self.kind == "serving" or any("${model}" in text for text in texts)

    @property
    def nodes(self) -> int:
        return 1 + max(process.node for process in self.processes)


def with_key(started: Launch, spec: Engine) -> Launch:
    """The launch with every process that answers asking for the key in the engine's variable.

    Where an engine is told the key as an option, or leaves paths open, a script of the bundle
    starts it; others read the variable themselves.

    Raises:
        NoAnswer: for an engine, or a router before its pools, that asks nobody for a key.
    """
    api_key = spec.api_key
    if api_key is None:
        message = f"{spec.title} {spec.version} asks no caller for a key."
        raise NoAnswer(message, field=FIELD, hint=_IN_FRONT)
    routers = [process for process in started.processes if process.role == "router"]
    if routers and api_key.router_option is None:
        message = (
            f"the router before the pools of {spec.title} ({routers[0].argv[0]}) asks no caller "
            "for a key, and passes none on."
        )
        raise NoAnswer(message, field=FIELD, hint=f"Serve without pools. Or: {_IN_FRONT}")
    if api_key.option is None and api_key.guard is None:
        return started

    def keyed(process: Process) -> Process:
        if not process.answers:
            return process
        option = api_key.router_option if process.role == "router" else api_key.option
        words = ["python3", f"${{root}}/{SCRIPT}", api_key.variable, *([option] if option else [])]
        guard = () if option or api_key.guard is None else (api_key.guard, GUARD)
        return replace(process, argv=(*words, "--", *process.argv, *guard))

    return replace(
        started,
        processes=tuple(map(keyed, started.processes)),
        files={**started.files, SCRIPT: _SOURCE.read_text(encoding="utf-8")},
    )


def engine_words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command without the script of the bundle that starts it, after two dashes."""
    script = argv[0] == "python3" and "--" in argv
    return argv[argv.index("--") + 1 :] if script else argv
