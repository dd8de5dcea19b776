"""The making of a checkpoint that nobody publishes, before it is served."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.texts import Name
from recipe_core.base.types import Text

Tool = Literal[
    "auto",
    "llm-compressor",
    "modelopt",
    "quark",
    "gptqmodel",
    "llama-cpp",
    "optimum-onnx",
    "optimum-openvino",
    "embedded",
]
Method = Literal[
    "auto", "RTN", "GPTQ", "AWQ", "SmoothQuant", "AutoRound", "magnitude", "Wanda", "SparseGPT"
]
OutputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Samples = Annotated[int, Field(ge=1, le=1 << 20)]
Length = Annotated[int, Field(ge=16, le=1 << 20)]


class Calibration(DescribedModel):
    """Texts that pass through the model while scales or rounding are chosen."""

    samples: Samples | None = None
    """Texts that are used; left out, what the method usually takes. Methods without calibration
    (``RTN`` of weights) use none."""

    tokens: Length = 2048
    """Length of each, in tokens."""

    text: Name | None = None
    """File of texts on the machine that does it: ``.txt`` with blank lines between texts, or
    ``.jsonl`` with a field ``text``; left out, the text of the bundle, which is small: use texts of
    your own traffic where accuracy counts."""


class Verify(DescribedModel):
    """The test of the result against the base."""

    text: Name | None = None
    """File of text whose perplexity is measured; left out, the text of the bundle."""

    tokens: Length = 2048
    """Tokens of that text that count."""

    prompts: Annotated[int, Field(ge=1, le=4096)] = 8
    """Prompts that base and result continue greedily."""

    new_tokens: Annotated[int, Field(ge=1, le=4096)] = 32
    """Tokens that each of them adds to a prompt."""

    least_retained: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Smallest share of the base's perplexity that counts as good: base over result."""


class Compression(DescribedModel):
    """A checkpoint that the bundle makes itself: ``python launch.py compress``."""

    technique: Text | None = None
    """What is made, by its name in ``recipe_core/accuracy/techniques.yaml``
    (``int4_weight_only``, ``gguf_q4_k_m``); left out, the usual one for the format of the layout's
    weights."""

    tool: Tool = "auto"
    """Program that makes it; ``auto`` is the first that can and whose result the engine loads."""

    method: Method = "auto"
    """Algorithm; ``auto`` is the one that the tool prefers for the technique."""

    calibration: Calibration = Calibration()
    """Texts for methods that need some."""

    verify: Verify = Verify()
    """How the result is checked."""

    output: OutputName | None = None
    """Name of the folder that it is written to, in ``run/compressed/`` of the bundle; left out,
    model and technique."""

    @model_validator(mode="after")
    def _gguf_has_its_maker(self) -> Self:
        gguf = (self.technique or "").startswith("gguf_")
        if gguf and self.tool not in ("auto", "llama-cpp"):
            raise ValueError(f"technique {self.technique} is made by llama-cpp, not {self.tool}")
        return self
