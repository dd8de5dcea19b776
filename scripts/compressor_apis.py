"""Arguments of compression tools, read from their sources without importing them.

    python scripts/compressor_apis.py FOLDER... [--write]

FOLDER: where wheels are unpacked, or a ``site-packages``. Writes tests/data/compressor_apis.json,
which tests hold rendered scripts against: names that exist, and the parameters of each.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "compressor_apis.json"
SPARSITY = "llmcompressor/modifiers/pruning/sparsegpt/sgpt_base.py:SparsityModifierBase"
MIXIN = "llmcompressor/modifiers/quantization/quantization/mixin.py:QuantizationMixin"
PLACES = {
    "llmcompressor": {
        "oneshot": "llmcompressor/entrypoints/oneshot.py",
        "QuantizationModifier": MIXIN,
        "GPTQModifier": "llmcompressor/modifiers/gptq/base.py",
        "AWQModifier": "llmcompressor/modifiers/transform/awq/base.py",
        "SmoothQuantModifier": "llmcompressor/modifiers/transform/smoothquant/base.py",
        "AutoRoundModifier": "llmcompressor/modifiers/autoround/base.py",
        "SparseGPTModifier": SPARSITY,
        "WandaPruningModifier": SPARSITY,
        "MagnitudePruningModifier": "llmcompressor/modifiers/pruning/magnitude/base.py",
    },
    "modelopt": {
        "quantize": "modelopt/torch/quantization/model_quant.py",
        "update_quant_cfg_with_kv_cache_quant": "modelopt/torch/quantization/utils/core_utils.py",
        "export_hf_checkpoint": "modelopt/torch/export/unified_export_hf.py",
    },
    "quark": {
        "get_config": "quark/torch/quantization/config/template.py",
        "list_available": "quark/torch/quantization/config/template.py",
        "quantize_model": "quark/torch/quantization/api.py",
        "freeze": "quark/torch/quantization/api.py",
        "export_safetensors": "quark/torch/export/api.py",
    },
    "gptqmodel": {
        "load": "gptqmodel/models/auto.py",
        "quantize": "gptqmodel/models/base.py",
        "Config": "gptqmodel/quantization/config.py:BaseQuantizeConfig",
    },
}
"""Names that scripts use, and the files that define them; a class whose fields another one has."""
MIXED = {"GPTQModifier", "AutoRoundModifier"}
"""Modifiers that have the fields of LLM Compressor's ``QuantizationMixin``, too."""
WORDS = {
    "compressed_tensors": ("compressed_tensors/quantization/quant_scheme.py", "PRESET_SCHEMES"),
    "modelopt_presets": ("modelopt/torch/quantization/config.py", "_CFG"),
    "quark_schemes": ("quark/torch/quantization/config/template.py", "_schemes"),
}


def main(argv: list[str]) -> int:
    """Print the table, or write it."""
    folders = [Path(word) for word in argv if not word.startswith("--")]
    table = {
        package: {name: sorted(_parameters(folders, name, place)) for name, place in names.items()}
        for package, names in PLACES.items()
    }
    for name in MIXED:
        fields = {*table["llmcompressor"][name], *_parameters(folders, name, MIXIN)}
        table["llmcompressor"][name] = sorted(fields)
    document: dict[str, Any] = {
        **table,
        "words": _words(folders),
        "optimum": _optimum_options(folders),
    }
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    if "--write" in argv:
        TABLE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def _source(folders: list[Path], path: str) -> ast.Module:
    for folder in folders:
        if (folder / path).is_file():
            return ast.parse((folder / path).read_text(encoding="utf-8"))
    raise SystemExit(f"{path} is in none of the folders.")


def _parameters(folders: list[Path], name: str, place: str) -> Iterator[str]:
    """Parameters of a function or method, or the fields of a class."""
    path, _, attribute = place.partition(":")
    for node in ast.walk(_source(folders, path)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            arguments = node.args
            parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            yield from (
                parameter.arg for parameter in parameters if parameter.arg not in ("self", "cls")
            )
            return
        if isinstance(node, ast.ClassDef) and node.name == (attribute or name):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id
            return
    raise SystemExit(f"{path} does not define {attribute or name}.")


def _words(folders: list[Path]) -> dict[str, list[str]]:
    """Names of schemes and presets."""
    out: dict[str, list[str]] = {}
    for key, (path, mark) in WORDS.items():
        tree = _source(folders, path)
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names |= _assigned(node.target.id, node.value, mark)
            elif (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Constant)
                and getattr(node.value, "attr", "") == mark
            ):
                names.add(str(node.slice.value))
        out[key] = sorted(names)
    return out


def _assigned(target: str, value: ast.expr | None, mark: str) -> set[str]:
    if target == mark and isinstance(value, ast.Dict):
        return {str(key.value) for key in value.keys if isinstance(key, ast.Constant)}
    return {target} if mark.startswith("_") and target.endswith(mark) else set()


def _optimum_options(folders: list[Path]) -> dict[str, list[str]]:
    """Options of ``optimum-cli``, by its command."""
    files = {
        "export openvino": "optimum/commands/export/openvino.py",
        "export onnx": "optimum/commands/export/onnx.py",
        "onnxruntime quantize": "optimum/commands/onnxruntime/quantize.py",
    }
    out = {}
    for command, path in files.items():
        words = [
            str(word.value)
            for node in ast.walk(_source(folders, path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
            for word in node.args
            if isinstance(word, ast.Constant)
        ]
        out[command] = sorted(words)
    return out


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
