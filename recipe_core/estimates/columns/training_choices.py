"""What only some frameworks can be told: CUDA graphs, recipes of 8 bits, compiling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.training import (
    RECOMPUTE,
    TrainingCases,
    TrainingSetting,
    modules_code,
)
from recipe_core.estimates.rules.refusal import Refusal

LEAST_ARCHITECTURE = {"mxfp8": 100, "blockwise": 90}
"""The least compute capability of NVIDIA's that has a recipe's scales."""


def untold(setting: TrainingSetting) -> list[str]:
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


def choice_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    """What a framework or a device cannot be told."""
    title, recipe = setting.framework.title, setting.fp8_recipe
    graphs, device = setting.cuda_graphs, setting.cluster.device

    def every(broken: bool) -> Bool:
        return np.full(len(cases), broken)

    for name in untold(setting):
        value = {"fp8_recipe": recipe, "cuda_graphs": graphs}.get(name, setting.compiles)
        yield Refusal(
            name.replace("_", "-"),
            every(True),
            lambda _, name=name, value=value: (  # type: ignore[misc]
                f"{title} is not told {name} {str(value).lower()}; leave it out"
            ),
        )
    least = LEAST_ARCHITECTURE.get(recipe or "", 0)
    yield Refusal(
        "fp8-recipe",
        every(_capability(device.architecture) < least),
        lambda _: f"{device.title} has no scales of fp8_recipe {recipe}",
    )
    if graphs == "none":
        return
    yield Refusal(
        "cuda-graphs",
        every(device.runtime != "cuda"),
        lambda _: f"{device.title} has no cuda_graphs; leave them out",
    )
    yield from _graph_rules(setting, cases)


def _graph_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    """What goes with graphs (``TransformerConfig.__post_init__`` of Megatron Core 0.15)."""
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
