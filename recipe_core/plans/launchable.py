"""What the launch of a training framework can be told of a request, whatever its split.

From ``launches`` in ``engines/training/programs.yaml``. Where some frameworks can launch what is
asked, the first of them is the default and the splits of all others are refused. Where none can
(Muon …), splits are estimated all the same, and the plan says that there is no bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.units import gib
from recipe_core.engines.frameworks import framework, training_data
from recipe_core.engines.training_programs import facts, training_engine
from recipe_core.estimates.columns.training import OFFLOADS, TrainingCases, TrainingSetting
from recipe_core.estimates.columns.training_choices import untold
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.training.frozen_base import frozen_base_bytes
from recipe_core.models.spec import Attention, LatentAttention, LinearAttention, ModelSpec, MoeMlp
from recipe_core.plans.megatron_model import megatron_model
from recipe_core.plans.titan_models import reads_checkpoint, shipped_configuration, unlike_shipped

FRAMEWORK = "framework"
"""The code of the rule that refuses all splits of a framework."""

METHODS = {
    "pretrain": "pre-training",
    "finetune": "fine-tuning",
    "lora": "LoRA",
    "qlora": "QLoRA",
    "dpo": "DPO",
    "grpo": "GRPO",
    "ppo": "PPO",
}
_DATA = {"text": "texts", "chat": "chats", "preference": "preferences"}
_OFFLOADS = {
    "optimizer": "optimizer states in host memory",
    "optimizer-nvme": "optimizer states on the host's disks",
    "parameters": "parameters in host memory",
}


@dataclass(frozen=True, slots=True)
class Unable:
    """Something of a request that a framework cannot be told.

    ``what`` ends the sentence "torchtitan cannot launch …"; ``field`` of the request it stands in;
    ``hint``: what can be launched instead, with ``value`` in the field; empty where only another
    framework helps.
    """

    what: str
    field: str
    hint: str = ""
    value: str | None = None


# Models


def experts_of(model: ModelSpec) -> MoeMlp | None:
    """The experts of a model, where it has some."""
    blocks = (layer.mlp for layer, _ in model.kinds)
    return next((block for block in blocks if isinstance(block, MoeMlp)), None)


def plain_attention(model: ModelSpec) -> Attention | None:
    """The one kind of plain attention that all layers of a model share, if they do."""
    kinds = {layer.attention for layer, _ in model.kinds}
    only = next(iter(kinds)) if len(kinds) == 1 else None
    return None if isinstance(only, (LatentAttention, LinearAttention)) else only


# One framework


def unable(
    setting: TrainingSetting, offload: str = "none", in_pieces: bool = False
) -> Iterator[Unable]:
    """What of a request the setting's framework cannot be told.

    ``offload``: where states live; ``in_pieces``: whether the loss is to be computed in
    pieces.
    """
    launches = training_engine(setting.engine).launches
    if setting.method not in launches.methods:
        yield Unable(METHODS[setting.method], "workload.method")
    yield from _data_unable(setting)
    if setting.document_tokens is not None and setting.data_format != "chat":
        hint = "Leave the length of documents out."
        yield Unable("documents of a stated length", "workload.document_tokens", hint)
    yield from _phases_unable(setting)
    yield from _model_unable(setting)
    if setting.precision not in launches.precisions:
        yield Unable(f"{setting.precision} matrix products", "candidate.precision", "Use bf16.")
    if setting.optimizer_name not in launches.optimizers:
        yield Unable(setting.optimizer.title, "workload.optimizer", "Use AdamW.", "adamw")
    yield from _attention_unable(setting)
    for name in untold(setting):
        yield Unable(f"{name} as stated", f"candidate.{name}", "Leave it out.")
    yield from _offload_unable(setting, offload)
    plain = setting.method == "dpo" and setting.framework.pieces.as_hidden  # Liger's is of tokens
    if in_pieces and (plain or not launches.loss_in_pieces):
        yield Unable("a loss in pieces", "workload.fused_loss", "Compute full logits.")
    if setting.fused_loss is False and not launches.full_loss:
        hint = "Leave fused_loss out."
        yield Unable("a loss over full logits", "workload.fused_loss", hint)
    yield from _gradients_unable(setting)
    if (setting.state_dtype or "fp32") not in launches.states:
        hint = "Leave their format to the framework."
        yield Unable("states in 16 bits", "workload.state_dtype", hint, "fp32")
    yield from _formats_unable(setting)
    if setting.mtp_layers and not launches.mtp_layers:
        hint = "Leave mtp_layers out."
        yield Unable("layers of multi-token prediction", "workload.mtp_layers", hint)
    yield from _rollout_unable(setting)
    runtime = setting.cluster.device.runtime
    if runtime not in launches.runtimes:
        hint = f"Use a device that runs {' or '.join(launches.runtimes)}."
        yield Unable(f"a run on {setting.cluster.device.title}", "hardware.device", hint)


def _attention_unable(setting: TrainingSetting) -> Iterator[Unable]:
    """A kernel that a framework cannot be told, or only where it would take it by itself."""
    launches, kernel = training_engine(setting.engine).launches, setting.attention
    device = setting.cluster.device
    usual, _ = setting.framework.kernels_on(device.architecture)
    other = launches.attention[0]
    known = training_data().attention_kernels.items()
    title = next((data.title for name, data in known if name == kernel), f"{kernel} attention")
    if kernel not in launches.attention:
        yield Unable(title, "workload.attention", f"Use {other} attention.", other)
    elif kernel in launches.attention_where_usual and kernel != usual:
        what = f"{title} on {device.title}, where torch takes another kernel"
        yield Unable(what, "workload.attention", f"Use {other} attention.", other)


def _offload_unable(setting: TrainingSetting, offload: str) -> Iterator[Unable]:
    """States on the host that a framework keeps on the device, or cannot bring there at the start.

    A 4-bit base whose loader fills a device before the base is divided must fit there.
    """
    launches, field = training_engine(setting.engine).launches, "candidate.offload"
    if offload == "none":
        return
    if offload not in launches.offload:
        yield Unable(_OFFLOADS[offload], field, "Keep states on the device.")
        return
    if offload != "parameters":
        return
    if setting.method in launches.parameters_stay:
        what = f"{METHODS[setting.method]} with {_OFFLOADS[offload]}"
        yield Unable(what, field, "Keep states on the device.")
    base = frozen_base_bytes(setting)
    if setting.method == "qlora" and not launches.quantizes_on_host:
        usable = setting.cluster.device.usable_memory_bytes
        if base > usable:
            what = f"a 4-bit base of {gib(base)} on a device of {gib(usable)}, where it is loaded"
            yield Unable(what, field)


def _data_unable(setting: TrainingSetting) -> Iterator[Unable]:
    """DPO learns from preferences, all else from what the framework's launch reads."""
    stated = setting.data_format
    known: tuple[str, ...] = training_engine(setting.engine).launches.data
    if setting.method == "dpo":
        known = ("preference",)
    if stated is not None and stated not in known:
        what = f"{METHODS[setting.method]} on {_DATA[stated]}"
        yield Unable(what, "workload.data_format", f"Use {_DATA[known[0]]}.", known[0])


