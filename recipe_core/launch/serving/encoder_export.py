"""Make the file that an encoder's backend of Triton reads, from a Hugging Face checkpoint.

It travels in bundles and needs torch and transformers, and for its backend onnx and onnxscript
(ONNX Runtime, TensorRT), onnxruntime (int8), or openvino and nncf. ``python3 encoder_export.py
--model FOLDER --task embed --backend onnxruntime --precision fp16 --output FOLDER``.

Pooling and normalisation are part of the graph, so that a server only tokenizes. They are those of
``modules.json`` and ``1_Pooling/config.json``, as Sentence Transformers writes them; without these
a text's vector is the mean over its tokens.
"""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILES = {"onnxruntime": "model.onnx", "openvino": "model.xml", "tensorrt": "model.plan"}
# Names of the result, which no part of a model has.
OUTPUTS = {"embed": "text_vector", "score": "text_score"}
TRTEXEC = ("trtexec", "/usr/src/tensorrt/bin/trtexec", "/opt/tensorrt/bin/trtexec")


class ExportError(Exception):
    """A model that cannot be exported, for the command line."""


def pooling_of(folder: Path) -> tuple[str, bool]:
    """Read how a text's vector is made of its tokens' (cls, mean, last), and if it gets length 1.

    Raises:
        ExportError: for a pooling that is none of these.
    """
    modules = folder / "modules.json"
    if not modules.is_file():
        return "mean", False
    kinds = [str(module.get("type", "")) for module in json.loads(modules.read_text("utf-8"))]
    normalises = any(kind.endswith("Normalize") for kind in kinds)
    path = folder / "1_Pooling" / "config.json"
    pooling: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    words = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "last"}
    for word, kind in words.items():
        if pooling.get(f"pooling_mode_{word}"):
            return kind, normalises
    if pooling.get("pooling_mode", "mean") in ("cls", "mean", "last"):
        return str(pooling.get("pooling_mode", "mean")), normalises
    raise ExportError(f"{path} states no pooling that is known: {', '.join(words)}")


def load_encoder(folder: str, task: str, precision: str) -> Any:
    """The checkpoint as a torch module of token numbers and mask, with the result as output.

    ``forward(input_ids, attention_mask[, token_type_ids])``, each (batch, tokens) of int64; the
    result is (batch, width) or (batch, 1) of float32.
    """
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    model_class = AutoModel if task == "embed" else AutoModelForSequenceClassification
    kind, normalises = pooling_of(Path(folder)) if task == "embed" else ("", False)
    dtype = torch.float16 if precision == "fp16" else torch.float32
    model = model_class.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")

    # decoders that embed would return their cache too
    takes = inspect.signature(model.forward).parameters
    without = {"use_cache": False} if "use_cache" in takes else {}

    class Encoder(torch.nn.Module):
        """The model with what makes one result of its tokens' vectors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **without}
            if token_type_ids is not None:
                inputs["token_type_ids"] = token_type_ids
            out = self.model(**inputs)
            if task == "score":
                return out.logits[:, :1].float()
            vector = pooled(out.last_hidden_state.float(), attention_mask)
            return torch.nn.functional.normalize(vector, dim=-1) if normalises else vector

    def pooled(hidden: Any, mask: Any) -> Any:
        if kind == "cls":
            return hidden[:, 0]
        if kind == "last":
            # texts are padded on the right
            last = mask.sum(dim=1, keepdim=True).unsqueeze(-1) - 1
            return hidden.gather(1, last.expand(-1, 1, hidden.shape[-1]))[:, 0]
        weights = mask.unsqueeze(-1).float()
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)

    return Encoder().eval()


def trace_inputs(names: Sequence[str], batch: int = 2, tokens: int = 8) -> tuple[Any, ...]:
    """Inputs of a trace: two texts, one of them shorter."""
    import torch

    ids = torch.ones((batch, tokens), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[-1, tokens // 2 :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return tuple(inputs[name] for name in names)


def to_onnx(module: Any, names: Sequence[str], output: str, path: Path) -> None:
    """An ONNX file whose batch and length are free."""
    import torch

    batch, tokens = torch.export.Dim("batch", min=1), torch.export.Dim("tokens", min=2)
    shapes = {name: {0: batch, 1: tokens} for name in names}
    torch.onnx.export(
        module,
        trace_inputs(names),
        str(path),
        input_names=list(names),
        output_names=[output],
        dynamic_shapes=shapes,
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def to_int8(source: Path, path: Path) -> None:
    """Weights of products in int8, activations quantised as they come (dynamic quantisation)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(source), str(path), weight_type=QuantType.QInt8, per_channel=True)


