"""Training programs as data: ``training/programs.yaml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import look_up
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.release import ContainerImage, Install

FOLDER = Path(__file__).with_name("training")
PROGRAMS = DataFile(FOLDER / "programs.yaml", "engines")
LAUNCH_RULES = DataFile(FOLDER / "launch_rules.yaml", "engines")
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Scalar = bool | int | float | str | None
# A number, or the name of a fact.
Bound = int | float | str


class Packages(DataRow):
    """Packages that the image of a framework adds to a base, at exact versions."""

    base: str
    packages: tuple[Annotated[str, Field(pattern=r"^[a-z0-9-]+==[\w.]+$")], ...]


class Base(DataRow):
    """An image that holds ``torch`` at a version."""

    image: ContainerImage
    torch: str


class Condition(DataRow):
    """A test of one fact of a request or of its splits; all that is stated must hold.

    ``one_of``, ``none_of``: values (words of a coded column). ``present``: whether there is one.
    ``above``, ``below``: a number or another fact; ``uneven``: not divisible by it; ``equals``:
    another fact. ``inside``, ``outside``: a fact that is a list; ``has``, ``lacks``: an entry of
    the fact, which is a list.
    """

    one_of: tuple[Scalar, ...] | None = None
    none_of: tuple[Scalar, ...] | None = None
    present: bool | None = None
    above: Bound | None = None
    below: Bound | None = None
    uneven: Bound | None = None
    equals: str | None = None
    inside: str | None = None
    outside: str | None = None
    has: str | None = None
    lacks: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """A value alone is the one allowed, a list all that are."""
        if isinstance(value, dict):
            return value
        return {"one_of": value if isinstance(value, list) else [value]}


# Facts and their tests: all of a mapping must hold, of several mappings any.
Conditions = Annotated[
    tuple[dict[str, Condition], ...],
    BeforeValidator(lambda value: [value] if isinstance(value, dict) else value),
]


class _Rule(DataRow):
    when: Conditions = ({},)
    unless: Conditions = ()
    field: str
    use: str = ""


class RequestRule(_Rule):
    """Something that a framework cannot be told, whatever the split.

    ``lack`` ends the sentence "torchtitan cannot launch …"; ``field`` of the request it stands in;
    ``use``: what can be launched instead, with ``value`` in the field; empty where only another
    framework helps. Texts name facts in braces.
    """

    lack: str
    value: str | None = None


class SplitRule(_Rule):
    """Splits that a framework cannot be told: the refusal's ``code``, its sentence, what to use."""

    code: str
    says: str


class LaunchRules(DataRow):
    """The file ``launch_rules.yaml``.

    ``requests``: what any framework may lack. ``degrees``: rules on degrees alone, ``nodes`` after
    a framework's own of these; ``splits``: on all else. ``shared``: rules that several frameworks
    name.
    """

    schema_version: Literal[1]
    requests: tuple[RequestRule, ...]
    degrees: tuple[SplitRule, ...]
    nodes: tuple[SplitRule, ...]
    splits: tuple[SplitRule, ...]
    shared: dict[str, tuple[SplitRule | str, ...]]

    def expand(self, rules: tuple[SplitRule | str, ...]) -> list[SplitRule]:
        """Rules in order, those of ``shared`` in place of their names.

        Raises:
            InputError: for a name that is not there.
        """
        out: list[SplitRule] = []
        for rule in rules:
            if isinstance(rule, SplitRule):
                out.append(rule)
            else:
                shared = look_up("shared launch rule", rule, self.shared, "launches.rules")
                out += self.expand(shared)
        return out


@cache
def launch_rules() -> LaunchRules:
    """The file ``launch_rules.yaml``."""
    return LAUNCH_RULES.read_as(LaunchRules)


