"""The oracle of the memory formulas: the real transformers model of one rank, run without data.

Parameters are created on torch's meta device and split by transformers' own parallel plan in a fake
process group; the forward pass runs under fake tensors, so shapes, dtypes and lifetimes are real
and nothing is allocated. Needs the ``torch`` extra; importing this package does not. One trace at a
time: torch's process group is global.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting
from recipe_core.estimates.serving.memory import serving_memory
from recipe_core.estimates.serving.weights import stage_layer_bounds
from recipe_core.models.attention import CompressedAttention
from recipe_core.models.spec import ModelSpec
from recipe_core.models.tensors import bytes_per_value

if TYPE_CHECKING:
    from oracle.rank import Rank
    from recipe_core.plans.plan import Plan

__all__ = ["trace"]

_INSTALL = 'Install them with: pip install "recipe-builder[torch]".'
_LOCK = threading.Lock()


def trace(table: Plan, row: int) -> dict[str, Any]:
    """Return what the real model of a row holds on a device, as JSON, and the formulas' error.

    weights_bytes: parameters of the fullest rank, counted in ``weight_dtype`` (the base format of a
    quantised checkpoint). kv_bytes_per_token, kv_request_bytes: growth of the model's own cache per
    token, and its size for one request at full length, with bytes of ``kv_dtype`` per element.
    kv_needed_bytes: the latter times the requests held at once. activations_peak_bytes: the most
    that is alive beside parameters and cache in a forward pass of ``tokens`` tokens;
    layers_peak_bytes: the same without logits. The formula's workspace is not compared with it, as
    that includes the sampler. differences: formula / trace − 1 on the same dtypes.

    Raises:
        InputError: torch or transformers are missing, or transformers cannot run this model.
    """
    setting, cases, sequences = _case(table, row)
    need_torch()
    started = time.perf_counter()
    with _LOCK, _quiet("transformers", "torch._subclasses.fake_tensor"):
        try:
            return _trace(setting, cases, sequences, started)
        except RecipeError:
            raise
        except (
            Exception
        ) as error:  # a model's code may fail in any way without data: one clear line
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            raise InputError(
                f"transformers cannot trace {setting.model.name}: {type(error).__name__}: {reason}",
                field="trace",
                hint="The estimate itself does not need --trace.",
            ) from error


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Silences loggers below a crash for a while: they warn about data, of which there is none."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def need_torch() -> None:
    """Checks that torch and transformers are installed.

    Raises:
        InputError: one of them is missing.
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"tracing needs torch and transformers: {error}.", field="trace", hint=_INSTALL
        ) from None


def _case(table: Plan, row: int) -> tuple[Setting, Cases, float]:
    block, i = table.at(row)
    estimates, k = block.detail(i)
    memory = estimates.memory
    return (
        block.setting,
        block.cases.take([i]),
        float(memory.kv_needed_bytes[k] / max(memory.sequence_bytes[k], 1.0)),
    )


def _trace(setting: Setting, cases: Cases, sequences: float, started: float) -> dict[str, Any]:
    from oracle.rank import rank_of

    tp, pp, dp, ep = (int(getattr(cases, name)[0]) for name in ("tp", "pp", "dp", "ep"))
    wide = setting.weight_dtype if setting.weight_dtype in WIDE else setting.model.dtype
    request, tokens = _request_tokens(cases), _step_tokens(setting, cases)
    value_bytes = bytes_per_value(setting.kv_dtype)
    with rank_of(
        setting.model, wide, tp=tp, dp=dp, ep=ep, widths=_widths(setting.model, value_bytes)
    ) as rank:
        per_token = rank.cached_bytes_per_token(value_bytes)
        per_request = rank.cached_bytes(request, value_bytes)
        stages = stage_layer_bounds(len(rank.kind_of), min(pp, len(rank.kind_of)))
        weights = [rank.weight_bytes(a, b) for a, b in stages]
        caches = [sum(per_request[rank.kind_of[i]] for i in range(a, b)) for a, b in stages]
        totals = [w + sequences * c for w, c in zip(weights, caches, strict=True)]
        fullest = int(np.argmax(totals))
        a, b = stages[fullest]
        sampled = min(int(cases.max_num_seqs[0]), tokens) if b == len(rank.kind_of) else 0
        traced: dict[str, Any] = {
            "weights_bytes": weights[fullest],
            "weight_dtype": wide,
            "kv_bytes_per_token": sum(per_token[rank.kind_of[i]] for i in range(a, b)),
            "kv_request_bytes": caches[fullest],
            "kv_needed_bytes": sequences * caches[fullest],
            "kv_dtype": setting.kv_dtype,
            "activations_peak_bytes": rank.activation_peak_bytes(
                tokens, embeds=a == 0, sampled=sampled
            ),
            "layers_peak_bytes": rank.activation_peak_bytes(tokens, embeds=a == 0),
            "tokens": tokens,
            "stage": fullest,
            "layers": b - a,
            "layers_traced": len(rank.layers),
            "whole_on_every_rank": rank.unsplit,
            "method": _method(setting, rank, wide, tp, dp, ep),
        }
    traced["seconds"] = round(time.perf_counter() - started, 2)
    traced["differences"] = _differences(setting, cases, wide, traced, rank.span)
    return traced


