"""Which splits the launch of a training framework cannot be told, as rules over columns.

Degrees, ZeRO stages, recomputation and schedules are lists of data (``launches`` in
``engines/training/programs.yaml``); what only one framework knows has a function here, by the name
of the module that launches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.base.units import gib
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.training import (
    RECOMPUTE,
    SCHEDULES,
    TrainingCases,
    TrainingSetting,
    modules_code,
    modules_of,
)
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.models.attention import GroupedAttention
from recipe_core.models.mlp import DenseMlp
from recipe_core.plans.context_splits import ENGINES as CONTEXT_ENGINES
from recipe_core.plans.context_splits import context_rules, context_shards
from recipe_core.plans.launch_rules import (
    LaunchRule,
    accumulates,
    heads_divide,
    host_activations,
    synchronised,
)
from recipe_core.plans.launchable import experts_of, is_estimate_only, plain_attention, refusals
from recipe_core.plans.megatron_splits import megatron_rules
from recipe_core.plans.optimizer_splits import optimizer_rules
from recipe_core.plans.titan_models import shipped_configuration

CUTS = ("tp", "pp", "cp", "ep")
_MOST_RANK = 512
"""Of adapters that vLLM samples with (its ``MaxLoRARanks``, verl's ``get_vllm_max_lora_rank``)."""
_NF4_BLOCK = 64  # of weights that share a scale (trainer/nf4.py)
_FLEX_BLOCK = 128
"""Positions of a block of torch's flex attention, which context parallelism does not cut."""


Rules = Callable[[TrainingSetting, TrainingCases], Iterator[LaunchRule]]


def search_rules(setting: TrainingSetting, cases: TrainingCases) -> list[Refusal]:
    """What refuses splits of a search: a framework that cannot launch the request, or the split.

    Nothing where no framework can launch the request: then there are estimates only.
    """
    if not len(cases) or is_estimate_only(setting, cases):
        return []
    return refusals(setting, cases) or list(split_rules(setting, cases))


def whole_rules(setting: TrainingSetting, cases: TrainingCases) -> list[Refusal]:
    """Of those the rules that hold whatever a split chooses beside its degrees."""
    if not len(cases) or is_estimate_only(setting, cases):
        return []
    return refusals(setting, cases) or list(degree_rules(setting, cases))


def split_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """What the setting's framework cannot be told of its splits."""
    yield from degree_rules(setting, cases)
    yield from _listed_rules(setting, cases)
    yield from optimizer_rules(setting, cases)
    yield from _loading_rules(setting, cases)
    if own := _OWN.get(training_engine(setting.engine).launcher or setting.engine):
        yield from own(setting, cases)


def _loading_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Whole models that processes load at once, against the memory of their node."""
    host = setting.cluster.device.node.host_memory_bytes
    if host is None or setting.method in ("pretrain", "qlora"):  # 4 bits are made piece by piece
        return
    copies = training_engine(setting.engine).host_copies
    devices = np.minimum(cases.per_node, cases.devices).astype(float)
    parameters = float(setting.model.language_parameters)
    whole, shared = (
        np.array([copies.node_bytes(count, parameters, divided=divided) for count in devices])
        for divided in (False, True)
    )
    fsdp = setting.framework.sharding == "fsdp"
    is_divided = (cases.zero_stage == 3) | (fsdp & (cases.zero_stage > 0))
    needed = np.where(is_divided, shared, whole)
    yield LaunchRule(
        "launch-host",
        needed > host.value,
        lambda i: (
            f"processes of a node load {gib(needed[i])} of whole models at once, "
            f"its memory has {gib(host.value)}"
        ),
        "candidate.engine",
        "Use a framework that loads by shards, such as deepspeed or torchtitan.",
    )


def degree_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Degrees that are not launched whatever else a split chooses."""
    title, able = setting.framework.title, training_engine(setting.engine).launches.degrees
    for name in CUTS:
        if name not in able:
            degree: Int = getattr(cases, name)
            yield LaunchRule(
                "launch-degree",
                degree > 1,
                lambda i, name=name, degree=degree: (  # type: ignore[misc]
                    f"{title} is launched with {name} 1 only, not {degree[i]}"
                ),
                f"candidate.{name}",
                f"Use {name} 1, or another framework.",
            )
    if setting.engine in CONTEXT_ENGINES:
        yield from context_rules(setting, cases)
    uneven = (cases.devices > cases.per_node) & (cases.devices % cases.per_node != 0)
    yield LaunchRule(
        "launch-nodes",
        uneven,
        lambda i: f"{cases.devices[i]} devices do not fill nodes of {cases.per_node[i]}",
        "candidate",
        "Use whole nodes.",
    )


def _listed_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """ZeRO stages, recomputation and schedules that are not among those of the framework."""
    title, able = setting.framework.title, training_engine(setting.engine).launches
    fsdp = setting.framework.sharding == "fsdp"
    zero = "FSDP divides parameters and gradients with the optimizer: ZeRO-2 or 3, not 1"
    yield LaunchRule(
        "launch-sharding",
        ~np.isin(cases.zero_stage, able.zero_stages),
        lambda i: zero if fsdp else f"{title} is not launched with ZeRO-{cases.zero_stage[i]}",
        "candidate.zero_stage",
        f"Use ZeRO-{' or '.join(map(str, able.zero_stages))}.",
    )
    known = [RECOMPUTE.index(name) for name in able.recompute]
    yield LaunchRule(
        "launch-recompute",
        ~np.isin(cases.recompute, known),
        lambda i: f"{title} recomputes whole layers or none, not {RECOMPUTE[cases.recompute[i]]}",
        "candidate.recompute",
        "Use no recomputation, or full.",
    )
    partial = (cases.recompute_layers > 0) & (cases.recompute_layers < len(setting.model.layers))
    yield LaunchRule(
        "launch-recompute",
        partial,
        lambda _: "a launch recomputes all layers or none",
        "candidate.recompute_layers",
        "Leave the number of layers out.",
    )
    named = cases.recompute_modules & ~modules_code(able.recompute_modules)
    yield LaunchRule(
        "launch-recompute",
        (cases.recompute == RECOMPUTE.index("selective")) & (named > 0),
        lambda i: f"{title} is not told to recompute {', '.join(modules_of(named[i]))} alone",
        "candidate.recompute_modules",
        "Leave the modules out.",
    )
    for name, can, what in (
        ("overlap_experts", able.overlap_experts, "to overlap the exchange of tokens"),
        ("activation_offload", able.activation_offload, "to keep activations on the host"),
    ):
        yield LaunchRule(
            f"launch-{name.partition('_')[0]}",
            (getattr(cases, name) > 0) & (not can),
            lambda _, what=what: f"{title} is not told {what}",  # type: ignore[misc]
            f"candidate.{name}",
            "Leave it out, or use another framework.",
        )
    if able.schedules:
        codes = [SCHEDULES.index(name) for name in able.schedules]
        yield LaunchRule(
            "launch-schedule",
            (cases.pp > 1) & ~np.isin(cases.schedule, codes),
            lambda i: f"{title} has no {SCHEDULES[cases.schedule[i]]} schedule",
            "candidate.schedule",
            f"Use {', '.join(able.schedules)}.",
        )


# What several frameworks share


def _tied(setting: TrainingSetting, cases: TrainingCases) -> LaunchRule:
    name = setting.model.name
    return LaunchRule(
        "launch-pipeline",
        (cases.pp > 1) & setting.model.tied_embeddings,
        lambda _: f"{name} ties embedding and head, which are on different stages",
        "candidate.pp",
        "Use pp 1.",
    )


def _rounds(cases: TrainingCases) -> LaunchRule:
    """Torch's interleaved schedule runs micro-batches in rounds of equal size."""
    rounds = np.maximum(cases.micro_batches // np.maximum(cases.pp, 1), 1)
    return LaunchRule(
        "launch-pipeline",
        (cases.pp > 1) & (cases.virtual_stages > 1) & (cases.micro_batches % rounds != 0),
        lambda i: (
            f"{cases.micro_batches[i]} micro-batches are not divisible by {rounds[i]} "
            "interleaved rounds"
        ),
        "candidate.virtual_stages",
        "Use a multiple of pp micro-batches.",
    )


def _tuning(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Tools that fine-tune count pairs where DPO counts answers, and take whole alphas."""
    yield LaunchRule(
        "launch-pairs",
        (cases.micro_batch % 2 != 0) & (setting.method == "dpo"),
        lambda i: f"a micro-batch of {cases.micro_batch[i]} answers is not of whole pairs",
        "candidate.micro_batch",
        "Use an even micro-batch.",
    )
    yield _whole_alpha(setting, cases)


def _whole_alpha(setting: TrainingSetting, cases: TrainingCases) -> LaunchRule:
    title, broken = setting.framework.title, not float(setting.lora_alpha).is_integer()
    return LaunchRule(
        "launch-adapters",
        np.full(len(cases), setting.frozen and broken),
        lambda _: f"{title} takes a whole number as alpha, not {setting.lora_alpha:g}",
        "workload.lora_alpha",
        "Use a whole number.",
    )


# Each framework's own


def _torch(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    model = setting.model
    yield _tied(setting, cases)
    yield _rounds(cases)
    yield from _torch_methods(setting, cases)
    cut = cases.tp > 1
    plain = plain_attention(model) is not None and experts_of(model) is None
    yield LaunchRule(
        "launch-tensor",
        cut & (not plain),
        lambda _: f"the trainer cuts plain attention and dense layers only, not {model.name}",
        "candidate.tp",
        "Use tp 1.",
    )
    if plain:
        yield heads_divide(setting, cases)
    yield LaunchRule(
        "launch-tensor",
        cut & (model.vocabulary % np.maximum(cases.tp, 1) != 0),
        lambda i: f"a vocabulary of {model.vocabulary:,} is not divisible by tp {cases.tp[i]}",
        "candidate.tp",
        "Use a divisor of it.",
    )


def _input_widths(setting: TrainingSetting) -> set[int]:
    """Inputs of the matrices of a model's layers."""
    out = {setting.model.hidden}
    for layer, _ in setting.model.kinds:
        if isinstance(layer.attention, GroupedAttention):
            out.add(layer.attention.heads * layer.attention.v_head_dim)
        if isinstance(layer.mlp, DenseMlp):
            out.add(layer.mlp.intermediate)
    return out


def _torch_methods(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """What the embedded trainer's QLoRA and DPO cannot be divided by."""
    preferences = setting.method == "dpo"
    odd = [width for width in _input_widths(setting) if width % _NF4_BLOCK]
    yield LaunchRule(
        "launch-weights",
        np.full(len(cases), setting.method == "qlora" and bool(odd)),
        lambda _: f"{odd[0]:,} inputs of a matrix do not divide into 4-bit blocks of {_NF4_BLOCK}",
        "workload.method",
        "Use lora.",
    )
    yield LaunchRule(
        "launch-tensor",
        (cases.tp > 1) & (setting.method == "qlora"),
        lambda i: f"matrices in four bits are not cut by tp {cases.tp[i]}",
        "candidate.tp",
        "Use tp 1.",
    )
    yield LaunchRule(
        "launch-pipeline",
        (cases.pp > 1) & preferences,
        lambda i: f"preferences are not trained in a pipeline of pp {cases.pp[i]}",
        "candidate.pp",
        "Use pp 1.",
    )
    yield LaunchRule(
        "launch-batch",
        (cases.micro_batch % 2 == 1) & preferences,
        lambda i: f"a micro-batch of {cases.micro_batch[i]} has no pairs of answers",
        "candidate.micro_batch",
        "Use an even micro-batch.",
    )


def _accelerate(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    sharded = cases.zero_stage > 0
    yield host_activations(setting, cases, sharded, "of recomputed layers that FSDP divides only")
    on_cpu = setting.cluster.device.runtime == "cpu"
    yield LaunchRule(
        "launch-sharding",
        (cases.zero_stage > 0) & on_cpu,
        lambda _: "Accelerate copies parameters on a CPU, whatever it is told",
        "candidate.zero_stage",
        "Use ZeRO-0, or plain torch.",
    )
    yield from context_shards(setting, cases)


def _deepspeed(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    yield synchronised(setting.framework.title, cases)
    yield LaunchRule(
        "launch-sharding",
        (cases.zero_stage > 0) & (cases.replicas > cases.shard),
        lambda _: "DeepSpeed divides states over all replicas",
        "candidate.shard",
        "Divide them over all.",
    )


def _answers(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """What trainers by Ray share: batches of whole prompts, and whole nodes, also apart."""
    sampling = setting.sampling
    if sampling is None:
        return
    title, samples = setting.framework.title, sampling.work.samples
    part = np.full(len(cases), sampling.global_batch % samples != 0)
    yield LaunchRule(
        "launch-rollout",
        part,
        lambda _: (
            f"{title} updates on all answers of a prompt: global_batch {sampling.global_batch} is "
            f"not a multiple of samples {samples}"
        ),
        "workload.global_batch",
        "Use a multiple of workload.rollout.samples.",
    )
    total, pool = cases.all_devices, cases.sampling_devices
    uneven = (total > cases.per_node) & (total % cases.per_node != 0)
    uneven |= (pool > cases.per_node) & (pool % cases.per_node != 0)
    yield LaunchRule(
        "launch-nodes",
        (pool > 0) & uneven,
        lambda i: (
            f"{total[i]} devices, {pool[i]} of which only sample, do not fill nodes of "
            f"{cases.per_node[i]}"
        ),
        "workload.rollout.devices",
        "Use whole nodes, or a part of the only one.",
    )


def _verl(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    yield from _answers(setting, cases)
    yield _whole_alpha(setting, cases)
    yield LaunchRule(
        "launch-adapters",
        np.full(len(cases), setting.frozen and setting.lora_rank > _MOST_RANK),
        lambda _: f"vLLM takes adapters of rank {_MOST_RANK} at most, not {setting.lora_rank}",
        "workload.lora_rank",
        f"Use {_MOST_RANK} or less.",
    )
    yield LaunchRule(
        "launch-gradients",
        (cases.sync_step > 0) & accumulates(cases),
        lambda _: "verl exchanges gradients after every micro-batch",
        "candidate.gradient_sync",
        "Exchange gradients after every micro-batch.",
    )


def _openrlhf(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    yield from _answers(setting, cases)
    yield from _deepspeed(setting, cases)


def _torchtitan(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    layers = len(setting.model.layers)
    divides, piped = cases.zero_stage > 0, cases.pp > 1
    yield LaunchRule(
        "launch-sharding",
        divides & (cases.shard % cases.cp != 0),
        lambda i: f"shard {cases.shard[i]} is not a multiple of cp {cases.cp[i]}",
        "candidate.shard",
        "Use a multiple.",
    )
    yield LaunchRule(
        "launch-sharding",
        ~divides & (cases.cp > 1),
        lambda _: "ranks of context parallelism always divide states in torchtitan",
        "candidate.zero_stage",
        "Use ZeRO-3.",
    )
    yield LaunchRule(
        "launch-gradients",  # pipelines exchange gradients once a step
        ~piped & ~divides & (cases.dp > 1) & accumulates(cases),
        lambda _: (
            "torchtitan exchanges gradients of replicas after every micro-batch, not once per step"
        ),
        "candidate.zero_stage",
        "Use ZeRO-2 or 3, or a micro-batch that needs no accumulation.",
    )
    waits = synchronised("torchtitan", cases)
    yield LaunchRule(waits.code, waits.broken & ~piped, waits.say, waits.field, waits.hint)
    yield from _even_stages(cases, layers)
    yield _rounds(cases)
    yield _tied(setting, cases)
    yield heads_divide(setting, cases)  # of the layers with keys and values, in hybrids too
    known = shipped_configuration(setting.model)
    yield LaunchRule(
        "launch-sequence",
        (cases.cp > 1) & (known is not None and known.vision),
        lambda _: f"torchtitan does not cut sequences of {setting.model.name}, which reads images",
        "candidate.cp",
        "Use cp 1.",
    )
    pieces = _FLEX_BLOCK * np.maximum(cases.cp, 1)
    yield LaunchRule(
        "launch-sequence",
        (cases.cp > 1) & (cases.sequence_length % pieces != 0),
        lambda i: (
            f"{cases.sequence_length[i]:,} tokens are not divisible by {pieces[i]:,}: cp "
            f"{cases.cp[i]} times the {_FLEX_BLOCK} of a block of attention"
        ),
        "candidate.cp",
        "Use a smaller cp, or a multiple of tokens.",
    )
    shard = np.where(divides, np.maximum(cases.shard // np.maximum(cases.cp, 1), 1), 1)
    inner = cases.tp * cases.cp * shard
    yield LaunchRule(
        "launch-experts",
        inner % np.maximum(cases.ep, 1) != 0,
        lambda i: (
            f"tp × cp × shard = {inner[i]} ranks, which share experts, are not divisible by "
            f"ep {cases.ep[i]}"
        ),
        "candidate.ep",
        "Use a divisor of them.",
    )


def _even_stages(cases: TrainingCases, layers: int) -> Iterator[LaunchRule]:
    """Torchtitan deals layers out over one or two chunks a stage; of more it is told their size."""
    chunks = cases.pp * cases.virtual_stages
    per_chunk = np.maximum(-(-layers // chunks), 1)
    yield LaunchRule(
        "launch-pipeline",
        (cases.pp > 1) & (cases.virtual_stages > 2) & (-(-layers // per_chunk) != chunks),
        lambda i: f"{layers} layers do not fill {chunks[i]} chunks evenly",
        "candidate.pp",
        "Use a divisor of the layers.",
    )


def _trl(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    yield from _accelerate(setting, cases)
    yield from _tuning(setting, cases)
    yield LaunchRule(
        "launch-sharding",
        (cases.zero_stage == 0) & (setting.method == "dpo"),
        lambda _: "TRL keeps DPO's frozen model in fp32 on every replica without FSDP",
        "candidate.zero_stage",
        "Use ZeRO-2 or 3.",
    )
    quantized = setting.method == "qlora" and setting.precision != "bf16"
    yield LaunchRule(
        "launch-precision",
        np.full(len(cases), quantized),
        lambda _: f"TRL trains QLoRA's adapters in bf16, not {setting.precision}",
        "candidate.precision",
        "Use bf16.",
    )


def _zero_tools(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    yield from _deepspeed(setting, cases)
    yield from _tuning(setting, cases)
    stored = setting.method == "qlora" and setting.precision != "bf16"
    yield LaunchRule(
        "launch-precision",
        cases.host_parameters & stored,
        lambda _: f"{setting.framework.title} stores a 4-bit base that FSDP divides as bf16 only",
        "candidate.precision",
        "Use bf16.",
    )
    yield LaunchRule(
        "launch-offload",
        cases.host_parameters & (cases.replicas == 1) & (setting.method == "qlora"),
        lambda _: "FSDP divides a 4-bit base among two devices or more",
        "candidate.dp",
        "Use dp 2 or more.",
    )


def _unsloth(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    yield from _tuning(setting, cases)
    yield host_activations(setting, cases, cases.dp > 0, "of recomputed layers only")
    yield LaunchRule(
        "launch-nodes",
        cases.devices > cases.per_node,
        lambda i: f"Unsloth is launched on one node, not {cases.devices[i]} devices on several",
        "candidate.dp",
        "Use the devices of one node.",
    )


_OWN: Mapping[str, Rules] = {
    "embedded": _torch,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "torchtitan": _torchtitan,
    "megatron": megatron_rules,
    "verl": _verl,
    "openrlhf": _openrlhf,
    "trl": _trl,
    "axolotl": _zero_tools,
    "llama-factory": _zero_tools,
    "unsloth": _unsloth,
}
