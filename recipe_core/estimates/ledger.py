"""The factors and terms of an estimate, recorded by the formulas while they run.

Formulas give their leaves to `record_entry`: kernels, transfers, the engine's own time. Inside
`recording` the seconds that they return are `Timed`: an array that knows of which leaves it is the
sum, and how many of each. Sums, products with plain numbers and choices between times keep that; so
an explanation is the estimate itself, not a second copy of its formulas. Outside it nothing
changes: not a bit, and next to no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from recipe_core.base.arrays import Float
from recipe_core.hardware.profile import Device, Fabric, Family, Roofline, Way

_RECORDING: ContextVar[bool] = ContextVar("recording", default=False)

Value = TypeVar("Value", bound="Float | float")


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A leaf that takes ``seconds`` each time; ``slower``: a factor that is among them.

    That factor is an engine's kernel time over the device's, or the inverse of training's pace.
    """

    label: str
    seconds: float
    slower: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Entry):
    """An operator on the roofline of its ``family`` (`roofline.operator_s`).

    ``dims``: rows, inputs and outputs where it is a product. ``row_bytes`` and ``sorted_share``
    are those of routed experts (`roofline.experts_s`); ``row_time`` is the factor of an engine's
    kernel on what grows with rows, which ``flops`` and ``row_bytes`` do not hold.
    """

    device: Device | None = None
    family: Family = "gemm"
    stored_dtype: str = ""
    dtype: str = ""
    shape: Roofline | None = None
    flops: float = 0.0
    moved_bytes: float = 0.0
    starts: float = 1.0
    dims: tuple[float, float, float] | None = None
    row_bytes: float = 0.0
    sorted_share: float = 0.0
    row_time: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Transfer(Entry):
    """A collective or a message: its ``starts``, then ``moved_bytes`` at bandwidth · efficiency.

    ``starts``: seconds, and how many of them. ``data_bytes`` is what it is about, ``moved_bytes``
    what the busiest link carries of it. ``fabric``: the link that sets the pace; ``way``: by the
    library, by kernels that do without it, or by the switch.
    """

    algorithm: str = ""
    ranks: float = 1.0
    data_bytes: float = 0.0
    starts: tuple[tuple[float, float], ...] = ()
    moved_bytes: float = 0.0
    bandwidth_bytes_per_s: float = 1.0
    efficiency: float = 1.0
    fabric: Fabric | None = None
    way: Way = "library"


@dataclass(frozen=True, slots=True, eq=False)
class Overhead(Entry):
    """``count`` times ``each_s``: what a host or an engine takes; ``per`` says of what."""

    count: float = 1.0
    each_s: float = 0.0
    per: str = ""


