"""Verdicts of techniques: by engine on a device, by hardware, and beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recipe_core.accuracy.accuracy import combine_retained
from recipe_core.accuracy.knowledge import combination, support_of
from recipe_core.accuracy.published import Retained
from recipe_core.accuracy.runners import Support, families, family_of, runners
from recipe_core.accuracy.technique import techniques
from recipe_core.compression.advisor.changed_model import Change, NoChange, change_of
from recipe_core.compression.advisor.comparison import Base, judge_change
from recipe_core.compression.advisor.row import FormatRow, Split
from recipe_core.hardware.profile import Device

# Figures whose product is held against what is estimated for both.
SHOWN = ("weights_bytes", "cache_tokens", "ttft_s", "tpot_s", "usd_per_million_output_tokens")
# Pairs that people ask for: weights with caches, weights with fewer weights, and both at once.
TRIED: tuple[tuple[str, str], ...] = (
    ("fp8_w8a8", "kv_fp8"),
    ("int8_w8a8", "kv_fp8"),
    ("int8_w8a8", "kv_int8"),
    ("int4_weight_only", "kv_fp8"),
    ("int4_weight_only", "kv_int8"),
    ("int4_weight_only", "kv_int4"),
    ("nvfp4_w4a4", "kv_fp8"),
    ("mxfp4_w4a4", "kv_fp8"),
    ("gguf_q4_k_m", "kv_int8"),
    ("layer_pruning", "kv_fp8"),
    ("fp8_w8a8", "sparse_2_4"),
    ("int4_weight_only", "sparse_2_4"),
    ("fp8_w8a8", "sparse_unstructured"),
    ("fp8_w8a8", "layer_pruning"),
    ("int4_weight_only", "layer_pruning"),
    ("fp8_w8a8", "distilled_sibling"),
    ("fp8_w8a8", "low_rank"),
    ("fp8_w8a8", "int4_weight_only"),
    ("fp8_w8a8", "speculative_decoding"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two techniques together.

    ``effect``: void, multiply, exclusive or unknown, ``sentence`` why. ``product``: ratios to the
    base that each alone would give, multiplied; ``both``: the ratios of both together, estimated on
    the split of the base; None where no estimate is made.
    """

    first: str
    second: str
    effect: str
    sentence: str
    product: dict[str, float] | None
    both: dict[str, float] | None
    accuracy: Retained | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        accuracy = self.accuracy
        is_known = accuracy is not None and accuracy.known
        return {
            "techniques": [self.first, self.second],
            "effect": self.effect,
            "sentence": self.sentence,
            "product": self.product,
            "estimated": self.both,
            "retained": {"value": accuracy.value, "low": accuracy.low, "high": accuracy.high}
            if accuracy is not None and is_known
            else None,
        }


def technique_pairs(base: Base, rows: Sequence[FormatRow]) -> tuple[Pair, ...]:
    """Pairs of techniques that both are among ``rows``, those that multiply first."""
    by_name = {row.name: row for row in rows}
    engine = base.setting.engine.name
    if engine not in runners():
        return ()
    out = [
        _combine_pair(base, by_name[first], by_name[second])
        for first, second in TRIED
        if first in by_name and second in by_name
    ]
    order = ("multiply", "exclusive", "void", "unknown")
    return tuple(sorted(out, key=lambda pair: order.index(pair.effect)))


def _combine_pair(base: Base, first: FormatRow, second: FormatRow) -> Pair:
    answer = combination(
        first.name, second.name, base.setting.engine.name, base.setting.cluster.device
    )
    multiplies = answer.effect == "multiply"
    both = _judge_together(base, first, second) if multiplies else None
    product = None if both is None else _ratio_product(base.same_split, first, second)
    accuracy = combine_retained([first.accuracy, second.accuracy]) if multiplies else None
    return Pair(
        first.name,
        second.name,
        answer.effect,
        answer.sentence,
        product,
        None if both is None else _ratios(both, base.same_split),
        accuracy,
    )