def _widths(model: ModelSpec, value_bytes: float) -> dict[int, float]:
    """Bytes of a compressed past's vectors by width, in the engines' own layouts."""
    out: dict[int, float] = {}
    for attention in (layer.attention for layer, _ in model.kinds):
        if isinstance(attention, CompressedAttention):
            out[attention.head_dim] = attention.entry_bytes(value_bytes)
            if attention.index_heads:
                out[attention.index_head_dim] = attention.index_entry_bytes
    return out


def _request_tokens(cases: Cases) -> int:
    return int(min(cases.input_tokens[0] + cases.output_tokens[0], cases.max_context[0]))


def _step_tokens(setting: Setting, cases: Cases) -> int:
    """Tokens of the largest step: the engine's batch, or a whole prompt without chunked prefill."""
    batched = float(cases.max_batched_tokens[0])
    return int(batched if setting.engine.chunked_prefill else max(batched, cases.input_tokens[0]))


def _differences(
    setting: Setting, cases: Cases, wide: str, traced: dict[str, Any], span: tuple[int, int]
) -> dict[str, float]:
    """Formula / trace − 1 for the traced dtypes and one request; growth over whole blocks.

    The pages that an engine pads where layers of several kinds share a pool are not the model's.
    """
    use = setting.engine.memory.model_copy(update={"groups": None})
    apart = setting.engine.model_copy(update={"memory": use})
    same = replace(setting, weight_dtype=wide, engine=apart)
    block, single = cases.block_tokens, np.ones(1)
    start, stop = (
        np.ceil(tokens / block) * block
        for tokens in (span if span[0] > block[0] else (block, 2 * block))
    )

    def request_bytes(tokens: Any) -> float:
        short = replace(cases, input_tokens=tokens, output_tokens=single * 0, max_context=tokens)
        return float(serving_memory(same, short, single).sequence_bytes[0])

    sequences = single * (traced["kv_needed_bytes"] / max(traced["kv_request_bytes"], 1))
    formula = serving_memory(same, cases, sequences)
    growth = (request_bytes(stop) - request_bytes(start)) / float((stop - start)[0])
    pairs = {
        "weights": (float(formula.weights_bytes[0]), traced["weights_bytes"]),
        "kv": (growth, traced["kv_bytes_per_token"]),
        "kv_request": (float(formula.sequence_bytes[0]), traced["kv_request_bytes"]),
    }
    return {name: value / real - 1 for name, (value, real) in pairs.items() if real > 0}


def _method(setting: Setting, rank: Rank, wide: str, tp: int, dp: int, ep: int) -> str:
    """Say what was really built, as sentences for the user."""
    import torch
    import transformers

    sentences = [
        f"{rank.class_name} of transformers {transformers.__version__}, all {len(rank.kind_of)} "
        f"layers on torch {torch.__version__}'s meta device in {wide}; one layer of each of the "
        f"{len(rank.layers)} kinds is split and run under fake tensors and stands for the others."
    ]
    if tp * dp > 1 and (tp > 1 or ep > 1):
        sentences.append(
            f"Split for rank 0 of a fake process group of {tp * dp} by transformers' own plan."
        )
    if rank.added:
        sentences.append(f"Added to that plan, as engines split: {', '.join(rank.added)}.")
    if rank.repeated_kv:
        sentences.append(
            f"transformers cannot split the KV heads over TP {tp}: K and V were built with one "
            "head per rank, as engines replicate them."
        )
    if rank.gathered:
        sentences.append(
            f"transformers gathers {', '.join(rank.gathered)}: its cache keeps them complete on "
            "every rank; engines keep a share."
        )
    if rank.widths:
        sentences.append(
            "Engines keep in padded blocks what transformers keeps of a compressed past; states of "
            "unfinished entries are fp32 there."
        )
    if ep > 1 and dp > 1:
        sentences.append(
            "Activations exclude tokens that other data-parallel ranks send to this rank's experts."
        )
    if wide != setting.weight_dtype:
        sentences.append(f"{setting.weight_dtype} weights are traced, and compared, as {wide}.")
    sentences.append(
        "Attention allocates its output and log-sum-exp, as fused kernels do; every other operator "
        "what it allocates in eager mode."
    )
    sentences.append("Left out: the sampler and rope scaling.")
    return " ".join(sentences)