class Timed(NDArrayOperatorsMixin):
    """Seconds, and the entries that they are made of: ``values = Σ count · entry.seconds``."""

    __slots__ = ("terms", "values")

    def __init__(self, values: Any, terms: Mapping[Entry, Any]) -> None:
        self.values = np.asarray(values, dtype=np.float64)
        self.terms = {
            entry: np.broadcast_to(count, self.values.shape) for entry, count in terms.items()
        }

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the seconds."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """Axes of the seconds."""
        return self.values.ndim

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Timed:
        return Timed(self.values[key], {entry: count[key] for entry, count in self.terms.items()})

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        # what is turned into a plain array would lose its entries without a word
        raise TypeError("recorded seconds are no plain array: use np.add, np.where and the like")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        rule = _RULES.get(ufunc)
        if rule is not None:
            return rule(*inputs)
        more.pop("out", None)
        return ufunc(*map(strip_entries, inputs), **more)

    def __array_function__(self, function: Any, types: Any, args: Any, more: Any) -> Any:
        rule = _FUNCTIONS.get(function)
        if rule is not None:
            return rule(*args, **more)
        return function(*map(strip_entries, args), **more)


def strip_entries(value: Any) -> Any:
    """Seconds without their entries; anything else as it is."""
    return value.values if isinstance(value, Timed) else value


def _terms(value: Any) -> Mapping[Entry, Any]:
    return value.terms if isinstance(value, Timed) else {}


def _add_timed(a: Any, b: Any, sign: float = 1.0) -> Timed:
    values = strip_entries(a) + sign * strip_entries(b)
    terms = {entry: np.broadcast_to(count, values.shape) for entry, count in _terms(a).items()}
    for entry, count in _terms(b).items():
        terms[entry] = terms.get(entry, 0.0) + sign * count
    return Timed(values, terms)


def _multiply_timed(a: Any, b: Any) -> Any:
    if isinstance(a, Timed) and isinstance(b, Timed):
        return a.values * b.values  # no longer a sum of entries
    time, factor = (a, b) if isinstance(a, Timed) else (b, a)
    return Timed(
        time.values * factor, {entry: count * factor for entry, count in time.terms.items()}
    )


def _divide_timed(a: Any, b: Any) -> Any:
    if isinstance(b, Timed):
        return strip_entries(a) / b.values  # a share of two times, or a rate
    return Timed(a.values / b, {entry: count / b for entry, count in a.terms.items()})


def _select_timed(where: Any, a: Any, b: Any) -> Timed:
    values = np.where(where, strip_entries(a), strip_entries(b))
    terms: dict[Entry, Any] = {}
    for source, mask in ((a, where), (b, np.logical_not(where))):
        for entry, count in _terms(source).items():
            terms[entry] = terms.get(entry, 0.0) + np.where(mask, count, 0.0)
    return Timed(values, terms)


def _choose_timed(conditions: Any, choices: Any, default: Any = 0) -> Any:
    out = default
    for condition, choice in reversed(list(zip(conditions, choices, strict=True))):
        out = _select_timed(condition, choice, out)
    return out


def _mean_timed(time: Timed, axis: int) -> Timed:
    finite = np.isfinite(time.values)
    count = finite.sum(axis=axis)
    terms = {
        entry: np.where(finite, times, 0.0).sum(axis=axis) / count
        for entry, times in time.terms.items()
    }
    return Timed(np.nanmean(time.values, axis=axis), terms)


_RULES: dict[Any, Callable[..., Any]] = {
    np.add: _add_timed,
    np.subtract: lambda a, b: _add_timed(a, b, -1.0),
    np.multiply: _multiply_timed,
    np.true_divide: _divide_timed,
    np.negative: lambda a: _multiply_timed(a, -1.0),
    np.maximum: lambda a, b: _select_timed(strip_entries(a) >= strip_entries(b), a, b),
    np.minimum: lambda a, b: _select_timed(strip_entries(a) <= strip_entries(b), a, b),
}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _select_timed,
    np.select: _choose_timed,
    np.nanmean: _mean_timed,
}


@contextmanager
def recording() -> Iterator[None]:
    """Inside, seconds are `Timed`; of one case at a time, whose columns have one row."""
    token = _RECORDING.set(True)
    try:
        yield
    finally:
        _RECORDING.reset(token)


def is_recording() -> bool:
    """Return whether seconds are `Timed` here."""
    return _RECORDING.get()


def record_entry(seconds: Value, entry: Callable[[float], Entry]) -> Value:
    """``seconds`` of a leaf, with its ``entry`` where these are recorded.

    ``entry``: from the seconds of the case.

    Raises:
        ValueError: when recorded for several cases at once.
    """
    if not _RECORDING.get():
        return seconds
    if np.size(seconds) != 1:
        raise ValueError("one case at a time can be recorded")
    once_s = only_number(seconds)
    if once_s == 0:
        return seconds
    return cast(Value, Timed(seconds, {entry(once_s): 1.0}))


def only_number(value: Any) -> float:
    """The number of the one case that is recorded."""
    return float(np.ravel(strip_entries(value))[0])


def fold_factors(seconds: Value) -> Value:
    """Factors on seconds so far become part of each leaf: its kernel is that much slower."""
    if not isinstance(seconds, Timed):
        return seconds
    terms = {
        replace(
            entry,
            seconds=entry.seconds * only_number(count),
            slower=entry.slower * only_number(count),
        ): 1.0
        for entry, count in seconds.terms.items()
        if only_number(count)
    }
    return cast(Value, Timed(seconds.values, terms))


@dataclass(frozen=True, slots=True)
class Sum:
    """Seconds of one case as entries, each with how many of it there are."""

    seconds: float
    terms: tuple[tuple[Entry, float], ...]


def recorded_sums(parts: Mapping[str, Any]) -> dict[str, Sum]:
    """Recorded seconds of one case by name; those that take no time are left out."""
    out = {}
    for name, seconds in parts.items():
        if only_number(seconds) == 0:
            continue
        terms = [
            (entry, only_number(count))
            for entry, count in _terms(seconds).items()
            if only_number(count)
        ]
        out[name] = Sum(only_number(seconds), tuple(terms))
    return out
