"""Requests as a format hands them over, and the trace that they make."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.scaling.traces.formats.content import MOST_REQUESTS, Content, wrong
from recipe_core.scaling.traces.trace import Blocks, Trace


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in the order of the file; every array has one number a request.

    origin_s: seconds since 1970 at which ``arrival_s`` is 0, None where the file has no dates.
    failed: requests that are known to have failed. note: how something was read, for people.
    """

    arrival_s: Float
    input_tokens: Int
    output_tokens: Int
    blocks: Blocks | None = None
    sessions: Int | None = None
    failed: Bool | None = None
    origin_s: float | None = None
    note: str = ""


def build_trace(requests: Requests, title: str, content: Content) -> Trace:
    """The trace: sorted by arrival, without failed requests, counted from the first one.

    A request without tokens in its prompt or its answer failed, unless no answer of the whole file
    has any: then it is of embeddings or scores.

    Raises:
        InputError: when there are no requests, too many, or all failed.
    """
    count = len(requests.arrival_s)
    if not count:
        raise wrong(f"{content.title} has no requests.", "Give a file with some lines.")
    if count > MOST_REQUESTS:
        raise wrong(
            f"{content.title} has {count:,} requests; the limit is {MOST_REQUESTS:,}.",
            "Give a part of it.",
        )
    failed = requests.input_tokens == 0
    if requests.output_tokens.any():
        failed |= requests.output_tokens == 0
    if requests.failed is not None:
        failed |= requests.failed
    if failed.all():
        raise wrong(
            f"all {count:,} requests of {content.title} failed or have no tokens.",
            "Give a file with the lengths of prompts and answers.",
        )
    order = np.flatnonzero(~failed)
    order = order[np.argsort(requests.arrival_s[order], kind="stable")]
    arrival = requests.arrival_s[order]
    dated = requests.origin_s is not None
    return Trace(
        arrival_s=arrival - arrival[0],
        input_tokens=requests.input_tokens[order],
        output_tokens=requests.output_tokens[order],
        blocks=_select_blocks(requests.blocks, order),
        sessions=_number_sessions(requests.sessions, order),
        failed=int(failed.sum()),
        source=", ".join(filter(None, (content.name, title, requests.note))),
        began_s=float(arrival[0]) + (requests.origin_s or 0.0) if dated else None,
    )


def _select_blocks(blocks: Blocks | None, order: Int) -> Blocks | None:
    if blocks is None:
        return None
    counts = np.diff(blocks.starts)[order]
    starts = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(int(starts[-1])) - np.repeat(starts[:-1], counts)
    ids = blocks.ids[np.repeat(blocks.starts[:-1][order], counts) + within]
    return Blocks(ids, starts, blocks.tokens)


def _number_sessions(sessions: Int | None, order: Int) -> Int | None:
    """Sessions as numbers from 0 on; a request without one is a session of its own."""
    if sessions is None:
        return None
    numbers = sessions[order].copy()
    alone = numbers < 0
    if alone.all():
        return None
    numbers[alone] = int(numbers.max()) + 1 + np.arange(int(alone.sum()))
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)
