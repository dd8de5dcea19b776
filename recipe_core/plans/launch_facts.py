"""Facts of a training request and its splits that launch rules name.

``engines/training/launch_rules.yaml`` and ``launches`` of ``programs.yaml`` are written in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.training_programs import LAUNCH_RULES, Launches, training_engine
from recipe_core.estimates.columns.training import (
    OFFLOADS,
    RECOMPUTE,
    SCHEDULES,
    TrainingCases,
    TrainingSetting,
    modules_code,
    modules_of,
)
from recipe_core.estimates.rules.training_rules import untold_choices
from recipe_core.estimates.training.frozen_base import frozen_base_bytes
from recipe_core.estimates.training.stages import reserved_ends, stage_layer_counts
from recipe_core.models.attention import LinearAttention
from recipe_core.plans.megatron_model import has_latent_layers, megatron_model
from recipe_core.plans.titan_models import reads_checkpoint, shipped_configuration, unlike_shipped

METHODS = {
    "pretrain": "pre-training",
    "finetune": "fine-tuning",
    "lora": "LoRA",
    "qlora": "QLoRA",
    "dpo": "DPO",
    "grpo": "GRPO",
    "ppo": "PPO",
}
DATA_TITLES = {"text": "texts", "chat": "chats", "preference": "preferences"}
OFFLOAD_TITLES = {
    "none": "states on the device",
    "optimizer": "optimizer states in host memory",
    "optimizer-nvme": "optimizer states on the host's disks",
    "parameters": "parameters in host memory",
}
# Words of columns that hold codes.
_CODES: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "offload": OFFLOADS,
}

# Columns that hold names as bits.
_MODULES = ("recompute_modules", "unlisted_modules")

_FLEX_BLOCK = 128


class LaunchFacts:
    """Facts by name, each computed once: scalars, lists, and columns where there are splits.

    ``extras``: facts of a request that its setting does not hold. A dotted name reads a part of a
    fact (``model.name``, ``able.attention.0``); a part of nothing is None.
    """

    def __init__(
        self, setting: TrainingSetting, cases: TrainingCases | None = None, **extras: Any
    ) -> None:
        self.setting = setting
        self.cases = cases
        self._values: dict[str, Any] = extras

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            root, _, part = name.rpartition(".")
            self._values[name] = _fact_part(self[root], part) if root else self._fact(name)
        return self._values[name]

    def _fact(self, name: str) -> Any:
        if name in _OF_SETTING:
            return _OF_SETTING[name](self.setting)
        if self.cases is not None and name in _OF_SPLITS:
            return _OF_SPLITS[name](self.setting, self.cases)
        for holder in (self.cases, self.setting):
            if hasattr(holder, name):
                return getattr(holder, name)
        raise LAUNCH_RULES.problem("", f"{name!r} is no fact of a launch", "Name one that is.")

    def coded(self, name: str, words: tuple[Any, ...]) -> tuple[Any, ...]:
        """Words as they stand in a fact: codes, where it is a column of codes."""
        if self.cases is None:
            return words
        if name in _MODULES:
            return tuple(modules_code((word,)) for word in words)
        codes = _CODES.get(name)
        return words if codes is None else tuple(codes.index(word) for word in words)

    def shown(self, name: str, i: int) -> Any:
        """The fact in a sentence about split ``i``."""
        value = self[name]
        value = value[i] if isinstance(value, np.ndarray) else value
        if name in _MODULES:
            return ", ".join(modules_of(int(value)))
        return _CODES[name][value] if name in _CODES and self.cases is not None else value


def _fact_part(value: Any, name: str) -> Any:
    if value is None:
        return None
    return value[int(name)] if name.isdigit() else getattr(value, name)


# What no split changes


def _readable_data(setting: TrainingSetting) -> tuple[str, ...]:
    return ("preference",) if setting.method == "dpo" else _engine_launches(setting).data


def _kernel_title(setting: TrainingSetting) -> str:
    kernels = training_data().attention_kernels.items()
    titles = (kernel.title for name, kernel in kernels if name == setting.attention)
    return next(titles, f"{setting.attention} attention")


def _gradient_formats(setting: TrainingSetting) -> tuple[str, ...]:
    """Formats of gradients that a framework can be told; its own, where it is told none."""
    default = "bf16" if setting.framework.states.reduced < 4 else "fp32"
    formats = _engine_launches(setting).gradients
    if setting.precision == "fp16":  # it keeps them in fp16 or fp32
        formats = tuple(name for name in formats if name != "bf16")
    return formats if _engine_launches(setting).gradients else (default,)


def _shared_heads(setting: TrainingSetting) -> int:
    """Heads that ranks of tp share: of keys and values, of queries where attention is latent."""
    latent = has_latent_layers(setting.model)
    kinds = [kind for kind, _ in setting.model.mixers if not isinstance(kind, LinearAttention)]
    return math.gcd(*(kind.heads if latent else kind.kv_heads for kind in kinds))


def _engine_launches(setting: TrainingSetting) -> Launches:
    return training_engine(setting.engine).launches


_OF_SETTING: Mapping[str, Callable[[TrainingSetting], Any]] = {
    "able": _engine_launches,
    "title": lambda s: s.framework.title,
    "device": lambda s: s.cluster.device,
    "layers": lambda s: len(s.model.layers),
    "layers_and_ends": lambda s: s.trained_layers + 2,
    "method_title": lambda s: METHODS[s.method],
    "data_title": lambda s: DATA_TITLES[s.data_format or "text"],
    "usual_data_title": lambda s: DATA_TITLES[_readable_data(s)[0]],
    "readable_data": _readable_data,
    # conversations, which must not see each other in a sequence; texts are read on
    "chats": lambda s: s.data_format == "chat" or "text" not in _engine_launches(s).data,
    "shipped": lambda s: shipped_configuration(s.model),
    "unlike_shipped": lambda s: unlike_shipped(s.model),
    "reads_checkpoint": lambda s: reads_checkpoint(s.model),
    "megatron_untold": lambda s: " and ".join(megatron_model(s.model).untold),
    "kernel_title": _kernel_title,
    "usual_kernel": lambda s: s.framework.kernels_on(s.cluster.device.architecture)[0],
    "untold_choices": untold_choices,
    "base_bytes": frozen_base_bytes,
    "gradient_formats": _gradient_formats,
    "optimizer_stages": lambda s: _engine_launches(s).optimizer_stages.get(
        s.optimizer_name, _engine_launches(s).zero_stages
    ),
    "full_attention": lambda s: (
        s.model.plain_attention is not None and s.model.plain_attention.window is None
    ),
    "plain_layers": lambda s: s.model.plain_attention is not None and not s.model.is_moe,
    "latent": lambda s: has_latent_layers(s.model),
    "windows": lambda s: any(kind.window for kind, _ in s.model.mixers),
    "shared_heads": _shared_heads,
    "shared_heads_kind": lambda s: (
        "attention heads" if has_latent_layers(s.model) else "key/value heads"
    ),
}


# Columns


def _loaded_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Whole models that the processes of a node load at once."""
    copies = training_engine(setting.engine).host_copies
    devices = np.minimum(cases.per_node, cases.devices).astype(float)
    parameters = float(setting.model.language_parameters)
    fsdp = setting.framework.sharding == "fsdp"
    is_divided = (cases.zero_stage == 3) | (fsdp & (cases.zero_stage > 0))
    return np.where(
        is_divided,
        copies.node_bytes(devices, parameters, divided=True),
        copies.node_bytes(devices, parameters, divided=False),
    )


