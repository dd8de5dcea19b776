"""Splits a model for one rank by transformers' own plan, in a process group of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # lets collectives run on tensors without data
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from recipe_core.base.errors import InputError

# What vLLM and SGLang split in every model, by the end of a module's name.
#
# Applied where transformers' plan has no rule (MLA's up-projections, all of gpt-oss). Source:
# ``deepseek_v2.py`` and ``gpt_oss.py`` of ``vllm/model_executor/models``, and
# ``vllm/models/deepseek_v4/attention.py``.
ENGINE_RULES = {
    "*.q_proj": "colwise",
    "*.k_proj": "colwise",
    "*.v_proj": "colwise",
    "*.q_b_proj": "colwise",
    "*.kv_b_proj": "colwise",
    "*.o_proj": "rowwise",
    "*.o_a_proj": "colwise",
    "*.o_b_proj": "rowwise",
    "*.sinks": "colwise",
    "*.gate_proj": "colwise",
    "*.up_proj": "colwise",
    "*.down_proj": "rowwise",
    "embed_tokens": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
}

_PLAIN_ROWS = "_hf_quantized_needs_local_tp"

# Experts stored ``[experts, in, out]`` (gpt-oss): the first matrix's last dimension is split.
TRANSPOSED_EXPERTS = {
    "gate_up_proj": "rowwise",
    "gate_up_proj_bias": "rowwise",
    "down_proj": "colwise",
}


@dataclass(slots=True)
class Cut:
    """The split of a model.

    added: rules besides transformers' plan. unsplit: matrices on every rank. gathered: projections
    in layers whose output every rank gets complete. repeated_kv: whether KV heads are replicated.
    """

    gathered: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    unsplit: list[str] = field(default_factory=list)
    repeated_kv: bool = False


@contextmanager
def fake_group(world: int) -> Iterator[None]:
    """A process group of ``world`` ranks, this one rank 0, whose collectives return at once.

    Raises:
        InputError: this process has a process group already.
    """
    if world == 1:
        yield
        return
    if dist.is_initialized():
        raise InputError(
            "this process already has a torch process group.",
            field="trace",
            hint="Run the trace in a separate process.",
        )
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def cut(model: nn.Module, *, tp: int, dp: int, ep: int) -> Cut:
    """Splits a model on the meta device to rank 0's share, and hooks its collectives in.

    Raises:
        InputError: transformers has no expert-parallel plan for it, or groups are not divisible.
    """
    result = Cut()
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    tied = head.weight is embedding.weight
    if tp == 1 and ep == 1:
        return result
    mesh: Any = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    experts = _expand(model, model.ep_plan) if ep > 1 else {}  # type: ignore[arg-type]
    if tp > 1:
        result.repeated_kv = _repeat_kv_heads(model, tp)
        plan = _tensor_plan(model, set(experts), result)
        if result.repeated_kv:
            plan = {
                name: style
                for name, style in plan.items()
                if not re.search(r"\.([kv]_proj|k_norm)(\.|$)", name)
            }
        result.gathered = sorted(
            {
                _generic(n)
                for n, style in plan.items()
                if ".layers." in n and "gather" in style and not n.endswith(("weight", "bias"))
            }
        )
        result.unsplit = _unsplit(model, plan, experts)
        apply_tensor_parallelism(model, mesh["tp"], plan)
        _share_groups(model, tp)
        if tied:
            head.weight = embedding.weight
    if ep > 1:
        if not experts:
            raise InputError(
                f"transformers has no expert-parallel plan for {type(model).__name__}.",
                field="candidate.ep",
            )
        ranks: Any = init_device_mesh("cpu", (ep,), mesh_dim_names=("ep",))
        # the batch's group is passed as the experts' own, so that no token count is read from data
        apply_expert_parallelism(model, ranks, ranks, experts, ep_implementation="all_reduce")
    return result


def _share_groups(model: nn.Module, tp: int) -> None:
    """Gives output projections by groups of heads (DeepSeek-V4) a rank's groups; they count all."""
    config: Any = model.config
    groups = getattr(config, "o_groups", None)
    if not groups:
        return
    if groups % tp:
        raise InputError(
            f"{groups} output groups are not divisible by TP {tp}.", field="candidate.tp"
        )
    config.o_groups = groups // tp
    for module in model.modules():
        if getattr(module, "n_groups", None) == groups:
            module.n_groups = groups // tp