def to_openvino(source: Path, precision: str, path: Path) -> None:
    """OpenVINO's representation of an ONNX file; weights in 16 bit, or int8 by NNCF."""
    import openvino

    converted = openvino.convert_model(str(source))
    if precision == "int8":
        import nncf

        converted = nncf.compress_weights(converted, mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(converted, str(path), compress_to_fp16=precision in ("fp16", "bf16"))


def trtexec_words(
    source: Path, path: Path, names: Sequence[str], batch: int, tokens: int
) -> list[str]:
    """The command that builds an engine for batches and lengths up to these.

    Number formats are those of the ONNX file (``--stronglyTyped``).
    """
    program = next((p for p in TRTEXEC if shutil.which(p)), None)
    if program is None:
        raise ExportError("trtexec is not there; it comes with TensorRT and in its containers")

    def shapes(rows: int, columns: int) -> str:
        return ",".join(f"{name}:{rows}x{columns}" for name in names)

    return [
        program,
        f"--onnx={source}",
        f"--saveEngine={path}",
        "--stronglyTyped",
        f"--minShapes={shapes(1, 2)}",
        f"--optShapes={shapes(max(batch // 2, 1), max(tokens // 2, 2))}",
        f"--maxShapes={shapes(batch, tokens)}",
    ]


def export_encoder(options: argparse.Namespace) -> Path:
    """Write the file of the backend, and the tokenizer beside it; the path of the file."""
    names = options.inputs.split(",")
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILES[options.backend]
    source = options.model if Path(options.model).is_dir() else _download_model(options.model)
    _save_tokenizer(source, folder)
    stored = options.precision if options.backend != "openvino" else "fp32"
    module = load_encoder(source, options.task, stored)
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "model.onnx"
        to_onnx(module, names, OUTPUTS[options.task], plain)
        if options.backend == "openvino":
            to_openvino(plain, options.precision, path)
        elif options.backend == "tensorrt":
            words = trtexec_words(plain, path, names, options.max_batch, options.max_tokens)
            subprocess.run(words, check=True)
        elif options.precision == "int8":
            to_int8(plain, path)
        else:
            shutil.copyfile(plain, path)
    return path


def _download_model(model: str) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(model, ignore_patterns=["*.bin", "*.h5", "*.onnx", "*.msgpack"])


def _save_tokenizer(source: str, folder: Path) -> None:
    """The tokenizer as one file, which a server reads without transformers."""
    path = Path(source) / "tokenizer.json"
    if path.is_file():
        shutil.copyfile(path, folder / "tokenizer.json")
        return
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(source).backend_tokenizer.save(str(folder / "tokenizer.json"))


def encoder_export_parser() -> argparse.ArgumentParser:
    """Return what the program takes."""
    parser = argparse.ArgumentParser(description="Export an encoder for a backend of Triton.")
    parser.add_argument("--model", required=True, help="a folder, or an id of the hub")
    parser.add_argument("--task", choices=["embed", "score"], required=True)
    parser.add_argument("--backend", choices=sorted(FILES), required=True)
    parser.add_argument("--precision", choices=["fp32", "fp16", "bf16", "int8"], default="fp32")
    parser.add_argument("--inputs", default="input_ids,attention_mask")
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--output", required=True, help="the folder to write to")
    return parser


def main(words: Sequence[str]) -> int:
    """Export; 1 with a message where that is not possible."""
    try:
        sys.stdout.write(f"{export_encoder(encoder_export_parser().parse_args(words))}\n")
    except (ExportError, ImportError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"encoder_export: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
