"""Which splits with context parallelism Accelerate cannot be told, as rules over columns.

Its FSDP2 cuts sequences over a dimension of the mesh of its own (1.15,
``accelerate/parallelism_config.py``). Attention masks are dropped for it, so only full causal
attention by torch's sdpa is computed right (``accelerate/big_modeling.py``), one text a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.plans.launch_rules import LaunchRule
from recipe_core.plans.launchable import plain_attention

ENGINES = ("accelerate", "trl")
"""Frameworks that are told context parallelism in Accelerate's words."""


def context_rules(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """What refuses every split with such a cp, whatever else it chooses."""
    cut, title, model = cases.cp > 1, setting.framework.title, setting.model
    attention = plain_attention(model)
    full = attention is not None and attention.window is None
    yield LaunchRule(
        "launch-context",
        cut & (not full),
        lambda _: f"{title} cuts sequences of plain full attention only, not of {model.name}",
        "candidate.cp",
        "Use cp 1.",
    )
    yield LaunchRule(
        "launch-context",
        cut & (not setting.flash),
        lambda _: f"{title} cuts sequences for flash attention only, not eager",
        "workload.attention",
        "Use flash attention, or cp 1.",
    )
    apart = setting.engine == "trl" and setting.attention in ("flash2", "flash3")
    yield LaunchRule(
        "launch-context",
        cut & apart,
        lambda _: f"{title} cuts sequences for torch's own attention only, not {setting.attention}",
        "workload.attention",
        "Use flash attention, or cp 1.",
    )
    yield LaunchRule(
        "launch-context",
        cut & _shares_sequences(setting),
        lambda _: f"{title} cuts no sequences that conversations share",
        "workload.packed",
        "Set workload.packed: false, or use cp 1.",
    )
    yield LaunchRule(
        "launch-context",
        cut & (setting.method == "dpo"),
        lambda _: f"{title} cuts no sequences of preferences",
        "candidate.cp",
        "Use cp 1.",
    )


def context_shards(setting: TrainingSetting, cases: TrainingCases) -> Iterator[LaunchRule]:
    """What the states of ranks that share a sequence must be divided over."""
    cut, title = cases.cp > 1, setting.framework.title
    yield LaunchRule(
        "launch-sharding",
        cut & (cases.zero_stage < 2),
        lambda _: f"{title} cuts sequences under FSDP2 only, which divides states",
        "candidate.zero_stage",
        "Use ZeRO-2 or 3.",
    )
    shard, cp = cases.shard, np.maximum(cases.cp, 1)
    copies = cases.replicas // np.maximum(shard, 1)
    yield LaunchRule(
        "launch-sharding",
        cut & ((shard % cp != 0) | ((copies > 1) & (shard == cp))),
        lambda i: (
            f"{title} divides states over cp and over replicas: shard {shard[i]} is no multiple of "
            f"cp {cp[i]} that several replicas share"
        ),
        "candidate.shard",
        "Divide them over all replicas.",
    )


def _shares_sequences(setting: TrainingSetting) -> bool:
    """Whether attention must end inside a sequence: text is read on, conversations are not."""
    chats = setting.engine == "trl" or setting.data_format == "chat"
    return chats and setting.packed and setting.method != "dpo"
