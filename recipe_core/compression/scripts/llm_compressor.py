"""LLM Compressor: ``oneshot`` with one modifier, or one that smooths and one that rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.compression.scripts.work import CompressionLaunch, Work, script, script_launch

# Scales of an FP8 cache, one a tensor.
_KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
_SPARSITY = 0.5
_MODULES = {
    "QuantizationModifier": "llmcompressor.modifiers.quantization",
    "GPTQModifier": "llmcompressor.modifiers.gptq",
    "AWQModifier": "llmcompressor.modifiers.transform.awq",
    "SmoothQuantModifier": "llmcompressor.modifiers.transform.smoothquant",
    "AutoRoundModifier": "llmcompressor.modifiers.autoround",
    "SparseGPTModifier": "llmcompressor.modifiers.pruning",
    "WandaPruningModifier": "llmcompressor.modifiers.pruning",
    "MagnitudePruningModifier": "llmcompressor.modifiers.pruning",
}
# Modifiers that are told which modules stay as they are.
_IGNORING = frozenset(_MODULES) - {"AWQModifier", "SmoothQuantModifier", "MagnitudePruningModifier"}
_RECIPE = """
def recipe(ignored):
    # What is applied, in this order; `ignored` modules stay as they are.
    return [
{lines}
    ]


def uneven(model):
    # Matrices whose rows are no whole number of groups, which stay as they are.
    modules = [(name, one) for name, one in model.named_modules() if isinstance(one, Linear)]
    names = [name for name, one in modules if one.in_features % GROUP and "lm_head" not in name]
    if names:
        print(f"no whole groups of {{GROUP}}, left as they are: {{', '.join(names)}}", flush=True)
    return names

"""
_BODY = """
def main():
    job, source, output = read_job()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    data = {}
    if CALIBRATED:
        rows = windows(job, tokenizer)
        columns = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
        data = {
            "dataset": Dataset.from_dict(columns),
            "num_calibration_samples": len(rows),
            "max_seq_length": job["calibration"]["tokens"],
            "shuffle_calibration_samples": False,
        }
    modifiers = recipe([*IGNORED, *uneven(model)])
    oneshot(model=model, tokenizer=tokenizer, recipe=modifiers, **data)
    model.save_pretrained(output, save_compressed=True)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    main()
"""


def compress_llm_compressor(work: Work) -> CompressionLaunch:
    """A script that calls ``oneshot`` and saves in the format of compressed-tensors."""
    recipe = modifiers(work)
    classes = sorted({name for name, _ in recipe})
    imports = [
        "from datasets import Dataset",
        "from llmcompressor import oneshot",
        *(f"from {_MODULES[name]} import {name}" for name in classes),
        "from torch.nn import Linear",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
    ]
    constants = {
        "IGNORED": work.ignored,
        "GROUP": work.choice.group,
        "CALIBRATED": work.choice.samples > 0,
    }
    body = (
        _RECIPE.format(lines="\n".join(f"        {_call(*modifier)}," for modifier in recipe))
        + _BODY
    )
    return script_launch(work, script(work, constants, body, *imports))


def _call(name: str, values: Mapping[str, Any]) -> str:
    """The making of a modifier, in Python."""
    words = [f"{key}={value!r}" for key, value in values.items()]
    return f"{name}({', '.join([*words, 'ignore=ignored'] if name in _IGNORING else words)})"


def modifiers(work: Work) -> list[tuple[str, dict[str, Any]]]:
    """Modifiers by the name of their class, with arguments, in the order they are applied."""
    compression = work.choice
    if compression.kind.kind == "sparsity":
        return [_sparsity_modifier(work)]
    rounding: dict[str, Any] = {"targets": ["Linear"], "scheme": compression.scheme}
    if compression.kv:
        rounding["kv_cache_scheme"] = _KV
    plain = ("QuantizationModifier", rounding)
    smooth = ("SmoothQuantModifier", {"smoothing_strength": 0.8})
    return {
        "RTN": [plain],
        "GPTQ": [("GPTQModifier", rounding)],
        "AutoRound": [("AutoRoundModifier", rounding | _tuning(work))],
        "AWQ": [("AWQModifier", {}), plain],
        "SmoothQuant": [smooth, plain],
    }[compression.method]


def _tuning(work: Work) -> dict[str, Any]:
    return {"enable_torch_compile": False} if work.runtime == "cpu" else {}


def _sparsity_modifier(work: Work) -> tuple[str, dict[str, Any]]:
    """A modifier that removes half of the weights."""
    compression = work.choice
    if compression.method == "magnitude":
        arguments = {"targets": ["Linear"], "init_sparsity": 0.0, "final_sparsity": _SPARSITY}
        return "MagnitudePruningModifier", arguments
    name = {"SparseGPT": "SparseGPTModifier", "Wanda": "WandaPruningModifier"}[compression.method]
    return name, {
        "sparsity": _SPARSITY,
        "mask_structure": compression.scheme,
        "targets": ["Linear"],
    }
