"""The oracle of the memory formulas: the real transformers model of one rank, built and run without data.

Parameters are made on torch's meta device and cut by transformers' own parallel plan in a fake process group; the forward runs
under fake tensors, so shapes, dtypes and lifetimes are real and nothing is allocated. Needs the ``torch`` extra; importing this
package does not. One trace at a time: torch's process group is global.
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
from recipe_core.model.compressed import CompressedAttention
from recipe_core.model.dtypes import bytes_per_value
from recipe_core.model.spec import ModelSpec
from recipe_core.physics.serving.memory import memory
from recipe_core.physics.serving.weights import stage_layers
from recipe_core.space.serving import WIDE, Cases, Setting

if TYPE_CHECKING:
    from recipe_core.calibration.trace.rank import Rank
    from recipe_core.search.serving_plan import ServingPlan

__all__ = ["trace"]

_INSTALL = 'Install them with: pip install "recipe-builder[torch]".'
_LOCK = threading.Lock()


def trace(table: ServingPlan, row: int) -> dict[str, Any]:
    """What the real model of a row holds on one device, as plain JSON values, and how far the formulas are from it.

    weights_bytes: parameters of the fullest rank, counted in ``weight_dtype`` (a quantised checkpoint's base format).
    kv_bytes_per_token, kv_request_bytes: what the model's own cache grows by a token, and holds of one request at its full
    length; elements are counted, bytes are those of ``kv_dtype``. kv_needed_bytes: the latter times the requests held at once.
    activations_peak_bytes: the most that is alive beside parameters and cache in a forward of ``tokens`` tokens;
    layers_peak_bytes: the same without the logits. The formula's workspace is not compared to it: that includes the sampler.
    differences: formula / trace − 1 on the same dtypes.

    Raises:
        InputError: torch or transformers are missing, or transformers cannot build or run this model.
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
        ) as error:  # anything that a model's code does without data ends here, as one clear line
            said = str(error).strip().splitlines() or [""]
            raise InputError(
                f"transformers cannot trace {setting.model.name}: {type(error).__name__}: {said[0][:200]}",
                field="trace",
                hint="The estimate itself does not need --trace.",
            ) from error


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Loggers that say nothing below a crash for a while: their warnings are about data, which there is none of."""
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
    """Raise InputError where torch or transformers are missing."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"tracing needs torch and transformers: {error}.", field="trace", hint=_INSTALL
        ) from None


def _case(table: ServingPlan, row: int) -> tuple[Setting, Cases, float]:
    """The setting and the single case of a row, and the requests that its estimate holds at once."""
    block, i = table.at(row)
    estimates, k = block.detail(i)
    memory = estimates.memory
    return (
        block.setting,
        block.cases.take([i]),
        float(memory.kv_needed_bytes[k] / max(memory.sequence_bytes[k], 1.0)),
    )


def _trace(setting: Setting, cases: Cases, sequences: float, started: float) -> dict[str, Any]:
    from recipe_core.calibration.trace.rank import rank_of

    tp, pp, dp, ep = (int(getattr(cases, name)[0]) for name in ("tp", "pp", "dp", "ep"))
    wide = setting.weight_dtype if setting.weight_dtype in WIDE else setting.model.dtype
    request, tokens = _request_tokens(cases), _step_tokens(setting, cases)
    value_bytes = bytes_per_value(setting.kv_dtype)
    with rank_of(
        setting.model, wide, tp=tp, dp=dp, ep=ep, widths=_widths(setting.model, value_bytes)
    ) as rank:
        per_token = rank.cached_bytes_per_token(value_bytes)
        per_request = rank.cached_bytes(request, value_bytes)
        stages = stage_layers(len(rank.kind_of), min(pp, len(rank.kind_of)))
        weights = [rank.weight_bytes(a, b) for a, b in stages]
        held = [sum(per_request[rank.kind_of[i]] for i in range(a, b)) for a, b in stages]
        fullest = int(np.argmax([w + sequences * h for w, h in zip(weights, held, strict=True)]))
        a, b = stages[fullest]
        sampled = min(int(cases.max_num_seqs[0]), tokens) if b == len(rank.kind_of) else 0
        found: dict[str, Any] = {
            "weights_bytes": weights[fullest],
            "weight_dtype": wide,
            "kv_bytes_per_token": sum(per_token[rank.kind_of[i]] for i in range(a, b)),
            "kv_request_bytes": held[fullest],
            "kv_needed_bytes": sequences * held[fullest],
            "kv_dtype": setting.kv_dtype,
            "activations_peak_bytes": rank.activation_peak_bytes(
                tokens, embeds=a == 0, sampled=sampled
            ),
            "layers_peak_bytes": rank.activation_peak_bytes(tokens, embeds=a == 0),
            "tokens": tokens,
            "stage": fullest,
            "layers": b - a,
            "layers_traced": len(rank.layers),
            "whole_on_every_rank": rank.whole,
            "method": _method(setting, rank, wide, tp, dp, ep),
        }
    found["seconds"] = round(time.perf_counter() - started, 2)
    return found | {"differences": _differences(setting, cases, wide, found, rank.span)}


