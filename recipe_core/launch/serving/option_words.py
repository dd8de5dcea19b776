"""Options of engines by a deployment: the templates of ``options.yaml``, filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.launch.process import Deployment, Role, Split
from recipe_core.launch.templates import fill_template, read_templates

FILE = Path(__file__).with_name("options.yaml")


def make_options(
    kind: str, deployment: Deployment, split: Split, role: Role = "server", **words: Any
) -> dict[str, Any]:
    """Options of an engine for one split of a role; ``words``: values of that engine alone."""
    options: dict[str, Any] = fill_template(
        read_templates(FILE)[kind], option_values(deployment, split, role) | words
    )
    return options


def option_values(deployment: Deployment, split: Split, role: Role) -> dict[str, Any]:
    """Values that several engines are told; None where an engine is to keep its default."""
    candidate, setting = deployment.candidate, deployment.setting
    usual_block = candidate.block_size == setting.engine.memory.block_tokens
    cast = candidate.weight_dtype == "fp8" and setting.model.weight_dtype != "fp8"
    return {
        "name": deployment.served_name,
        "tp": split.tp,
        "pp": split.pp,
        "dp": split.dp,
        "ep": split.ep,
        # of attention that is cut by requests, tp counts all of its ranks
        "tp_size": split.tp * (split.dp if split.ep > 1 else 1),
        "dtype": deployment.activation_word,
        "max_context": deployment.max_context,
        "max_num_seqs": candidate.max_num_seqs,
        "max_batched_tokens": candidate.max_batched_tokens,
        "memory_fraction": candidate.memory_fraction,
        "concurrent": 4 * candidate.max_num_seqs,
        "tokens_per_block": candidate.block_size,
        "block_size": None if usual_block else candidate.block_size,
        "cp": candidate.cp if candidate.cp > 1 and role != "prefill" else None,
        "online": "fp8" if cast else None,  # quantised at load
        "pool": role if role in ("prefill", "decode") else None,
    }
