"""Low-rank adapters (Hu et al., arXiv:2106.09685) by peft: where they go, and what comes out."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import TrainError
from .settings import Lora, Settings

# What the names of attention's blocks have in them.
_ATTENTION = re.compile(r"att(entio)?n|mixer")


def check_adapters(settings: Settings, model: str | None) -> None:
    """Refuse adapters that cannot be trained; ``model`` is the folder of the weights, if any.

    Raises:
        TrainError: with what to change.
    """
    if settings.lora is None:
        return
    if find_spec("peft") is None:
        raise TrainError("adapters need peft, which is not installed.", hint="pip install peft")
    if settings.model.weights != "pretrained" or model is None:
        raise TrainError(
            "adapters need the weights of a model, and there are none.",
            hint="Set a folder with them: --model FOLDER.",
        )
    if settings.split.tp > 1:
        raise TrainError(
            f"peft's adapters are not cut by tensor parallelism (TP {settings.split.tp}).",
            hint="Set tp: 1.",
        )


def make_lora_config(model: Any, lora: Lora) -> Any:
    """Return peft's configuration: linear layers of every block of ``model``, as estimated."""
    from peft import LoraConfig

    kinds = {
        name.rpartition(".")[2]: "attention" if _ATTENTION.search(name) else "mlp"
        for name, module in model.model.layers.named_modules()
        if isinstance(module, nn.Linear)
    }
    names = [name for name, kind in kinds.items() if lora.targets in (kind, "all")]
    alpha: Any = lora.alpha  # which peft multiplies, whole or not
    return LoraConfig(
        r=lora.rank, lora_alpha=alpha, target_modules=sorted(names), task_type="CAUSAL_LM"
    )


def add_adapters(model: Any, lora: Lora) -> None:
    """Freeze a model on the meta device, and add adapters to it, which alone learn."""
    from peft import inject_adapter_in_model

    inject_adapter_in_model(make_lora_config(model, lora), model, low_cpu_mem_usage=True)


def start_adapters(
    learning: Iterable[tuple[str, nn.Parameter]], seed: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return adapters as peft starts them, by name: the same on any number of devices."""
    weights = {}
    for name, parameter in learning:
        weights[name] = torch.zeros(parameter.shape, device=device)
        if ".lora_A." in name:
            torch.manual_seed(seed + zlib.crc32(name.encode()))
            nn.init.kaiming_uniform_(weights[name], a=math.sqrt(5))
    return weights


def merge_adapters(base: Any, lora: Lora, read: Any, folder: Path) -> Any:
    """Return ``base`` with the adapters merged, which are written to ``folder`` in peft's format.

    ``read`` fills tensors by name, in place.

    Raises:
        TrainError: when they are not finite.
    """
    from peft import get_peft_model

    tuned: Any = get_peft_model(base, make_lora_config(base, lora))
    learned = {
        name: parameter.data
        for name, parameter in tuned.get_base_model().named_parameters()
        if parameter.requires_grad
    }
    read(learned)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in learned.values()):
        raise TrainError(
            "the adapters are not finite; nothing was exported.",
            hint="Train with a lower learning rate.",
        )
    tuned.save_pretrained(folder, save_embedding_layers=False)
    return tuned.merge_and_unload()
