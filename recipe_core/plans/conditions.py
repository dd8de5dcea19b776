"""Conditions of data files (``Condition``), held against facts: single values or columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.engines.training_programs import Condition, Conditions

# Words of a condition as they stand in the fact of a name: a column may hold codes.
Coded = Callable[[str, tuple[Any, ...]], tuple[Any, ...]]


def _plain_words(_name: str, words: tuple[Any, ...]) -> tuple[Any, ...]:
    return words


def any_holds(conditions: Conditions, facts: Any, coded: Coded = _plain_words) -> Bool | bool:
    """Mark where all tests of any mapping hold; ``facts`` are values or columns by name."""
    out: Bool | bool = False
    for tests in conditions:
        out = out | all_hold(tests, facts, coded)
    return out


def all_hold(
    tests: Mapping[str, Condition], facts: Any, coded: Coded = _plain_words
) -> Bool | bool:
    """Mark where all tests hold."""
    out: Bool | bool = True
    for name, condition in tests.items():
        for operator in condition.model_fields_set:
            operand = getattr(condition, operator)
            out = out & _test_operator(name, operator, operand, facts, coded)
        if not np.any(out):  # what follows may be computed at length, or of nothing
            return False
    return out


def _test_operator(name: str, operator: str, operand: Any, facts: Any, coded: Coded) -> Bool | bool:
    value = facts[name]
    match operator:
        case "present":
            return bool(value) is operand
        case "one_of" | "none_of":
            return _is_among(value, coded(name, operand)) ^ (operator == "none_of")
        case "inside" | "outside":
            return _is_among(value, coded(name, facts[operand])) ^ (operator == "outside")
        case "has" if isinstance(value, np.ndarray):  # names as bits
            return np.asarray(value & coded(name, (operand,))[0] > 0)
        case "has" | "lacks":
            return (operand in value) is (operator == "has")
    bound = facts[operand] if isinstance(operand, str) else operand
    match operator:
        case "above":
            return np.asarray(value > bound)
        case "below":
            return np.asarray(value < bound)
        case "uneven":
            return np.asarray(value % np.maximum(bound, 1) != 0)
    return np.asarray(value == bound)


def _is_among(value: Any, allowed: tuple[Any, ...]) -> Bool:
    if isinstance(value, np.ndarray):
        return np.isin(value, allowed)
    return np.asarray(value in allowed)