class Launches(DataRow):
    """The launch of a framework: what it can be told; anything else is estimated only.

    ``data``: formats of the data that it learns from, the usual one first; DPO's is always
    ``preference``. ``models``: ``any``, built by their own class from their config; ``shipped``,
    those that it ships (`titan_models`); ``words``, those of which every property has an argument
    (``engines/training/megatron.yaml``). ``gradients``: number formats in which it can keep them
    beside its own; ``states``: formats of master weights; ``moments``: formats of AdamW's moments
    beside those of its states; ``activations``: formats of what waits for the backward pass.
    ``mtp_layers``: whether it can train layers of multi-token prediction. ``degrees``: those that
    may be above 1 beside dp. ``attention_where_usual``: kernels of ``attention`` that it takes by
    itself where they are its usual ones, and cannot be told elsewhere. ``recompute_modules``: what
    of a layer it can be told to recompute alone. ``batch_ramp``: whether its global batch can grow
    evenly. ``expert_checkpoints``: whether it reads the weights of a model with experts.
    ``runtimes``: of devices; others (Gaudi, TPUs, Trainium) are estimated only.
    ``rollout_engines``: those that sample answers for it. ``data``: formats of the data that it
    learns from, the usual one first; DPO's is always ``preference``. ``own_data``: whether it
    trains for its steps on data of any length. ``full_loss``: whether full logits can be asked for.
    ``parameters_stay``: methods that keep parameters on the devices, also
    where ``offload`` has ``parameters``; ``quantizes_on_host``: whether a 4-bit base is made in
    host memory and divided there, not whole on every device. ``adapter_engines``: those that sample
    answers while adapters are trained. ``optimizer_stages``: the ZeRO
    stages of optimizers that do not go with all; ``on_device``: optimizers whose states are not
    moved to the host. ``engine_log_probs``: whether it can train on the log-probabilities of the
    engine that samples. ``rules``: splits that it cannot be told beside these lists, as rules or
    names of shared ones; ``degree_rules``: those that degrees alone break.
    """

    methods: tuple[str, ...]
    data: tuple[Literal["text", "chat"], ...] = ("text",)
    own_data: bool = True
    models: Literal["any", "shipped", "words"] = "any"
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    optimizer_stages: Mapping[str, tuple[int, ...]] = {}
    on_device: tuple[str, ...] = ()
    attention: tuple[str, ...]
    attention_where_usual: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    degrees: tuple[str, ...] = ()
    zero_stages: tuple[int, ...]
    recompute: tuple[str, ...]
    schedules: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    parameters_stay: tuple[str, ...] = ()
    quantizes_on_host: bool = False
    recompute_modules: tuple[str, ...] = ()
    overlap_experts: bool = False
    cuda_graphs: tuple[str, ...] = ()
    fp8_recipes: tuple[str, ...] = ()
    activation_offload: bool = False
    states: tuple[str, ...] = ("fp32",)
    moments: tuple[str, ...] = ()
    activations: tuple[str, ...] = ("bf16",)
    mtp_layers: bool = False
    loss_in_pieces: bool = False
    batch_ramp: bool = False
    full_loss: bool = True
    expert_checkpoints: bool = False
    runtimes: tuple[str, ...] = ("cuda", "rocm", "cpu")
    rollout_engines: tuple[str, ...] = ()
    adapter_engines: tuple[str, ...] = ()
    engine_log_probs: bool = False
    degree_rules: tuple[SplitRule | str, ...] = ()
    rules: tuple[SplitRule | str, ...] = ()


class HostCopies(DataRow):
    """Copies of the whole model in a node's memory while it is loaded, or gathered to be saved.

    ``divided``: where parameters are divided among devices, ``whole``: where each device has all of
    them; one a ``node``, one a ``device``, or ``none``. ``divided_bytes``, ``whole_bytes``: of a
    parameter in them.
    """

    divided: Literal["none", "node", "device"] = "none"
    whole: Literal["none", "node", "device"] = "none"
    divided_bytes: Amount = 2.0
    whole_bytes: Amount = 2.0

    def node_bytes(self, devices: Float, parameters: float, *, divided: bool) -> Float:
        """Bytes of nodes with so many devices for a model of so many parameters."""
        kind = self.divided if divided else self.whole
        size = self.divided_bytes if divided else self.whole_bytes
        copies = {"none": np.zeros_like(devices), "node": np.ones_like(devices), "device": devices}
        return copies[kind] * size * parameters


