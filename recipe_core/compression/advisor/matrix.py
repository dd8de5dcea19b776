"""Verdicts of techniques: by engine on a device, by hardware, and beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from recipe_core.accuracy.accuracy import combine_retained
from recipe_core.accuracy.combinations import combination
from recipe_core.accuracy.lookup import support_of
from recipe_core.accuracy.published import Retained
from recipe_core.accuracy.runners import Support, families, family_of, runners
from recipe_core.accuracy.technique import technique, techniques
from recipe_core.compression.advisor.changed_model import Change, NoChange, change_of
from recipe_core.compression.advisor.comparison import Base, judge_change
from recipe_core.compression.advisor.result import (
    FormatAnswer,
    PairAnswer,
    RetainedAnswer,
    SplitAnswer,
)
from recipe_core.compression.advisor.support import CellAnswer, MatrixAnswer
from recipe_core.estimates.columns.serving import Setting
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


def technique_pairs(
    base: Base, rows: Sequence[FormatAnswer], shares: Mapping[str, Retained]
) -> list[PairAnswer]:
    """Pairs of techniques that both are among ``rows``, those that multiply first.

    ``shares``: by technique what it keeps of the accuracy.
    """
    by_name = {row.technique: row for row in rows}
    if base.setting.engine.name not in runners():
        return []
    out = [
        _combine_pair(base, by_name[first], by_name[second], shares)
        for first, second in TRIED
        if first in by_name and second in by_name
    ]
    order = ("multiply", "exclusive", "void", "unknown")
    return sorted(out, key=lambda pair: order.index(pair.effect))


def _combine_pair(
    base: Base, first: FormatAnswer, second: FormatAnswer, shares: Mapping[str, Retained]
) -> PairAnswer:
    names = [first.technique, second.technique]
    engine, device = base.setting.engine.name, base.setting.cluster.device
    answer = combination(first.technique, second.technique, engine, device)
    both = retained = product = None
    if answer.effect == "multiply":
        both = _judge_together(base, first, second)
        retained = retained_answer(combine_retained([shares[name] for name in names]))
    if both is not None:
        alone = [_ratios(row.same_split) for row in (first, second)]
        product = {name: alone[0][name] * alone[1][name] for name in SHOWN if name in alone[0]}
    return PairAnswer(
        techniques=names,
        effect=answer.effect,
        sentence=answer.sentence,
        product=product,
        estimated=None if both is None else _ratios(both),
        retained=retained,
    )


def retained_answer(share: Retained) -> RetainedAnswer | None:
    """The share that is kept with its band; None where it is unknown."""
    if not share.is_known:
        return None
    return RetainedAnswer(value=share.value, low=share.low, high=share.high)


def _judge_together(base: Base, first: FormatAnswer, second: FormatAnswer) -> SplitAnswer | None:
    """Both at once on the split of the base: weights of the first in what the second leaves.

    Its cache, or its smaller model; None for other pairs.
    """
    splits = (first.same_split, second.same_split)
    if not all(split is not None and split.runs for split in splits):
        return None
    second_change = _change(second, base.setting)
    if isinstance(second_change, NoChange) or not (
        second_change.reshaped or second.kind == "kv cache"
    ):
        return None
    change = _change(first, replace(base.setting, model=second_change.model))
    if isinstance(change, NoChange):
        return None
    return judge_change(base, change.with_cache_of(second_change)).same_split


def _change(row: FormatAnswer, setting: Setting) -> Change | NoChange:
    return change_of(row.technique, technique(row.technique), setting, row.verdict)


def _ratios(split: SplitAnswer | None) -> dict[str, float]:
    ratios = {name: split.ratio(name) for name in SHOWN if split is not None}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


# Types of GGUF files that stand for the others of their kind: engines tell K-quants, plain types
# and i-quants apart, no more.
SHOWN_OF_FILES = ("gguf_q4_k_m", "gguf_q8_0", "gguf_iq3_xxs")

# Support by technique, then by engine or family.
Cells = Mapping[str, Mapping[str, Support]]


def matrix_of(engine: str, device: Device) -> MatrixAnswer:
    """Verdicts by technique and engine on ``device``, by technique and family under ``engine``.

    Only techniques of which some cell is known, and columns of which some technique is.
    """
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
    return MatrixAnswer(
        engines_on=device.name,
        by_engine=_known_cells(by_engine, engine) if family else {},
        hardware_under=engine,
        by_hardware=_known_cells(by_hardware, family or ""),
    )


def _known_cells(cells: Cells, first: str) -> dict[str, dict[str, CellAnswer]]:
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
    return {
        name: {column: _cell(row[column]) for column in columns}
        for name, row in cells.items()
        if any(row[column].verdict != "unknown" for column in columns)
    }


def _cell(support: Support) -> CellAnswer:
    names = ("min_version", "source", "url", "date")
    return CellAnswer(
        verdict=support.verdict,
        words=support.words or support.note or None,
        **{name: getattr(support, name) or None for name in names},
    )