def _model_unable(setting: TrainingSetting) -> Iterator[Unable]:
    launches, model = training_engine(setting.engine).launches, setting.model
    if launches.models == "shipped" and shipped_configuration(model) is None:
        yield Unable(f"{model.name}, {unlike_shipped(model)}", "model")
    if launches.models == "words" and (untold := megatron_model(model).untold):
        yield Unable(f"{model.name} with {' and '.join(untold)}", "model")
    if setting.frozen and setting.stored_base is not None:
        what = f"adapters on {model.name} in the four bits that it is stored in"
        yield Unable(what, "model", "Use the model in 16 bits, with method qlora.")
    trained = setting.method != "pretrain"
    if launches.models == "shipped" and trained and not reads_checkpoint(model):
        stored = model.weight_dtype
        yield Unable(f"training from {model.name}, which is stored in {stored}", "model")
    if trained and experts_of(model) is not None and not launches.expert_checkpoints:
        yield Unable("training from a checkpoint with experts", "workload.method")


def _phases_unable(setting: TrainingSetting) -> Iterator[Unable]:
    """Phases that are no ramp of the batch, and a ramp where the framework has none."""
    if not setting.phases:
        return
    if setting.ramp is None:
        hint = "Leave phases out, and launch each as a run of its own."
        yield Unable("a run in phases that are no even ramp of the batch", "workload.phases", hint)
    elif setting.ramp.increment and not training_engine(setting.engine).launches.batch_ramp:
        yield Unable("a ramp of the batch", "workload.phases", "Leave phases out.")


def _rollout_unable(setting: TrainingSetting) -> Iterator[Unable]:
    """What of sampling and scoring a framework cannot be told."""
    sampling, engines = setting.sampling, training_engine(setting.engine).launches.rollout_engines
    if sampling is None or not engines:  # what has no engine is refused by its method
        return
    work = sampling.work
    able_engines = training_engine(setting.engine).launches.adapter_engines
    if sampling.adapters and not able_engines:
        yield Unable(f"{METHODS[setting.method]} with adapters", "workload.adapters")
    elif sampling.adapters and work.engine not in able_engines:
        field, hint = "workload.rollout.engine", f"Use {able_engines[0]}."
        yield Unable(f"adapters for {work.engine}", field, hint, able_engines[0])
    if work.engine not in engines:
        hint = f"Use {engines[0]}."
        yield Unable(f"a rollout by {work.engine}", "workload.rollout.engine", hint, engines[0])
    if work.reward == "model":
        hint = "Use a rule."
        yield Unable("a model that rewards", "workload.rollout.reward", hint, "rule")
    if not work.old_log_probs and setting.engine != "verl":
        yield Unable(
            "training on the engine's own log-probabilities",
            "workload.rollout.old_log_probs",
            "Compute them again.",
        )


