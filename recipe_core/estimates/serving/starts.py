"""With which probability an engine starts, by how far start-ups are from estimates of memory.

An engine starts where what it needs fits into its share of the device. Both are estimates, so that
a shortfall of less than their error proves nothing: between two documented probabilities a start
is uncertain. The numbers are in ``starts.yaml``, with their source.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.data_files import DataRow
from recipe_core.base.documents import read_shipped
from recipe_core.base.units import chance_text, gib
from recipe_core.estimates.bands import normal_probability
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.kernels import kernel_support_of
from recipe_core.estimates.rules.widths import unknown_cuts, unproven_blocks
from recipe_core.estimates.serving.cache_blocks import assumed_layout
from recipe_core.estimates.serving.memory import Memory, serving_memory

Share = Annotated[float, Field(ge=0, le=1)]


# The share of a card that is taken as free where nobody told what its driver holds.
FREE_UNTOLD = 0.98


class Held(DataRow):
    """The memory in use on an idle card once a process opened it: a lognormal number of bytes.

    Its median is ``bytes`` and ``share`` of the memory, ``spread`` the scale of its logarithm.
    """

    bytes: Annotated[float, Field(gt=0)]
    share: Share
    spread: Annotated[float, Field(gt=0, le=3)]


class StartErrors(DataRow):
    """``starts.yaml``: scales of the error of memory, as shares of what each is of.

    ``share``: of the engine's share of the device, ``unified`` where a processor has it too,
    ``uncounted`` where an option moves memory that is not counted, and on slices of assumed memory;
    ``cache``: of the longest request's cache; ``reserved``: of pools that an engine sizes for as
    many requests as it thinks may run; ``named`` and ``partial``: of weights whose format is
    read from a name, or of which a tower is left out. ``unlogged``: how many times as much for
    engines that are not ``logged``.
    ``without_blocks``: the share of owners whose FP8 has none. ``unknown``: how often an engine
    starts with kernels that nobody knows of, ``unasked`` with usual ones of a release or an engine
    that was not asked, ``stated`` with those that an option names. ``bounds``: probabilities
    between which a start is uncertain; ``held``: what of a card is not free, by runtime; ``sure``:
    what changes are to reach.
    """

    schema_version: Literal[1]
    source: str
    share: Share
    unified: Share
    uncounted: Share
    cache: Share
    reserved: Share
    named: Share
    partial: Share
    unlogged: Annotated[float, Field(ge=1, le=10)]
    logged: tuple[str, ...]
    without_blocks: Share
    unknown: Share
    unasked: Share
    stated: Share
    bounds: tuple[Share, Share]
    held: dict[str, Held]
    sure: Share

    @model_validator(mode="after")
    def _rising(self) -> StartErrors:
        low, high = self.bounds
        if not 0 < low <= self.without_blocks <= high <= self.sure < 1:
            raise ValueError("bounds must rise, hold without_blocks and not exceed sure, below 1")
        return self


@cache
def start_errors() -> StartErrors:
    """The numbers that this version ships."""
    return StartErrors.model_validate(read_shipped(Path(__file__).with_name("starts.yaml")))


def start_scale_bytes(setting: Setting, memory: Memory) -> Float:
    """The scale of the error of ``usable - start`` bytes, one per case.

    ``sqrt((s·usable)² + (c·cache)² + (w·weights)²)`` with ``w`` only where the weights are not
    counted from the checkpoint's own config in full.
    """
    errors, model = start_errors(), setting.model
    beside = 0.0 if setting.engine.memory.pool == "static" else 1.0
    fixed = memory.weights_bytes + beside * (memory.activations_bytes + memory.runtime_bytes)
    cached = np.maximum(memory.start_bytes - fixed, 0.0)
    format_error = errors.named if format_by_name(setting) else 0.0
    partial = errors.partial if model.partial else 0.0
    weights = np.hypot(format_error, partial) * memory.weights_bytes
    device = setting.cluster.device
    share = errors.unified if device.unified else errors.share
    moved = "memory" in setting.effects.moved or assumed_layout(setting) is not None
    if moved or (device.slice_of and device.memory_bytes.status == "assumed"):
        share = math.hypot(share, errors.uncounted)
    knows_sequences = not setting.effects.sequences_open
    cache = (errors.cache if knows_sequences else errors.reserved) * cached
    scale = np.hypot(share * memory.usable_bytes, np.hypot(cache, weights))
    family = setting.engine.wraps or setting.engine.name
    return np.asarray(scale * (1.0 if family in errors.logged else errors.unlogged))


def format_by_name(setting: Setting) -> bool:
    """Return whether weights have the checkpoint's own format, which only its name tells."""
    stored = setting.model.quantization
    return stored is not None and stored.by_name and stored.dtype == setting.weight_dtype


