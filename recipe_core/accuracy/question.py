"""A question about accuracy, and the terms that its answer is summed from.

A term is a name ("technique", "size × text", …) with a level ("int4_weight_only") and a
multiplier. Every figure that is fitted and every question that is asked goes through
``question_terms``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from recipe_core.accuracy.names import NamedBenchmark, NamedModel, naming_words, size_in
from recipe_core.accuracy.published import published_figures
from recipe_core.accuracy.technique import Technique
from recipe_core.accuracy.technique import technique as technique_named

# Bits a weight between which the term of bits is interpolated.
KNOTS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 8.0)
# Billions of parameters at which the term of size is 0, and of a model of unknown size.
USUAL_B = 8.0
SIZES_B = (0.3, 700.0)
NOMINAL_GROUP = 128
# Weights a scale of groups that are no number: a row of a usual matrix; blocks act like rows.
_GROUPS = {"channel": 4096, "128x128": 512}

Term = tuple[str, str, float]


@dataclass(frozen=True, slots=True)
class Question:
    """The subject of a question, or of a published figure.

    weight_bits, removed and group (weights that share a scale, 0: unknown) are those of this
    method, where it does not do as the technique says.
    """

    model: NamedModel
    technique: str
    of: Technique
    method: str
    benchmark: NamedBenchmark
    weight_bits: float
    removed: float
    group: float = 0.0

    @property
    def treatment(self) -> str:
        """Say what is made smaller."""
        if self.of.kind == "weights and activations" and self.of.act_bits >= 16:
            return "weights"
        return self.of.kind

    @property
    def quantised(self) -> bool:
        return self.treatment in {"weights", "weights and activations"}

    @property
    def small_blocks(self) -> bool:
        """Return whether activations and weights share scales in blocks of the format itself."""
        return (self.of.group or "").isdecimal()

    @property
    def range(self) -> str:
        """Techniques that lose about the same, for what depends on how much is lost."""
        if self.treatment == "kv cache":
            return "cache 8" if self.of.kv_bits >= 6 else "cache 4"
        if not self.quantised:
            return self.treatment
        if min(self.weight_bits, self.of.act_bits) >= 6:
            return "8"
        if self.of.act_bits < 8:
            # One scale a row does not hold outliers of activations; scales of small blocks do.
            return "4 activations" if self.small_blocks else "4 activations by row"
        if self.weight_bits >= 3.95:
            return "4"
        return "3" if self.weight_bits >= 2.95 else "2"


def scale_group_size(name: str) -> float:
    """Weights that share a scale, by the name of a group; 0 where there is none."""
    return _GROUPS.get(name) or (float(name) if name.isdecimal() else 0.0)


@cache
def typical_settings() -> dict[tuple[str, str], tuple[float, float, float]]:
    """Bits, removed share and group of a technique by a method, as most figures have them."""
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for row in published_figures():
        values = (row.weight_bits, row.removed, scale_group_size(row.group))
        rows.setdefault((row.technique, row.method), []).append(values)
    medians = {pair: np.median(values, axis=0) for pair, values in rows.items()}
    return {pair: (float(a), float(b), float(c)) for pair, (a, b, c) in medians.items()}


@cache
def _spellings() -> dict[str, str]:
    """Methods as figures spell them, by their small letters and by themselves."""
    methods = {method for _, method in typical_settings()}
    return {method.casefold(): method for method in methods} | {
        method: method for method in methods
    }


def build_question(
    model: NamedModel, technique: str, method: str, benchmark: NamedBenchmark
) -> Question:
    """A question, with the bits, removed share and group that are usual.

    Raises:
        InputError: for a technique that has no name here.
    """
    spec = technique_named(technique)
    method = _spellings().get(method) or _spellings().get(method.casefold(), method)
    nominal = (spec.weight_bits, spec.removed, scale_group_size(spec.group or ""))
    bits, removed, group = typical_settings().get((technique, method), nominal)
    sibling_b = size_in(method) if spec.kind == "distillation" else None
    if sibling_b is not None and model.parameters_b:
        removed = min(max(1 - sibling_b / model.parameters_b, 0.05), 0.98)
    return Question(model, technique, spec, method, benchmark, bits, removed, group)


def method_words(method: str) -> list[str]:
    """The parts of a method's name: ``FlatQuant+RTN`` is FlatQuant and RTN."""
    text = method.casefold().replace("gs64", "g64")
    return sorted({word for word in re.split(r"[^a-z0-9.*]+", text) if word})


