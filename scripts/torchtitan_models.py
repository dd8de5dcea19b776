"""Write the models that torchtitan ships, by what tells each from others.

    .venv-torchtitan/bin/python scripts/torchtitan_models.py >models.yaml

Reads the registries of the installed package, which scripts/torchtitan_cpu installs. What it writes
is recipe_core/engines/training/titan_models.yaml, of which it keeps all before the models.
"""

from __future__ import annotations

import importlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

FILE = Path("recipe_core/engines/training/titan_models.yaml")


def main() -> None:
    """Print the file: its head at the installed release, and the models of each family's module."""
    head, models, _ = FILE.read_text(encoding="utf-8").partition("models:\n")
    shipped = yaml.safe_load(head)
    print(head.replace(shipped["version"], version("torchtitan")) + models, end="")
    for module in shipped["families"]:
        package = importlib.import_module(f"torchtitan.models.{module}")
        names = [name for name in vars(package) if name.endswith("_configs")]
        (flavors,) = (part for name in names if isinstance(part := getattr(package, name), dict))
        for flavor in flavors:
            if flavor.endswith("non_fused_qkv"):  # the same model with projections apart
                continue
            config = package.model_registry(flavor).model
            print(f"  - {flow_mapping({'module': module, 'flavor': flavor} | shape(config))}")


def flow_mapping(row: dict[str, Any]) -> str:
    """A mapping in YAML's flow style, without what is unknown."""
    parts = (f"{key}: {json.dumps(value)}" for key, value in row.items() if value is not None)
    return f"{{{', '.join(parts)}}}"


def shape(config: Any) -> dict[str, Any]:
    """A model's dimensions, from its tree of configurations."""
    mixers = "".join(letter(layer) for layer in config.layers)
    routed = [layer.moe is not None for layer in config.layers]
    if routed != sorted(routed):
        raise ValueError("dense layers are not the first ones")
    out: dict[str, Any] = {
        "layers": len(config.layers),
        "hidden": config.dim,
        "vocabulary": config.vocab_size,
        "tied_embeddings": config.enable_weight_tying,
        "vision": getattr(config, "vision_encoder", None) is not None,
        "mixers": period(mixers),
        "dense_layers": routed.index(True) if any(routed) else None,
    }
    for layer in config.layers:  # a later layer adds what earlier ones do not have
        for part, read in (
            (layer.attention, attention),
            (getattr(layer, "delta_net", None), linear),
            (layer.feed_forward, dense),
            (layer.moe, experts),
        ):
            if part is not None:
                out |= read(part)
    return out


def window(attention: Any) -> int | None:
    """Positions that a layer attends to; None for all."""
    return getattr(attention, "sliding_window_size", None) or getattr(
        attention, "window_size", None
    )


def letter(layer: Any) -> str:
    """Say what mixes the tokens of a layer."""
    if layer.attention is None:
        return "l"
    return "w" if window(layer.attention) else "f"


def period(letters: str) -> str:
    """The shortest start of a text that it repeats."""
    return next(
        letters[:size]
        for size in range(1, len(letters) + 1)
        if (letters[:size] * len(letters))[: len(letters)] == letters
    )


def attention(part: Any) -> dict[str, Any]:
    """Heads and widths, biases, and how positions are turned."""
    out: dict[str, Any] = {"heads": part.n_heads}
    if hasattr(part, "kv_lora_rank"):
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        out |= {name: getattr(part, name) for name in names}
        out["q_lora_rank"] = part.q_lora_rank or None
    else:
        qkv = getattr(part, "qkv_linear", None)
        first = part.wq if qkv is None else getattr(qkv, "wqkv", None) or qkv.wq
        out |= {
            "kv_heads": part.n_kv_heads or part.n_heads,
            "head_dim": getattr(part, "head_dim", None) or qkv.head_dim,
            "attention_bias": first.bias,
        }
    if window(part):
        out["window"] = window(part)
    rope = part.rope
    factor = {"none": None, "llama": rope.scaling_factor, "yarn": rope.rope_factor}[rope.scaling]
    return out | {
        "rope_theta": float(rope.theta),
        "rope_scaling": {"llama": "llama3"}.get(rope.scaling, rope.scaling),
        **({"rope_factor": float(factor)} if factor else {}),
    }


def linear(part: Any) -> dict[str, Any]:
    """Heads of a gated delta net, from the widths of its projections."""
    return {
        "linear_key_heads": part.in_proj_k.out_features // part.key_head_dim,
        "linear_value_heads": part.in_proj_v.out_features // part.value_head_dim,
        "linear_key_head_dim": part.key_head_dim,
        "linear_value_head_dim": part.value_head_dim,
    }


def dense(part: Any) -> dict[str, Any]:
    """The width of a dense block."""
    return {"intermediate": part.w1.out_features}


def experts(part: Any) -> dict[str, Any]:
    """Routed and shared experts, and how tokens are routed."""
    router, inner = part.router, part.routed_experts.inner_experts
    shared = getattr(part, "shared_experts", None)
    return {
        "experts": part.num_experts,
        "top_k": router.top_k,
        "expert_intermediate": inner.hidden_dim,
        "shared_intermediate": shared.w1.out_features if shared else 0,
        "router_score": router.score_func,
        "router_groups": router.num_expert_groups or 1,
        "router_limited_groups": router.num_limited_groups or 1,
        "router_scale": float(router.route_scale),
        "router_norm": router.route_norm,
    }


if __name__ == "__main__":
    main()