def _generic(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _expand(model: nn.Module, rules: Mapping[str, str]) -> dict[str, str]:
    """Rules by concrete name: of parameters first, then of modules.

    Implementations count the experts that are left, so parameters have to be split before modules.
    """
    out: dict[str, str] = {}
    for name, _ in model.named_parameters():
        style = rules.get(_generic(name)) or rules.get(_generic(name).rpartition(".")[0])
        if style:
            out[name] = style
    for name, _ in model.named_modules():
        if _generic(name) in rules:
            out[name] = rules[_generic(name)]
    return out


def _tensor_plan(model: nn.Module, experts: set[str], result: Cut) -> dict[str, str]:
    """The plan of transformers with what engines split besides, without expert-parallel modules."""
    rules = _ungathered(model, dict(model.tp_plan))  # type: ignore[arg-type]
    names = {_generic(n) for n, _ in [*model.named_modules(), *model.named_parameters()]}
    added = {name: style for name in sorted(names - set(rules)) if (style := _engine_rule(name))}
    added |= _expert_rules(model, rules)
    by_expert = {_generic(name) for name in experts}
    result.added = sorted(
        {name for name in added if not name.endswith(".experts") and name not in by_expert}
    )
    plan = _expand(model, {**rules, **added})
    return {
        name: style
        for name, style in plan.items()
        if name not in experts and not any(name.startswith(f"{owner}.") for owner in experts)
    }


def _engine_rule(name: str) -> str | None:
    # a compressed past has no heads: its compressor is complete on every rank
    if ".experts" in name or ".compressor." in name:
        return None
    for pattern, style in ENGINE_RULES.items():
        if name.endswith(pattern.removeprefix("*")):
            return style
    return None


def _ungathered(model: nn.Module, rules: dict[str, str]) -> dict[str, str]:
    """The plan without gathering Q, K and V.

    Where a norm spans all heads (OLMo 2, MiniMax M2) transformers gathers them and caches every
    head on every rank. Engines keep a rank's own heads with its share of the norm, and so does
    this.
    """
    out = dict(rules)
    for name, module in model.named_modules():
        generic, kind = _generic(name), _generic(name).rpartition(".")[2]
        if kind in ("q_proj", "k_proj", "v_proj") and "gather" in rules.get(generic, ""):
            out[generic] = "colwise"
            out[generic.removesuffix(kind) + "o_proj"] = "rowwise"
        if kind in ("q_norm", "k_norm") and _spans_heads(model, name, module):
            out.pop(generic, None)
            out[f"{generic}.weight"] = "colwise"
    return out


def _spans_heads(model: nn.Module, name: str, norm: nn.Module) -> bool:
    """Return whether a norm has a weight for every output of its projection, not one head's."""
    weight = getattr(norm, "weight", None)
    projection = model.get_submodule(name.replace("_norm", "_proj"))
    head = getattr(model.get_submodule(name.rpartition(".")[0]), "head_dim", None)
    return (
        isinstance(weight, torch.Tensor)
        and weight.numel() == getattr(projection, "out_features", 0) != head
    )


def _expert_rules(model: nn.Module, rules: Mapping[str, str]) -> dict[str, str]:
    """Rules for stacked experts that transformers' plan leaves whole."""
    out: dict[str, str] = {}
    for name, module in model.named_modules():
        generic = _generic(name)
        if (
            generic.endswith(".experts")
            and generic not in rules
            and getattr(module, "is_transposed", False)
        ):
            out |= {f"{generic}.{key}": style for key, style in TRANSPOSED_EXPERTS.items()}
            out[generic] = "moe_tp_experts"
    return out


def _repeat_kv_heads(model: nn.Module, tp: int) -> bool:
    """Gives K and V one head per rank where ranks outnumber heads; whether any were.

    Engines hold each head ``tp / kv_heads`` times.
    """
    repeated = False
    for module in model.modules():
        head = getattr(module, "head_dim", None)
        for name in ("k_proj", "v_proj"):
            old = getattr(module, name, None)
            if not (isinstance(head, int) and isinstance(old, nn.Linear)):
                continue
            if old.out_features >= tp * head:
                continue
            new = nn.Linear(
                old.in_features,
                head,
                bias=old.bias is not None,
                device="meta",
                dtype=old.weight.dtype,
            )
            setattr(module, name, new.requires_grad_(False))
            norm = getattr(module, "k_norm", None)
            norm_size = getattr(norm, "weight", new.weight).numel()
            if name == "k_proj" and norm_size == old.out_features != head:
                norm.weight = nn.Parameter(norm.weight[:head], requires_grad=False)  # type: ignore[union-attr]
            repeated = True
    return repeated


def _unsplit(model: nn.Module, plan: Mapping[str, str], experts: Mapping[str, str]) -> list[str]:
    """Matrices that no rule splits, so that every rank holds them whole."""
    names = {
        _generic(n)
        for n, p in model.named_parameters()
        if p.ndim > 1 and n not in plan and n not in experts
    }
    return sorted(name for name in names if not re.search(r"\.[kv]_proj\.", name))


def localise(model: nn.Module) -> None:
    """Replaces parameters and buffers by this rank's share, as fake CPU tensors.

    Call it under FakeTensorMode.
    """
    shares: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                share = nn.Parameter(_local(parameter), requires_grad=False)
                # tied parameters stay one
                module._parameters[name] = shares.setdefault(id(parameter), share)
        if isinstance(module, nn.Embedding):
            # transformers' own switch for a lookup in this rank's plain rows
            setattr(module, _PLAIN_ROWS, True)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")


def _local(parameter: torch.Tensor) -> torch.Tensor:
    share = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return torch.empty(share.shape, dtype=share.dtype, device="cpu")
