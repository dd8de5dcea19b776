"""Send requests as the workload says: a fixed number in flight, in waves, at random, or at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .client import Sample
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
    """Random words, by seed and index; no two prompts share a prefix that caches could use.

    ``words`` are in each, or as many as ``by_request`` says.
    """

    words: int
    seed: int = 0
    by_request: tuple[int, ...] = ()

    def text(self, index: int) -> str:
        """The prompt of request ``index``."""
        pick = random.Random(self.seed * 1_000_003 + index)  # noqa: S311 - not a secret
        words = self.by_request[index] if self.by_request else self.words
        return " ".join(pick.choice(WORDS) for _ in range(words))


def draw_lengths(
    mean: int, spread: float, shares: Sequence[int], count: int, seed: str
) -> tuple[int, ...]:
    """Draw lengths of ``count`` requests, in tokens; the same for the same seed.

    Uniform around ``mean`` by its share ``spread``, or of ``shares``: lengths that even shares of
    requests have. One comes from each of ``count`` even parts, so that few requests meet the mean.
    """
    pick = random.Random(seed)  # noqa: S311 - not a secret
    parts = pick.sample(range(count), count)
    places = [(part + pick.random()) / count for part in parts]
    if shares:
        return tuple(max(1, shares[int(place * len(shares))]) for place in places)
    return tuple(max(1, round(mean * (1 + spread * (2 * place - 1)))) for place in places)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The number of words for a prompt, and the tokens that the server counted, if it does.

    ``per_word``: tokens that a word more or less makes.
    """

    words: int
    tokens: float | None
    per_word: float

    def words_for(self, more_tokens: int) -> int:
        """Words of a prompt that is so many tokens longer."""
        return max(1, self.words + round(more_tokens / self.per_word))


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
            return Calibration(words, None, max(target / words, 0.2))
        tried[words] = tokens
        words = _next(tried, words, target)
        if words in tried:
            break
    if not tried:
        raise refused or RequestError("the server did not count a single prompt")
    best = min(tried, key=lambda item: (abs(tried[item] - target), tried[item]))
    return Calibration(best, tried[best], _slope(tried, best, target))


def _next(tried: dict[int, float], words: int, target: int) -> int:
    """The next number of words: along the line through two tries, else in proportion."""
    return max(1, words + round((target - tried[words]) / _slope(tried, words, target)))


def _slope(tried: dict[int, float], words: int, target: int) -> float:
    """Tokens of a word more, by two tries where there are: a chat template adds a fixed part."""
    tokens = tried[words]
    candidates = [count for count in tried if tried[count] != tokens]
    if not candidates:
        return tokens / words
    nearest = min(candidates, key=lambda count: abs(tried[count] - target))
    return max(0.2, (tokens - tried[nearest]) / (words - nearest))


# A thread per request works up to here; beyond, the client itself would be measured.
MOST_IN_FLIGHT = 512


@dataclass(frozen=True, slots=True)
class Traffic:
    """``in_flight`` bounds every mode but open, which has a ``rate`` (requests per second)."""

    mode: str
    requests: int
    in_flight: int
    rate: float | None = None
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """The answers. ``skipped`` requests were not sent because the time limit was reached."""

    samples: list[Sample] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    skipped: int = 0
    wall_s: float = 0.0


def drive(
    traffic: Traffic,
    send: Callable[[int], Sample],
    *,
    limit_s: float | None,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Outcome:
    """Send all requests (or as many as start within ``limit_s``) and wait for every answer."""
    run = _Run(traffic, send, limit_s, tell, clock, sleep)
    modes = {"open": run.arrivals, "static": run.waves, "closed": run.steady, "offline": run.steady}
    began = clock()
    modes[traffic.mode]()
    outcome = run.outcome
    outcome.skipped = traffic.requests - len(outcome.samples) - len(outcome.errors)
    outcome.wall_s = clock() - began
    return outcome


@dataclass
class _Run:
    """One measurement under way; threads share ``outcome`` under a lock."""

    traffic: Traffic
    send: Callable[[int], Sample]
    limit_s: float | None
    tell: Callable[[str], None]
    clock: Callable[[], float]
    sleep: Callable[[float], object]

    def __post_init__(self) -> None:
        self.outcome, self.lock, self.sent = Outcome(), threading.Lock(), 0
        self.told = self.clock()
        self.deadline = float("inf") if self.limit_s is None else self.told + self.limit_s

    def steady(self) -> None:
        """Every worker of ``in_flight`` sends its next request once the last is answered."""
        workers = min(self.traffic.in_flight, self.traffic.requests)
        self._join([self._thread(self._send_all) for _ in range(workers)])

    def waves(self) -> None:
        """A static batch: one wave starts together, the next when its last request is done."""
        while indexes := [
            index for _ in range(self.traffic.in_flight) if (index := self._take()) is not None
        ]:
            self._join([self._thread(self._send, index) for index in indexes])

    def arrivals(self) -> None:
        """Poisson arrivals: exponential gaps, the same for the same seed."""
        gaps = random.Random(self.traffic.seed)  # noqa: S311 - arrival times, not a secret
        due, threads = self.clock(), []
        while (index := self._take()) is not None:
            threads.append(self._thread(self._send, index))
            due += gaps.expovariate(self.traffic.rate or 1.0)
            while (remaining_s := due - self.clock()) > 0:
                self.sleep(min(remaining_s, 0.5))
                self._progress()
        self._join(threads)

    def _take(self) -> int | None:
        with self.lock:
            if self.sent >= self.traffic.requests or self.clock() >= self.deadline:
                return None
            self.sent += 1
            return self.sent - 1

    def _send_all(self) -> None:
        while (index := self._take()) is not None:
            self._send(index)

    def _send(self, index: int) -> None:
        try:
            sample = self.send(index)
        except RequestError as error:
            with self.lock:
                self.outcome.errors.append(str(error))
        except Exception as error:  # a bug must show as a failed request, not as a lost thread
            with self.lock:
                self.outcome.errors.append(f"{type(error).__name__}: {error}")
        else:
            with self.lock:
                self.outcome.samples.append(sample)

    def _thread(self, target: Callable[..., None], *args: int) -> threading.Thread:
        # A daemon, so that Ctrl-C need not wait for slow answers.
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        return thread

    def _join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
                self._progress()

    def _progress(self) -> None:
        if self.clock() - self.told >= 2.0:
            self.told = self.clock()
            failed = f", {len(self.outcome.errors)} failed" if self.outcome.errors else ""
            answered = f"{len(self.outcome.samples)} of {self.traffic.requests} requests answered"
            self.tell(f"bench: {answered}{failed}")
