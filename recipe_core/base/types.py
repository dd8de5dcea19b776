"""Numbers, texts and number formats that a field of a document may hold."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

Tokens = Annotated[int, Field(ge=1, le=1 << 30)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Degree = Annotated[int, Field(ge=1, le=1 << 16)]
Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Spread = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
WeightDtype = Literal[
    "auto",
    "bf16",
    "fp16",
    "fp32",
    "fp8",
    "fp8-block",
    "int8",
    "int4",
    "mxfp4",
    "nvfp4",
]
# What a request asks for: text that goes on, a vector of a text, or a score of one (or of a pair).
Task = Literal["generate", "embed", "score"]
KvDtype = Literal["auto", "bf16", "fp16", "fp32", "fp8", "nvfp4"]
