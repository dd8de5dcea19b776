"""Where a framework's launch can have an optimizer: ZeRO stages, and states on the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.plans.launch_rules import LaunchRule


def optimizer_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """Splits under which the setting's framework does not have the optimizer."""
    launches, title = training_engine(setting.engine).launches, setting.framework.title
    name, optimizer = setting.optimizer_name, setting.optimizer.title
    stages = launches.optimizer_stages.get(name, launches.zero_stages)
    yield LaunchRule(
        "launch-sharding",
        ~np.isin(cases.zero_stage, stages),
        lambda i: f"{title} does not launch {optimizer} with ZeRO-{cases.zero_stage[i]}",
        "candidate.zero_stage",
        f"Use {' or '.join(f'ZeRO-{stage}' if stage else 'no ZeRO' for stage in stages)}.",
    )
    yield LaunchRule(
        "launch-offload",
        (cases.offload > 0) & (name in launches.on_device),
        lambda _: f"{title} keeps {optimizer}'s states on the device",
        "candidate.offload",
        "Leave offload out, or use AdamW.",
    )
