"""Every rule that a training split can break, with its sentence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipe_core.base.arrays import Bool, Int
from recipe_core.base.units import count_text
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.training import (
    RECOMPUTE,
    SCHEDULES,
    TrainingCases,
    TrainingSetting,
    modules_code,
)
from recipe_core.estimates.rules.links import link_refusals
from recipe_core.estimates.rules.refusal import Refusal, indivisible_refusal
from recipe_core.models.spec import MoeMlp
from recipe_core.request.phases import Phase

# The least compute capability of NVIDIA's that has a recipe's scales.
LEAST_ARCHITECTURE = {"mxfp8": 100, "blockwise": 90}


def training_refusals(setting: TrainingSetting, cases: TrainingCases) -> list[Refusal]:
    """Every rule that a split can break before memory is estimated."""
    return [
        *_training_device_rules(setting, cases),
        *_model_rules(setting, cases),
        *_batch_rules(cases),
        *_schedule_rules(cases),
        *_host_rules(setting, cases),
        *_phase_rules(setting, cases),
        *_choice_rules(setting, cases),
    ]


def in_phase(phase: Phase, cases: TrainingCases, rule: Refusal) -> Refusal:
    """A rule that a split breaks in one phase of its run, which the sentence names."""

    def sentence(i: int) -> str:
        length, batch = int(cases.sequence_length[i]), int(cases.global_batch[i])
        return f"phase of {count_text(phase.tokens)} tokens ({batch:,} × {length:,}): {rule.say(i)}"

    return Refusal(rule.code, rule.broken, sentence)


def _training_device_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    available = cases.per_node * cases.nodes - cases.sampling_devices
    yield Refusal(
        "devices",
        cases.devices > available,
        lambda i: cases.dims(i).device_terms(int(available[i])),
    )
    yield from link_refusals(setting.cluster, cases.devices > 1)
    device = setting.cluster.device
    missing = setting.precision not in device.peak_flops_per_s
    supported = ", ".join(device.peak_flops_per_s)
    yield Refusal(
        "precision",
        np.full(len(cases), missing and setting.precision != "bf16"),
        lambda i: f"{device.title} has no {setting.precision} matrix units; supported: {supported}",
    )


def _model_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    model = setting.model
    heads = min(
        (a.heads for layer, _ in model.kinds if (a := layer.attention) is not None), default=0
    )
    if heads:
        subject = f"{heads} attention heads are"
        yield indivisible_refusal("heads", heads % cases.tp != 0, subject, tp=cases.tp)
    subject = f"hidden size {model.hidden} is"
    yield indivisible_refusal("hidden", model.hidden % cases.tp != 0, subject, tp=cases.tp)
    width = min(
        (
            m.intermediate
            for layer, _ in model.kinds
            if (m := layer.mlp) is not None and not isinstance(m, MoeMlp)
        ),
        default=0,
    )
    if width:
        subject = f"feed-forward width {width} is"
        yield indivisible_refusal("width", width % cases.tp != 0, subject, tp=cases.tp)
    yield from _stage_rules(setting, cases)
    yield from _expert_rank_rules(setting, cases)


def _stage_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    layers = setting.trained_layers
    chunks = cases.pp * cases.virtual_stages
    # embedding and loss can be chunks of their own where a framework counts them as layers
    limit = layers + (2 if setting.framework.stages == "reserved" else 0)
    yield Refusal(
        "layers",
        (chunks > layers) & (chunks != limit),
        lambda i: (
            f"PP {cases.pp[i]} × virtual_stages {cases.virtual_stages[i]} = {chunks[i]} chunks "
            f"exceed the model's {layers} layers"
        ),
    )
    yield Refusal(
        "dualpipe",
        cases.has("dualpipe") & ((cases.pp % 2 != 0) | (cases.micro_batches < 2 * cases.pp)),
        lambda i: (
            f"DualPipe takes an even PP and at least 2 × PP micro-batches, not PP {cases.pp[i]} "
            f"and {cases.micro_batches[i]}"
        ),
    )


def _expert_rank_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    model, moe = setting.model, setting.model.experts
    if moe is None:
        yield Refusal(
            "no-experts",
            cases.ep > 1,
            lambda i: f"EP is {cases.ep[i]}, but {model.name} has no experts; leave EP out",
        )
        return
    ranks = cases.tp * cases.cp * cases.dp
    subject = f"{moe.experts} experts are"
    yield indivisible_refusal("experts", moe.experts % cases.ep != 0, subject, ep=cases.ep)
    yield Refusal(
        "expert-ranks",
        ranks % cases.ep != 0,
        lambda i: f"TP × CP × DP = {ranks[i]} ranks are not divisible by EP {cases.ep[i]}",
    )


def _batch_rules(cases: TrainingCases) -> Iterator[Refusal]:
    sequences = np.maximum(cases.dp * cases.micro_batch, 1)
    yield Refusal(
        "global-batch", cases.global_batch % sequences != 0, lambda i: cases.dims(i).batch_terms()
    )
    pieces = 2 * cases.cp
    yield Refusal(
        "sequence",
        (cases.cp > 1) & (cases.sequence_length % pieces != 0),
        lambda i: (
            f"sequence_length {cases.sequence_length[i]:,} is not divisible by 2 × CP "
            f"{cases.cp[i]} (each rank takes two pieces)"
        ),
    )


def _phase_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    for phase in setting.phases:
        phased, ranks = cases.in_phase(phase), cases.dp * cases.cp
        for rule in _batch_rules(phased):
            yield in_phase(phase, phased, rule)
        if phase.cp is not None:
            yield in_phase(phase, phased, _ranks_rule(ranks, phase.cp))


def _host_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    """Yield rules on parameters in host memory: ZeRO-3, a host with memory, no rollout."""
    device, hosted = setting.cluster.device, cases.host_parameters
    yield Refusal(
        "offload",
        hosted & (cases.zero_stage != 3),
        lambda i: f"offload parameters goes with zero_stage 3, not {cases.zero_stage[i]}",
    )
    yield Refusal(
        "offload",
        hosted & (device.node.host_memory_bytes is None),
        lambda _: f"{device.title} has no host memory of its own to offload parameters to",
    )
    yield Refusal(
        "offload",
        hosted & (setting.sampling is not None),
        lambda _: (
            f"method {setting.method} moves states by workload.rollout.offload; leave offload "
            "parameters out"
        ),
    )


def _ranks_rule(ranks: Int, cp: int) -> Refusal:
    return Refusal(
        "sequence",
        ranks % cp != 0,
        lambda i: f"DP × CP = {ranks[i]:,} ranks are not divisible by its CP {cp}",
    )


def _schedule_rules(cases: TrainingCases) -> Iterator[Refusal]:
    several = cases.virtual_stages > 1
    yield Refusal(
        "virtual-stages",
        several & (cases.pp == 1),
        lambda i: f"virtual_stages {cases.virtual_stages[i]} needs a pipeline, but PP is 1",
    )
    yield Refusal(
        "schedule",
        several & (cases.pp > 1) & ~(cases.has("interleaved") | cases.has("zb-v")),
        lambda i: (
            f"schedule {SCHEDULES[cases.schedule[i]]} has one chunk per stage; "
            f"virtual_stages {cases.virtual_stages[i]} needs interleaved or zb-v"
        ),
    )
    replicas = cases.replicas
    yield Refusal(
        "shard",
        (cases.shard < 1) | (replicas % np.maximum(cases.shard, 1) != 0),
        lambda i: cases.dims(i).shard_terms(),
    )


# CUDA graphs, recipes of 8 bits, compiling


def untold_choices(setting: TrainingSetting) -> list[str]:
    """Fields of a candidate that the setting's framework cannot be told as they are stated."""
    able, compiled = training_engine(setting.engine).launches, setting.framework.compiled
    always = compiled is not None and compiled.always
    lacks = {
        "fp8_recipe": setting.fp8_recipe is not None and setting.fp8_recipe not in able.fp8_recipes,
        "cuda_graphs": setting.cuda_graphs != "none"
        and setting.cuda_graphs not in able.cuda_graphs,
        "compile": compiled is None if setting.compiles else setting.compiles is False and always,
    }
    return [name for name, lacking in lacks.items() if lacking]


