"""Which splits Megatron-LM cannot be told, beside what data says of all frameworks.

Checked against ``validate_args`` and ``TransformerConfig.__post_init__`` of core_v0.15.0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipe_core.estimates.columns.training import (
    OFFLOADS,
    RECOMPUTE,
    TrainingCases,
    TrainingSetting,
    modules_code,
)
from recipe_core.estimates.training.stages import reserved_ends, stage_layers
from recipe_core.models.attention import LatentAttention
from recipe_core.plans.launch_rules import LaunchRule, heads_divide, synchronised
from recipe_core.plans.launchable import experts_of


def megatron_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """What it cannot be told of its splits."""
    yield from _pipeline(setting, cases)
    yield from _experts(setting, cases)
    yield from _sharding(setting, cases)
    yield from _modules(setting, cases)
    yield from _overlap(cases)
    yield from _predictions(setting, cases)
    yield heads_divide(setting, cases)


def _pipeline(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Layers that fill the chunks, and micro-batches that fill rounds of an interleaved one."""
    layers = setting.trained_layers
    piped, several = cases.pp > 1, cases.virtual_stages > 1
    chunks = cases.pp * cases.virtual_stages
    counts, _, _ = stage_layers(setting, cases)
    reserved = reserved_ends(setting, cases)
    whole = (layers % chunks == 0) | reserved
    yield LaunchRule(
        "launch-pipeline",
        several & ~whole,
        lambda i: (
            f"{layers} layers, or {layers + 2} with both ends, do not fill {chunks[i]} chunks"
        ),
        "candidate.pp",
        "Use a divisor of the layers, or of the layers and two.",
    )
    stages = np.arange(counts.shape[1])[None, :]
    before_last = stages < cases.pp[:, None] - 1  # the last one can be the head alone
    yield LaunchRule(
        "launch-pipeline",
        np.any(before_last & (counts == 0), axis=1) & ~reserved,
        lambda i: f"{layers} layers and the head leave one of {cases.pp[i]} stages empty",
        "candidate.pp",
        "Use a smaller pp.",
    )
    yield LaunchRule(
        "launch-pipeline",
        piped & several & (cases.micro_batches % np.maximum(cases.pp, 1) != 0),
        lambda i: (
            f"an interleaved schedule takes a multiple of pp {cases.pp[i]} micro-batches, not "
            f"{cases.micro_batches[i]}"
        ),
        "candidate.virtual_stages",
        "Use one chunk per stage.",
    )
    phases = [cases.in_phase(phase).micro_batches for phase in setting.phases]
    uneven = [batches % np.maximum(cases.pp, 1) != 0 for batches in phases]
    yield LaunchRule(
        "launch-pipeline",
        piped & several & np.any([*uneven, np.zeros_like(piped)], axis=0),
        lambda i: (
            f"an interleaved schedule takes a multiple of pp {cases.pp[i]} micro-batches, which "
            "not every phase has"
        ),
        "candidate.virtual_stages",
        "Use one chunk per stage.",
    )