def _widths(model: ModelSpec, value_bytes: float) -> dict[int, float]:
    """Bytes of the vectors of a compressed past, by their width: engines keep those in layouts of their own."""
    out: dict[int, float] = {}
    for attention in (layer.attention for layer, _ in model.kinds):
        if isinstance(attention, CompressedAttention):
            out |= {attention.head_dim: attention.entry_bytes(value_bytes)}
            out |= (
                {attention.index_head_dim: attention.index_entry_bytes}
                if attention.index_heads
                else {}
            )
    return out


def _request_tokens(cases: Cases) -> int:
    """Length of one request at its end, as the estimate counts it."""
    return int(min(cases.input_tokens[0] + cases.output_tokens[0], cases.max_context[0]))


def _step_tokens(setting: Setting, cases: Cases) -> int:
    """Tokens of the largest step: what the engine batches, or a whole prompt where it does not cut prompts."""
    batched = float(cases.max_batched_tokens[0])
    return int(batched if setting.engine.chunked_prefill else max(batched, cases.input_tokens[0]))


def _differences(
    setting: Setting, cases: Cases, wide: str, found: dict[str, Any], span: tuple[int, int]
) -> dict[str, float]:
    """Formula / trace − 1, the formula asked for the dtypes that were traced and for one request; growth over whole blocks."""
    same = replace(setting, weight_dtype=wide)
    block = cases.block_tokens
    start, stop = (
        np.ceil(tokens / block) * block
        for tokens in (span if span[0] > block[0] else (block, 2 * block))
    )
    one = np.ones(1)

    def held(tokens: Any) -> float:
        short = replace(cases, input_tokens=tokens, output_tokens=one * 0, max_context=tokens)
        return float(memory(same, short, one).sequence_bytes[0])

    whole = memory(
        same, cases, one * (found["kv_needed_bytes"] / max(found["kv_request_bytes"], 1))
    )
    pairs = {
        "weights": (float(whole.weights_bytes[0]), found["weights_bytes"]),
        "kv": ((held(stop) - held(start)) / float((stop - start)[0]), found["kv_bytes_per_token"]),
        "kv_request": (float(whole.sequence_bytes[0]), found["kv_request_bytes"]),
    }
    return {name: formula / traced - 1 for name, (formula, traced) in pairs.items() if traced > 0}


def _method(setting: Setting, rank: Rank, wide: str, tp: int, dp: int, ep: int) -> str:
    """What was really built, in sentences."""
    import torch
    import transformers

    says = [
        f"{rank.class_name} of transformers {transformers.__version__}, all {len(rank.kind_of)} layers on torch {torch.__version__}'s "
        f"meta device in {wide}; one layer of each of the {len(rank.layers)} kinds is cut and run under fake tensors, the others count as "
        "their equals."
    ]
    if tp * dp > 1 and (tp > 1 or ep > 1):
        says.append(
            f"Cut for rank 0 of a fake process group of {tp * dp} by transformers' own plan."
        )
    if rank.added:
        says.append(f"Added to that plan, as engines cut: {', '.join(rank.added)}.")
    if rank.repeated_kv:
        says.append(
            f"transformers cannot cut the KV heads over tp {tp}: K and V were built with one head a rank, as engines repeat them."
        )
    if rank.gathered:
        says.append(
            f"transformers gathers {', '.join(rank.gathered)}: what its cache keeps of them is whole on every rank; engines keep a share."
        )
    if rank.widths:
        says.append(
            "What transformers keeps of a compressed past engines keep in padded blocks; states of unfinished entries are in fp32 there."
        )
    if ep > 1 and dp > 1:
        says.append(
            "Tokens that other data-parallel ranks send to this rank's experts are not among the activations."
        )
    if wide != setting.weight_dtype:
        says.append(f"The {setting.weight_dtype} weights are traced, and compared, as {wide}.")
    says.append(
        "Attention allocates its output and log-sum-exp as fused kernels do, every other operator what it makes in eager mode."
    )
    says.append("Left out: the sampler and rope scaling.")
    return " ".join(says)