def _choice_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    """Yield what a framework or a device cannot be told."""
    title, recipe = setting.framework.title, setting.fp8_recipe
    graphs, device = setting.cuda_graphs, setting.cluster.device

    def all_cases(broken: bool) -> Bool:
        return np.full(len(cases), broken)

    for name in untold_choices(setting):
        value = {"fp8_recipe": recipe, "cuda_graphs": graphs}.get(name, setting.compiles)
        yield Refusal(
            name.replace("_", "-"),
            all_cases(True),
            lambda _, name=name, value=value: (  # type: ignore[misc]
                f"{title} is not told {name} {str(value).lower()}; leave it out"
            ),
        )
    minimum = LEAST_ARCHITECTURE.get(recipe or "", 0)
    yield Refusal(
        "fp8-recipe",
        all_cases(_capability(device.architecture) < minimum),
        lambda _: f"{device.title} has no scales of fp8_recipe {recipe}",
    )
    if graphs == "none":
        return
    yield Refusal(
        "cuda-graphs",
        all_cases(device.runtime != "cuda"),
        lambda _: f"{device.title} has no cuda_graphs; leave them out",
    )
    yield from _graph_rules(setting, cases)


def _graph_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    """Yield what goes with graphs (``TransformerConfig.__post_init__`` of Megatron Core 0.15)."""
    graphs = setting.cuda_graphs
    yield Refusal(
        "cuda-graphs",
        np.full(len(cases), graphs != "attention" and setting.model.is_moe),
        lambda _: (
            f"cuda_graphs {graphs} captures layers of fixed sizes, not the experts of "
            f"{setting.model.name}; use attention"
        ),
    )
    again = cases.recompute > RECOMPUTE.index("none")
    if graphs == "attention":
        inside = cases.recompute_modules & modules_code(("core_attn", "mla_up_proj")) > 0
        bare = cases.recompute_modules == 0
        again = (cases.recompute == RECOMPUTE.index("full")) | (again & (inside | bare))
    yield Refusal(
        "cuda-graphs",
        again,
        lambda i: (
            f"cuda_graphs {graphs} does not go with recompute {RECOMPUTE[cases.recompute[i]]} of "
            "what is captured; recompute nothing, or with attention only modules beside it"
        ),
    )


def _capability(architecture: str) -> float:
    """NVIDIA's compute capability times ten; 0 for other devices, which have none of the scales."""
    kind, _, number = architecture.partition("_")
    return float(number) if kind == "sm" and number.isdigit() else 0.0
