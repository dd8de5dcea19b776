"""Prompts of a given length in tokens, without a tokenizer: the server counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .errors import RequestError

# Common words, which are one token each to nearly every tokenizer, so that prompts of the same
# number of words differ little in tokens.
_TEXT = """
the a model reads order kitchen serves meal plate time token text memory fast good recipe plan what
you need work cache large small long short guest waits line first next last machine cook table tray
full same many split step part shelf fit start stop count cost number answer says look keep write
make take less more than when then with from into after before each other all some way day
"""
WORDS = tuple(_TEXT.split())
_START_WORDS_PER_TOKEN = 0.7  # short at first: a prompt beyond the context would be refused
_TRIES = 5  # two or three suffice, but for servers that refuse the first lengths


@dataclass(frozen=True, slots=True)
class Prompts:
    """Random words, by seed and index; no two prompts share a prefix that caches could use."""

    words: int
    seed: int = 0

    def text(self, index: int) -> str:
        """The prompt of request ``index``."""
        pick = random.Random(self.seed * 1_000_003 + index)  # noqa: S311 - not a secret
        return " ".join(pick.choice(WORDS) for _ in range(self.words))


@dataclass(frozen=True, slots=True)
class Calibration:
    """The number of words for a prompt, and the tokens that the server counted, if it does."""

    words: int
    tokens: float | None


def calibrate_prompt_words(count: Callable[[int], float | None], target: int) -> Calibration:
    """Find the number of words whose prompts come closest to ``target`` tokens.

    ``count(words)`` is the mean tokens of such prompts, None where the server does not count.
    """
    words = max(1, round(target * _START_WORDS_PER_TOKEN))
    tried: dict[int, float] = {}
    refused: RequestError | None = None
    for _ in range(_TRIES):
        try:
            tokens = count(words)
        except RequestError as error:
            if words == 1:
                raise
            refused, words = error, max(1, words // 2)
            continue
        if not tokens:
            return Calibration(words, None)
        tried[words] = tokens
        words = _next(tried, words, target)
        if words in tried:
            break
    if not tried:
        raise refused or RequestError("the server did not count a single prompt")
    best = min(tried, key=lambda item: (abs(tried[item] - target), tried[item]))
    return Calibration(best, tried[best])


def _next(tried: dict[int, float], words: int, target: int) -> int:
    """The next number of words: along the line through two tries, else in proportion.

    A chat template adds a fixed part.
    """
    tokens = tried[words]
    candidates = [count for count in tried if tried[count] != tokens]
    slope = tokens / words
    if candidates:
        nearest = min(candidates, key=lambda count: abs(tried[count] - target))
        slope = max(0.2, (tokens - tried[nearest]) / (words - nearest))
    return max(1, words + round((target - tokens) / slope))
