"""The model that clients ask: texts in, vectors or scores out; Triton's Python backend runs it.

It travels in bundles as ``model.py`` and needs numpy and tokenizers. Batches form here, where all
requests have the same shape; the encoder then gets one request a batch, padded to its longest text.
(Before the encoder itself Triton would only join requests whose texts have equally many tokens.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

PADS = ("[PAD]", "<pad>", "<|endoftext|>", "<|pad|>")


class TritonPythonModel:
    """One instance; it calls the encoder and waits for it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters of ``config.pbtxt`` and the tokenizer beside this file."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        self.encoder, self.result = parameters["encoder"], parameters["result"]
        self.inputs, self.output = parameters["inputs"].split(","), parameters["output"]
        self.pairs = any(place["name"] == "query" for place in config["input"])
        path = Path(args["model_repository"]) / args["model_version"] / "tokenizer.json"
        self.tokenizer = read_tokenizer(path, int(parameters["max_tokens"]))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One batch: all texts of the requests that Triton gathered, in one call."""
        texts = [_request_texts(request, "text") for request in requests]
        queries = (
            [_request_texts(request, "query") for request in requests] if self.pairs else texts
        )
        rows: list[Any] = [text for of_one in texts for text in of_one]
        if self.pairs:
            flat_queries = [query for of_one in queries for query in of_one]
            rows = list(zip(flat_queries, rows, strict=True))
        inputs = tokens_of(self.tokenizer, rows)
        call = pb_utils.InferenceRequest(
            model_name=self.encoder,
            requested_output_names=[self.result],
            inputs=[pb_utils.Tensor(name, inputs[name]) for name in self.inputs],
        )
        answer = call.exec()
        if answer.has_error():
            error = pb_utils.TritonError(answer.error().message())
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        tensor = pb_utils.get_output_tensor_by_name(answer, self.result)
        values = to_numpy(tensor)
        counts = inputs["attention_mask"].sum(axis=1, keepdims=True).astype(np.int32)
        ends = np.cumsum([len(of_one) for of_one in texts])[:-1]
        return [
            pb_utils.InferenceResponse(
                output_tensors=[pb_utils.Tensor(self.output, v), pb_utils.Tensor("tokens", n)]
            )
            for v, n in zip(np.split(values, ends), np.split(counts, ends), strict=True)
        ]


def _request_texts(request: Any, name: str) -> list[str]:
    values = pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()
    return [v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in values]


def read_tokenizer(path: Path, max_tokens: int) -> Tokenizer:
    """The tokenizer, told to pad a batch to its longest text and to cut longer ones."""
    tokenizer = Tokenizer.from_file(str(path))
    padding = tokenizer.padding or {}
    pads = ((word, tokenizer.token_to_id(word)) for word in PADS)
    word, number = next(((w, n) for w, n in pads if n is not None), (PADS[0], 0))
    tokenizer.enable_padding(
        pad_id=padding.get("pad_id", number), pad_token=padding.get("pad_token", word)
    )
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def tokens_of(tokenizer: Tokenizer, rows: Sequence[Any]) -> dict[str, Any]:
    """Texts, or pairs of them, as the inputs of an encoder: each (texts, longest) of int64."""
    encoded = tokenizer.encode_batch(list(rows))
    return {
        "input_ids": np.array([encoding.ids for encoding in encoded], dtype=np.int64),
        "attention_mask": np.array(
            [encoding.attention_mask for encoding in encoded], dtype=np.int64
        ),
        "token_type_ids": np.array([encoding.type_ids for encoding in encoded], dtype=np.int64),
    }


def to_numpy(tensor: Any) -> Any:
    """The values of a tensor, which may lie on a GPU."""
    if tensor.is_cpu():
        return tensor.as_numpy()
    import torch
    from torch.utils.dlpack import from_dlpack

    out: torch.Tensor = from_dlpack(tensor.to_dlpack())
    return out.cpu().numpy()