def method_class(method: str) -> str:
    """Say what a method does about rounding; "" where its name does not tell."""
    parts = set(method_words(method))
    classes = naming_words().method_classes
    return next((rounding.name for rounding in classes if parts.intersection(rounding.words)), "")


def question_terms(question: Question) -> Iterator[Term]:
    """Terms of a question: name, level and multiplier."""
    yield from _treatment_terms(question)
    yield from _method_terms(question)
    yield from _model_terms(question)
    yield from _benchmark_terms(question)


def question_outcome(question: Question) -> str:
    """Say what is measured: tasks, perplexity or divergence."""
    return question.benchmark.kind if question.benchmark.likelihood else "tasks"


def _treatment_terms(question: Question) -> Iterator[Term]:
    text = question_outcome(question)
    yield "text", text, 1.0
    yield "treatment", question.treatment, 1.0
    yield "range × text", f"{question.range}|{text}", 1.0
    yield "technique", question.technique, 1.0
    yield "technique × text", f"{question.technique}|{text}", 1.0
    if question.quantised:
        for knot, share in _interpolation_knots(question.weight_bits):
            yield "bits", knot, share
        yield "bits × text", text, question.weight_bits - 4
        if question.of.act_bits < 16:
            yield "activations", f"{question.of.act_bits:g}", 1.0
    if question.of.kv_bits < 16:
        yield "cache", f"{question.of.kv_bits:g}", 1.0
        yield "bits of cache", text, question.of.kv_bits - 4
    if question.removed > 0:
        yield "removed", question.treatment, math.log(question.removed / (1 - question.removed))
    if question.group > 0 and question.quantised and question.weight_bits < 8:
        yield "group", "", math.log2(question.group / NOMINAL_GROUP)


def _interpolation_knots(bits: float) -> Iterator[tuple[str, float]]:
    """The knots on both sides, with the share of each."""
    bits = min(max(bits, KNOTS[0]), KNOTS[-1])
    low, high = next(pair for pair in pairwise(KNOTS) if pair[0] <= bits <= pair[1])
    share = (bits - low) / (high - low)
    if share < 1:
        yield f"{low:g}", 1 - share
    if share > 0:
        yield f"{high:g}", share


def _method_terms(question: Question) -> Iterator[Term]:
    text, method = question_outcome(question), question.method
    if not method:
        yield from (("method", "", 1.0), ("word", "", 1.0), ("word × range", "", 1.0))
        return
    kind = method_class(method)
    yield "class", kind, 1.0
    yield "class × range", f"{kind}|{question.range}", 1.0
    yield "method", method, 1.0
    yield "method × technique", f"{method}|{question.technique}", 1.0
    yield "method × benchmark", f"{method}|{question.benchmark.name}", 1.0
    yield "method × series", f"{method}|{question.model.series}", 1.0
    for word in method_words(method):
        yield "word", word, 1.0
        yield "word × range", f"{word}|{question.range}", 1.0
        yield "word × text", f"{word}|{text}", 1.0


def log_size(question: Question) -> float:
    """Logarithm of the parameters, 0 at the usual size."""
    size_b = min(max(question.model.parameters_b or USUAL_B, SIZES_B[0]), SIZES_B[1])
    return math.log(size_b / USUAL_B)


def _model_terms(question: Question) -> Iterator[Term]:
    model, text, size = question.model, question_outcome(question), log_size(question)
    yield "size", "", size
    yield "size × text", text, size
    yield "series", model.series, 1.0
    yield "model", model.name, 1.0
    yield "model × range", f"{model.name}|{question.range}", 1.0
    yield "model × technique", f"{model.name}|{question.technique}", 1.0
    yield "model × method", f"{model.name}|{question.method}", 1.0


def _benchmark_terms(question: Question) -> Iterator[Term]:
    benchmark = question.benchmark
    yield "kind", benchmark.kind, 1.0
    yield "kind × range", f"{benchmark.kind}|{question.range}", 1.0
    if benchmark.long_chain:
        yield "long chain × range", question.range, 1.0
    if benchmark.of_kind:
        return
    stem = benchmark.stem
    yield "benchmark", benchmark.name, 1.0
    yield "stem × range", f"{stem}|{question.range}", 1.0
    if not benchmark.likelihood:
        yield "stem × size", stem, log_size(question)
    yield "stem × technique", f"{stem}|{question.technique}", 1.0
    yield "stem × line", f"{stem}|{question.model.line}", 1.0
    yield "stem × series", f"{stem}|{question.model.series}", 1.0
    yield "stem × model", f"{stem}|{question.model.name}", 1.0