def _gradients_unable(setting: TrainingSetting) -> Iterator[Unable]:
    launches, dtype = training_engine(setting.engine).launches, setting.gradient_dtype
    if dtype is None:
        return
    own = "bf16" if setting.framework.states.reduced < 4 else "fp32"
    mixed = setting.precision == "fp16" and dtype == "bf16"  # it keeps them in fp16 or fp32
    if dtype not in (launches.gradients or (own,)) or (launches.gradients and mixed):
        hint = "Leave their format to the framework."
        yield Unable(f"{dtype} gradients", "workload.gradient_dtype", hint)


def _formats_unable(setting: TrainingSetting) -> Iterator[Unable]:
    """Formats of moments and of activations that wait, which few frameworks can be told."""
    launches = training_engine(setting.engine).launches
    hint = "Leave their format to the framework."
    if setting.moment_dtype and setting.moment_dtype not in launches.moments:
        yield Unable(f"moments in {setting.moment_dtype}", "workload.moment_dtype", hint)
    if (setting.activation_dtype or "bf16") not in launches.activations:
        what = f"activations kept in {setting.activation_dtype}"
        yield Unable(what, "workload.activation_dtype", hint)


# All frameworks


def able(
    setting: TrainingSetting, offload: str = "none", in_pieces: bool = False
) -> tuple[str, ...]:
    """The frameworks that can launch what is asked, the preferred ones first."""
    return tuple(
        name
        for name in facts().preferred
        if not any(unable(on_framework(setting, name), offload, in_pieces))
    )


def on_framework(setting: TrainingSetting, name: str) -> TrainingSetting:
    """The setting on another framework."""
    if name == setting.engine:
        return setting
    built = framework(name).built(compiled=bool(setting.compiles))
    return replace(setting, engine=name, framework=built)


def default_framework(
    setting: TrainingSetting, offload: str = "none", in_pieces: bool = False
) -> str:
    """The framework of a request that names none: the first that can launch what is asked.

    Where none can, the one that can launch most of it.
    """
    names = able(setting, offload, in_pieces)
    if names:
        return names[0]
    return min(
        facts().preferred,
        key=lambda name: len(list(unable(on_framework(setting, name), offload, in_pieces))),
    )


def ways_out(setting: TrainingSetting, offload: str, in_pieces: bool) -> list[dict[str, object]]:
    """Changes to a request that no framework can launch after which one can, the fewest first."""
    out: list[dict[str, object]] = []
    for name in facts().preferred:
        lacks = list(unable(on_framework(setting, name), offload, in_pieces))
        changes: dict[str, object] = {lack.field: lack.value for lack in lacks}
        if lacks and all(lack.hint for lack in lacks) and changes not in out:
            out.append(changes)
    return sorted(out, key=len)


def launched(part: str) -> frozenset[str]:
    """What any framework can launch of a part: ``methods``, ``optimizers``, and so on."""
    programs = facts().engines.values()
    return frozenset(name for program in programs for name in getattr(program.launches, part))


def titles(names: tuple[str, ...]) -> str:
    """Frameworks as a person calls them: ``torchtitan, Accelerate or DeepSpeed``."""
    *others, last = (framework(name).title for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def refusals(setting: TrainingSetting, cases: TrainingCases) -> list[Refusal]:
    """Refuses all cases where their framework cannot launch what is asked and another can."""
    offload, in_pieces = _asked(cases)
    lacks = list(unable(setting, offload, in_pieces))
    if not lacks or not (others := able(setting, offload, in_pieces)):
        return []
    reason = f"{setting.framework.title} cannot launch {_listed(lacks)}: use {titles(others)}"
    return [Refusal(FRAMEWORK, np.ones(len(cases), dtype=np.bool_), lambda _: reason)]


def is_estimate_only(setting: TrainingSetting, cases: TrainingCases) -> bool:
    """Whether no framework can launch what is asked."""
    offload, in_pieces = _asked(cases)
    return not able(setting, offload, in_pieces)


def _asked(cases: TrainingCases) -> tuple[str, bool]:
    """Where optimizer states live and whether the loss is in pieces, which all cases share."""
    if not len(cases):
        return "none", False
    return OFFLOADS[int(cases.offload[0])], bool(cases.fused_loss[0])


def _listed(lacks: list[Unable]) -> str:
    return " and ".join(lack.what for lack in lacks)