def memory_probability(setting: Setting, memory: Memory) -> Float:
    """The probability that what an engine needs to start fits into its share, one per case.

    The shorter counts of the cache for its longest request and of memory for captured graphs.
    Student's t with two degrees of freedom: ``1/2 + x / (2·sqrt(2 + x²))``.
    """
    scores = -memory.shortfall_bytes / start_scale_bytes(setting, memory)
    return np.asarray(0.5 + scores / (2 * np.sqrt(2 + scores**2)))


def claim_probability(setting: Setting, shares: Float) -> Float:
    """The probability that each share of memory that an engine claims is free when it looks.

    Some start only where their share of the whole memory is free, however little they need. What a
    card of its own holds besides is lognormal (`Held`); of memory that a processor shares, what is
    free is that of the profile, with a normal error. 1 for engines that claim nothing.
    """
    device, errors = setting.cluster.device, start_errors()
    claim = setting.engine.memory.claim
    if claim is None or device.runtime in claim.stated:
        return np.ones(len(shares))
    reported_bytes = device.told_memory_bytes
    if device.unified:
        free = device.usable_memory_bytes - reported_bytes * shares
        return normal_probability(free / (errors.unified * reported_bytes))
    if device.runtime not in errors.held:  # nobody told; on one MI300X all of it was free
        return np.where(shares > FREE_UNTOLD, errors.unknown, 1.0)
    unclaimed, driver_use = reported_bytes * np.maximum(1 - shares, 0), errors.held[device.runtime]
    median = driver_use.bytes + driver_use.share * reported_bytes
    return normal_probability(np.log(np.maximum(unclaimed, 1.0) / median) / driver_use.spread)


def fullest_share(setting: Setting, probability: float) -> float:
    """The largest share of memory, in hundredths, that is free so probably at a start."""
    shares = np.arange(99, 0, -1) / 100
    free = np.flatnonzero(claim_probability(setting, shares) >= probability)
    return float(shares[free[0]]) if len(free) else float(shares[-1])


def claim_text(setting: Setting, share: float) -> str:
    """Say what an engine claims of a device, what of it is free, and the share that surely is."""
    device = setting.cluster.device
    reported_bytes, title = device.told_memory_bytes, setting.engine.title
    claimed = (
        f"{title} starts only where {share:g} of the {gib(reported_bytes)} that it sees are free"
    )
    if device.unified:
        free = f"about {gib(device.usable_memory_bytes)} are, as the processor shares them"
    else:
        driver_use = start_errors().held.get(device.runtime)
        size = (
            f"about {gib(driver_use.bytes + driver_use.share * reported_bytes)}"
            if driver_use
            else "some"
        )
        free = f"the driver holds {size} of them itself"
    fullest = fullest_share(setting, start_errors().sure)
    return f"{claimed}; {free}: set memory_fraction to {fullest:g} or less"


def claim_doubt(setting: Setting, share: float) -> list[str]:
    """The sentence that a claim is uncertain; none where it is surely free, or surely not."""
    chance = claim_probability(setting, np.array([share]))
    return [claim_text(setting, share)] if bool(is_serving_uncertain(chance)[0]) else []


def kernel_probability(setting: Setting) -> float:
    """The probability that the engine has the kernels, by what its release was asked."""
    kernel_support, errors = kernel_support_of(setting), start_errors()
    if kernel_support.unknown:
        return errors.unknown
    stated_chance = errors.stated if "start" in setting.effects.moved else 1.0
    return stated_chance * (errors.unasked if kernel_support.unasked else 1.0)


def serving_start_probability(setting: Setting, cases: Cases, memory: Memory) -> Float:
    """The probability that each case starts: it fits, its claim is free, the engine has kernels.

    A format that is read from a name refuses nothing, nor do kernels that nobody knows of: they
    make what they concern uncertain, never impossible.
    """
    fits, errors = memory_probability(setting, memory), start_errors()
    chance = np.full(len(cases), kernel_probability(setting))
    for broken in unknown_cuts(setting, cases).values():
        chance = np.where(broken, np.minimum(chance, errors.unknown), chance)
    guessed = errors.without_blocks * chance
    chance = np.where(unproven_blocks(setting, cases), guessed, chance)
    low, fits = errors.bounds[0], fits * claim_probability(setting, cases.memory_fraction)
    return np.where(fits < low, fits, np.where(chance < 1, np.maximum(chance * fits, low), fits))


