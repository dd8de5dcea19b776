"""Values of columns that were computed before: an edit of a load or a limit changes few of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Generic, TypeVar

import numpy as np
from cachetools import LRUCache

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.ledger import is_recording
from recipe_core.hardware.prices import UNKNOWN

Value = TypeVar("Value")
# Part of all that is kept which one value may take.
LARGEST_SHARE = 1 / 8
Key = tuple[object, ...]


class Recall(Generic[Value]):
    """The latest values of one function of a setting and cases, by content.

    They are shared, so read only. ``rows``: cases that are kept at most, of all values together.
    ``without``: a column that the function does not read. ``priced``: whether it reads prices.
    """

    def __init__(self, rows: int, without: str = "", *, priced: bool = True) -> None:
        self._priced = priced
        self._kept: LRUCache[Key, tuple[Setting, Value, int]] = LRUCache(
            rows, getsizeof=lambda entry: entry[2]
        )
        self._columns = [column.name for column in fields(Cases) if column.name != without]
        self._most, self._lock = int(rows * LARGEST_SHARE), threading.Lock()

    def value(
        self, make: Callable[[], Value], setting: Setting, cases: Cases | None, *more: Float | str
    ) -> Value:
        """The value that ``make`` gives, or gave for an equal setting, cases and ``more``.

        Always made anew with corrections, for an explanation, and of more cases than are kept.
        """
        rows = 1 if cases is None else len(cases)
        if setting.correction is not None or is_recording() or rows > self._most:
            return make()
        if not self._priced:
            place = replace(setting.cluster, price=UNKNOWN, request=None)
            setting = replace(setting, cluster=place)
        parts = (*(getattr(cases, name, None) for name in self._columns), *more)
        names = setting.cluster.device.name, setting.engine.name, setting.weight_dtype
        content = (part.tobytes() if isinstance(part, np.ndarray) else part for part in parts)
        key = (id(setting.model), *names, setting.kv_dtype, *content)
        with self._lock:
            entry = self._kept.get(key)
        if entry is not None and entry[0].model is setting.model and entry[0] == setting:
            return entry[1]
        value = make()
        with self._lock:
            self._kept[key] = setting, value, max(rows, 1)
        return value