def _judge_together(base: Base, first: FormatRow, second: FormatRow) -> Split | None:
    """Both at once on the split of the base: weights of the first in what the second leaves.

    Its cache, or its smaller model; None for other pairs.
    """
    if (
        first.same_split is None
        or second.same_split is None
        or not (first.same_split.runs and second.same_split.runs)
    ):
        return None
    second_change = change_of(second.name, second.technique, base.setting, second.support.verdict)
    if isinstance(second_change, NoChange) or not (
        second_change.reshaped or second.technique.kind == "kv cache"
    ):
        return None
    setting = replace(base.setting, model=second_change.model)
    change = change_of(first.name, first.technique, setting, first.support.verdict)
    return (
        judge_change(base, change.with_cache_of(second_change)).same_split
        if isinstance(change, Change)
        else None
    )


def _ratios(split: Split, base: Split) -> dict[str, float]:
    ratios = {name: split.ratio(name, base) for name in SHOWN}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _ratio_product(base: Split, first: FormatRow, second: FormatRow) -> dict[str, float]:
    assert first.same_split is not None  # noqa: S101 - both were judged
    assert second.same_split is not None  # noqa: S101
    first_ratios, second_ratios = _ratios(first.same_split, base), _ratios(second.same_split, base)
    return {
        name: first_ratios[name] * second_ratios[name]
        for name in SHOWN
        if name in first_ratios and name in second_ratios
    }


# Types of GGUF files that stand for the others of their kind: engines tell K-quants, plain types
# and i-quants apart, no more.
SHOWN_OF_FILES = ("gguf_q4_k_m", "gguf_q8_0", "gguf_iq3_xxs")

# Support by technique, then by engine or family.
Cells = Mapping[str, Mapping[str, Support]]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Verdicts by technique and engine on ``device``, by technique and family under ``engine``.

    Only techniques of which some cell is known, and columns of which some technique is.
    """

    engine: str
    device: str
    by_engine: Cells
    by_hardware: Cells

    def to_json(self) -> dict[str, Any]:
        """Plain values: every cell with its verdict, the words it rests on, and where they are."""
        return {
            "engines_on": self.device,
            "by_engine": _cells_json(self.by_engine),
            "hardware_under": self.engine,
            "by_hardware": _cells_json(self.by_hardware),
        }


def matrix_of(engine: str, device: Device) -> Matrix:
    names = [
        name for name in techniques() if not name.startswith("gguf_") or name in SHOWN_OF_FILES
    ]
    family = family_of(device)
    by_engine = {
        name: {column: support_of(name, column, device) for column in runners()} for name in names
    }
    by_hardware: dict[str, dict[str, Support]] = {}
    if engine in runners():
        by_hardware = {
            name: {column: support_of(name, engine, column) for column in families()}
            for name in names
        }
    return Matrix(
        engine,
        device.name,
        _known_cells(by_engine, engine) if family else {},
        _known_cells(by_hardware, family or ""),
    )


def _known_cells(cells: Cells, first: str) -> Cells:
    """Without rows and columns of which nothing is known.

    Columns in the order of how much is known, ``first`` before all.
    """
    known_of = Counter(
        column
        for row in cells.values()
        if len({cell.verdict for cell in row.values()}) > 1  # what is said of all says of none
        for column, cell in row.items()
        if cell.verdict != "unknown"
    )
    columns = sorted(known_of, key=lambda column: (column != first, -known_of[column]))
    ordered = {name: {column: row[column] for column in columns} for name, row in cells.items()}
    return {
        name: row
        for name, row in ordered.items()
        if any(cell.verdict != "unknown" for cell in row.values())
    }


def _cells_json(cells: Cells) -> dict[str, Any]:
    return {
        name: {column: _cell_json(support) for column, support in row.items()}
        for name, row in cells.items()
    }


def _cell_json(support: Support) -> dict[str, Any]:
    return {
        "verdict": support.verdict,
        "words": support.words or support.note or None,
        "min_version": support.min_version or None,
        "source": support.source or None,
        "url": support.url or None,
        "date": support.date or None,
    }
