"""Prompts of a wanted length in tokens, without the model's tokenizer: words in, the server's own count out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .errors import RequestError

# Common words: nearly every tokenizer has each as one token, so prompts of as many words differ
# little in tokens.
_TEXT = """
the a model reads order kitchen serves meal plate time token text memory fast good recipe plan what you need work cache large small
long short guest waits line first next last machine cook table tray full same many split step part shelf fit start stop count cost
number answer says look keep write make take less more than when then with from into after before each other all some way day
"""
WORDS = tuple(_TEXT.split())
_START_WORDS_PER_TOKEN = 0.7  # short at first: a prompt over the context limit would be refused
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Prompts:
    """Random words, the same for the same seed and index; no two share a beginning, so prefix caches do not help."""

    words: int
    seed: int = 0

    def text(self, index: int) -> str:
        """The prompt of request ``index``."""
        pick = random.Random(self.seed * 1_000_003 + index)  # noqa: S311 - words of a prompt, not a secret
        return " ".join(pick.choice(WORDS) for _ in range(self.words))


@dataclass(frozen=True, slots=True)
class Calibration:
    """How many words make the wanted prompt; ``tokens`` is what the server counted, None when it counts nothing."""

    words: int
    tokens: float | None


def calibrate(count: Callable[[int], float | None], target: int) -> Calibration:
    """Ask ``count(words)`` for the mean tokens of such prompts a few times, and keep the closest."""
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
        raise refused or RequestError("the server counted no prompt")
    best = min(tried, key=lambda item: (abs(tried[item] - target), tried[item]))
    return Calibration(best, tried[best])


def _next(tried: dict[int, float], words: int, target: int) -> int:
    """Along the line through the last two tries (a chat template adds a fixed part), else in proportion."""
    tokens = tried[words]
    others = [known for known in tried if tried[known] != tokens]
    slope = tokens / words
    if others:
        other = min(others, key=lambda known: abs(tried[known] - target))
        slope = max(0.2, (tokens - tried[other]) / (words - other))
    return max(1, words + round((target - tokens) / slope))