def _filled_chunks(setting: TrainingSetting, cases: TrainingCases) -> Int:
    layers = len(setting.model.layers)
    per_chunk = np.maximum(-(-layers // (cases.pp * cases.virtual_stages)), 1)
    filled: Int = -(-layers // per_chunk)
    return filled


def _titan_expert_ranks(_: TrainingSetting, cases: TrainingCases) -> Int:
    """Ranks that share experts in torchtitan."""
    shard = np.maximum(cases.shard // np.maximum(cases.cp, 1), 1)
    ranks: Int = cases.tp * cases.cp * np.where(cases.zero_stage > 0, shard, 1)
    return ranks


def _empty_stage(setting: TrainingSetting, cases: TrainingCases) -> Bool:
    counts, _, _ = stage_layer_counts(setting, cases)
    stages = np.arange(counts.shape[1])[None, :]
    before_last = stages < cases.pp[:, None] - 1  # the last one can be the head alone
    return np.asarray(np.any(before_last & (counts == 0), axis=1))


def _last_stage_layers(setting: TrainingSetting, cases: TrainingCases) -> Float:
    counts, _, last = stage_layer_counts(setting, cases)
    return np.asarray(np.nansum(counts * last, axis=1))


def _uneven_phase(setting: TrainingSetting, cases: TrainingCases) -> Bool:
    """A phase has micro-batches that do not fill rounds of the pipeline."""
    batches = [cases.in_phase(phase).micro_batches for phase in setting.phases]
    return np.asarray(np.any([count % np.maximum(cases.pp, 1) for count in batches], axis=0))


_OF_SPLITS: Mapping[str, Callable[[TrainingSetting, TrainingCases], Any]] = {
    "chunks": lambda _, c: c.pp * c.virtual_stages,
    "filled_chunks": _filled_chunks,
    "interleaved_rounds": lambda _, c: np.maximum(c.micro_batches // np.maximum(c.pp, 1), 1),
    "shard_copies": lambda _, c: c.replicas // np.maximum(c.shard, 1),
    "flex_pieces": lambda _, c: _FLEX_BLOCK * np.maximum(c.cp, 1),
    "loaded_bytes": _loaded_bytes,
    "expert_ranks": _titan_expert_ranks,
    "reserved_ends": reserved_ends,
    "empty_stage": _empty_stage,
    "last_stage_layers": _last_stage_layers,
    "uneven_phase": _uneven_phase,
    "unlisted_modules": lambda s, c: (
        c.recompute_modules & ~modules_code(_engine_launches(s).recompute_modules)
    ),
}