def _experts(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Experts and windows, whose kernels do not go with every cut."""
    has_experts = experts_of(setting.model) is not None
    mixers = setting.model.mixers
    yield LaunchRule(
        "launch-tensor",
        (cases.tp > 1) & (cases.sequence_parallel == 0) & has_experts,
        lambda _: "Megatron-LM trains experts under tp with sequence parallelism only",
        "candidate.sequence_parallel",
        "Leave it on.",
    )
    yield LaunchRule(
        "launch-experts",
        (cases.ep > 1) & (setting.precision == "fp16"),
        lambda _: "Megatron-LM divides experts in bf16 and fp8 only, not in fp16",
        "candidate.precision",
        "Use bf16.",
    )
    yield LaunchRule(
        "launch-context",
        (cases.cp > 1) & any(kind.window for kind, _ in mixers),
        lambda _: (
            f"Megatron-LM cuts no sequences of {setting.model.name}, whose attention has a window"
        ),
        "candidate.cp",
        "Use cp 1.",
    )


def _sharding(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Where optimizer states live, and how they are divided."""
    adam = setting.optimizer_name == "adamw"
    yield LaunchRule(
        "launch-offload",
        (cases.offload == OFFLOADS.index("optimizer")) & ((cases.zero_stage != 1) | (not adam)),
        lambda _: "Megatron-LM offloads AdamW's states with ZeRO-1 only",
        "candidate.zero_stage",
        "Use AdamW and ZeRO-1.",
    )
    yield synchronised("Megatron-FSDP", cases)
    yield LaunchRule(
        "launch-sharding",
        (cases.zero_stage > 1) & (cases.pp > 1),
        lambda i: f"Megatron-FSDP's ZeRO-{cases.zero_stage[i]} is not launched with a pipeline",
        "candidate.zero_stage",
        "Use ZeRO-1.",
    )


def _modules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Modules that selective recomputation names and the model, or its precision, does not have."""
    model = setting.model
    latent = any(isinstance(kind, LatentAttention) for kind, _ in model.mixers)
    shared = experts_of(model)
    lacking = {
        "mla_up_proj": (not latent, "has no latent attention"),
        "moe": (not model.is_moe, "has no experts"),
        "moe_act": (not model.is_moe, "has no experts"),
        "shared_experts": (not (shared and shared.shared_intermediate), "shares no experts"),
    }
    if setting.precision == "fp8":
        lacking |= dict.fromkeys(
            ("layernorm", "moe_act"), (True, "is scaled by earlier steps in fp8")
        )
    if setting.precision == "fp16":
        lacking["moe_act"] = (True, "has no grouped products in fp16")
    for name, (lacks, why) in lacking.items():
        named = cases.recompute_modules & modules_code((name,))
        yield LaunchRule(
            "launch-recompute",
            (cases.recompute == RECOMPUTE.index("selective")) & (named > 0) & lacks,
            lambda _, name=name, why=why: (  # type: ignore[misc]
                f"Megatron-LM cannot recompute {name}: {model.name} {why}"
            ),
            "candidate.recompute_modules",
            "Leave it out.",
        )


def _predictions(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Layers of multi-token prediction, which lie on the last stage, and narrow moments."""
    predictions = setting.mtp_layers
    counts, _, last = stage_layers(setting, cases)
    for broken, what, name, use in (
        (cases.virtual_stages > 1, "with several chunks per stage", "virtual_stages", "one chunk"),
        (np.nansum(counts * last, axis=1) < predictions, "on more than one stage", "pp", "fewer"),
        (
            (cases.overlap_experts > 0) & (predictions > 1),
            "of more than one layer while it overlaps the exchange of tokens",
            "overlap_experts",
            "one layer",
        ),
    ):
        yield LaunchRule(
            "launch-predictions",
            (predictions > 0) & broken,
            lambda _, what=what: f"Megatron-LM is launched with no multi-token prediction {what}",  # type: ignore[misc]
            f"candidate.{name}",
            f"Use {use}.",
        )
    yield LaunchRule(
        "launch-moments",
        np.asarray(cases.zero_stage != 1) & (setting.moment_dtype is not None),
        lambda i: (
            f"Megatron-LM keeps moments in {setting.moment_dtype} with ZeRO-1 only, not "
            f"{cases.zero_stage[i]}"
        ),
        "candidate.zero_stage",
        "Use ZeRO-1.",
    )


def _overlap(cases: TrainingCases) -> Iterator[LaunchRule]:
    """What the overlapped exchange of tokens takes (``TransformerConfig.__post_init__``)."""
    full = cases.recompute == RECOMPUTE.index("full")
    one_chunk = (cases.pp > 1) & (cases.virtual_stages == 1)
    for broken, what, name, use in (
        (cases.ep == 1, "without ep", "ep", "an ep above 1"),
        (full, "beside full recomputation", "recompute", "selective recomputation"),
        (one_chunk, "with one chunk per stage", "virtual_stages", "several chunks per stage"),
        (cases.zero_stage > 1, "with Megatron-FSDP", "zero_stage", "ZeRO-1"),
    ):
        yield LaunchRule(
            "launch-overlap",
            (cases.overlap_experts > 0) & broken,
            lambda _, what=what: f"Megatron-LM overlaps no exchange of tokens {what}",  # type: ignore[misc]
            f"candidate.{name}",
            f"Use {use}.",
        )