class TrainingEngine(DataRow):
    """A framework at its pinned release.

    ``module`` is asked for its version; ``requires`` are the modules it must be able to import.

    ``launches``: what its launch can be told. ``container``: how its image is built, None where it
    is not a package. ``launcher``: the module
    of ``launch/training/`` that starts it, where that is not of its name. ``torch``: the releases
    of torch that it runs on. ``saves_on``: what makes it write a checkpoint and end: the file
    ``stop`` in the run's folder, or SIGTERM; nothing where it is empty. ``ends_with_0``: whether
    all nodes end so when one of them is told to stop. ``host_copies``: what a node's memory holds
    of the model.
    """

    version: str
    module: str
    install: str
    requires: tuple[str, ...]
    container: Packages | None = None
    launcher: str | None = None
    torch: str = "torch>=2.11,<2.14"
    source: str
    saves_on: tuple[Literal["stop-file", "signal"], ...] = ()
    ends_with_0: bool = False
    host_copies: HostCopies = HostCopies()
    launches: Launches


class _Betas(DataRow):
    beta1: Amount
    beta2: Amount
    epsilon: Amount
    weight_decay: Amount
    clip_norm: Amount
    least_rate_share: Amount
    source: str


class _Rate(DataRow):
    at_one: Amount
    per_log: Amount
    least: Amount
    source: str


class _Share(DataRow):
    value: Amount
    source: str


class _Dpo(DataRow):
    beta: Amount
    rate: Amount
    source: str


class _Reinforcement(DataRow):
    rate: Amount
    adapter_rate: Amount
    critic_rate: Amount
    kl: Amount
    source: str


class _Hyper(DataRow):
    betas: _Betas
    rate: _Rate
    finetune_share: _Share
    dpo: _Dpo
    warmup_share: _Share
    reinforcement: _Reinforcement


class SmallCards(DataRow):
    """Frameworks that are preferred on cards of little memory, for some methods."""

    methods: tuple[str, ...]
    runtimes: tuple[str, ...]
    memory_at_most_bytes: Amount
    preferred: tuple[str, ...]


class _Facts(DataRow):
    schema_version: Literal[1]
    preferred: tuple[str, ...]
    small_cards: SmallCards
    engines: dict[str, TrainingEngine]
    torch_builds: dict[str, Install]
    bases: dict[str, dict[str, Base]]
    hyperparameters: _Hyper


@cache
def program_facts() -> _Facts:
    """The file ``programs.yaml``."""
    return PROGRAMS.read_as(_Facts)


def training_engine(name: str) -> TrainingEngine:
    """A framework's program.

    Raises:
        InputError: for an unknown name, or a framework without an entry in ``programs.yaml``.
    """
    engines = program_facts().engines
    if name in training_data().frameworks and name not in engines:
        hint = "Add its version, module, install, requires and source."
        raise PROGRAMS.problem(f"engines.{name}", "is missing", hint)
    return look_up("training engine", name, engines, "candidate.engine")


def install_on(name: str, runtime: str) -> str:
    """The shell command that installs a framework with the runtime's build of torch."""
    build = program_facts().torch_builds.get(runtime)
    program = training_engine(name).install
    torch = training_engine(name).torch
    return f"{build.command.format(torch=torch)} && {program}" if build else program


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
    dpo_beta: float
    seed: int = 0


def usual_hyperparameters(parameters: int, steps: int, method: str) -> Hyper:
    """Customary values: the learning rate falls with the logarithm of the parameters.

    Fine-tuning all weights takes a tenth of the rate, adapters pre-training's (Schulman et al.,
    LoRA without regret, 2025), DPO the rate of its authors. One step in a hundred warms up.
    """
    h = program_facts().hyperparameters
    rate = max(h.rate.at_one - h.rate.per_log * math.log(max(parameters, 1)), h.rate.least)
    rate *= h.finetune_share.value if method == "finetune" else 1.0
    rate = h.dpo.rate if method == "dpo" else rate
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
        h.dpo.beta,
    )