def cannot_start(probability: Float) -> Bool:
    """Cases below the lower bound: their memory is too small beyond the error of estimates."""
    return np.asarray(probability < start_errors().bounds[0])


def is_serving_uncertain(probability: Float) -> Bool:
    """Cases between the bounds; NaN, where there is no estimate, is none of them."""
    low, high = start_errors().bounds
    return np.asarray((probability >= low) & (probability < high))


# How the sentence begins that a start is uncertain.
DOUBT = "may not start"


def serving_doubt_text(setting: Setting, cases: Cases, memory: Memory, probability: float) -> str:
    """Say why the start of a single case is uncertain, as a sentence without its full stop."""
    short = float(memory.shortfall_bytes[0])
    doubts = [
        *claim_doubt(setting, float(cases.memory_fraction[0])),
        *kernel_support_of(setting).unknown,
    ]
    doubts += [cut_text for cut_text, broken in unknown_cuts(setting, cases).items() if broken[0]]
    if "start" in setting.effects.moved:
        doubts.append(f"options name kernels that may not run on {setting.cluster.device.title}")
    if doubts and not bool(is_serving_uncertain(memory_probability(setting, memory))[0]):
        chance = chance_text(math.floor(probability * 100) / 100)
        return f"{DOUBT}: {'; '.join(doubts)}; starts with a probability of {chance}"
    # rounded down, so that none reads as the bound that it is below
    chance = chance_text(math.floor(probability * 100) / 100)
    if memory.captures_lack_memory[0]:
        requests = f"each of up to {cases.max_num_seqs[0]:,.0f} requests"
        needs = f"CUDA graphs need a block of cache for {requests}"
    else:
        needs = (
            f"needs {gib(memory.start_bytes[0])} per GPU to start with one request of "
            f"{cases.accepted_tokens[0]:,.0f} tokens, {gib(memory.usable_bytes[0])} usable"
        )
    by = f"{gib(abs(short))} {'short' if short > 0 else 'left'}"
    text = f"{DOUBT}: {needs}, {by}"
    if bool(is_serving_uncertain(memory_probability(setting, memory))[0]):
        text += ", which is within the error of the estimate"
    if bool(unproven_blocks(setting, cases)[0]):
        text += (
            "; blocks of scales, as such a name usually means, would not be cut evenly, and only "
            "the checkpoint's config.json says whether it has them"
        )
    elif format_by_name(setting):
        text += "; the weights' format is read from the model's name"
    for doubt in doubts:
        text += f"; {doubt}"
    return f"{text}; starts with a probability of {chance}"


# What would make a start certain

# Lengths that a round of the search for the longest asks for.
LENGTHS = 65


def starts_with(setting: Setting, cases: Cases, probability: float) -> Bool:
    """Cases whose memory fits with at least a probability."""
    needed, chance = (
        serving_memory(setting, cases, np.ones(len(cases))),
        kernel_probability(setting),
    )
    if chance <= start_errors().unknown:  # which no change of memory cures
        chance = 1.0
    free = claim_probability(setting, cases.memory_fraction)
    return np.asarray(memory_probability(setting, needed) * free * chance >= probability)


def longest_context(setting: Setting, case: Cases, shortest: int, probability: float) -> int | None:
    """The longest context in tokens, whole blocks, with which a single case starts so probably.

    None where it does not with ``shortest``. What a longer request needs never falls, so that every
    round asks for a few lengths at once between one that starts and one that does not.
    """
    block = int(case.block_tokens[0])

    def starts(blocks: Int) -> Bool:
        same = case.take(np.zeros(len(blocks), dtype=np.int64))
        longest = (blocks * block).astype(np.float64)
        longer = replace(same, max_context=longest, told_context=longest)
        return starts_with(setting, longer, probability)

    low, high = -(-shortest // block), int(case.accepted_tokens[0]) // block
    if high < low or not starts(np.array([low]))[0]:
        return None
    while low < high:
        lengths = np.unique(np.linspace(low, high, LENGTHS).round().astype(np.int64))[1:]
        fitting = starts(lengths)
        sure, beyond = lengths[fitting], lengths[~fitting]
        low = int(sure.max()) if len(sure) else low
        high = int(beyond.min()) - 1 if len(beyond) else low
    return low * block
