"""Every error a user can cause.

RecipeError                 base: message = what, the value, the limit, the remedy
├── InputError              the request is wrong: names the field and the fix (exit code 2)
│   ├── ModelError          a config.json that cannot be read as a decoder-only language model
│   ├── HardwareError       an unknown device, fabric or offer, or a malformed profile
│   └── LimitError          more candidates, seconds or memory than a request may take
├── NoAnswer                the request is fine and the answer is "no" (exit code 1)
├── BundleError             a bundle that is damaged, foreign or dangerous (exit code 1)
└── BusyError               the server has too much to do; the same request may be sent again

An infeasible split is data (``reasons``), not an exception.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row")
# Characters of a field's dotted name that an error shows: keys may be of any length.
LONGEST_FIELD = 400
# Characters of an unknown name: the closest to a longer one are not looked for, which would take
# time with its length, and a message shows no more of it.
LONGEST_NAME = 120

# A field of a request by its dotted name.
_FIELD = re.compile(r"\b(model|hardware|workload|objective|options|candidate)\.[a-z]")


class RecipeError(Exception):
    """Base of all errors this project raises on purpose.

    ``message`` says what is wrong with which value, ``hint`` what to do, ``field`` where it is in
    the request.
    """

    code = "error"
    exit_code = 2

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field[:LONGEST_FIELD] if field else field
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        fix = f" {self.hint}" if self.hint else ""
        return f"{where}{self.message}{fix}"

    @property
    def plain(self) -> str:
        """Say what is wrong and what to do, without names of fields, for a page with buttons."""
        hint_names_field = self.hint is None or _FIELD.search(self.hint)
        return self.message if hint_names_field else f"{self.message} {self.hint}"

    def to_json(self) -> dict[str, Any]:
        """The error as the API and the command line print it, under the key ``error``."""
        return {
            "error": {
                "code": self.code,
                "field": self.field,
                "message": self.message,
                "hint": self.hint,
            }
        }


class InputError(RecipeError):
    """The request cannot be understood or asks for something unknown."""

    code = "input"


class ModelError(InputError):
    """A model that is unknown or whose configuration cannot be modelled."""

    code = "model"


class HardwareError(InputError):
    """A device, fabric or offer that is unknown, or a malformed profile."""

    code = "hardware"


class LimitError(InputError):
    """A request that takes more candidates, seconds or memory than it may."""

    code = "limit"


class BusyError(RecipeError):
    """The server has as much to do as it takes; ``yours``: most of it is the caller's own."""

    code = "busy"
    exit_code = 1

    def __init__(self, message: str, *, retry_after_s: int = 5, yours: bool = False) -> None:
        super().__init__(message, hint=f"Try again in {retry_after_s} s.")
        self.retry_after_s, self.yours = retry_after_s, yours


class NoAnswer(RecipeError):  # noqa: N818 - an answer, not a fault
    """The question was understood and the answer is no: nothing fits, a check failed."""

    code = "no-answer"
    exit_code = 1


class BundleError(RecipeError):
    """A bundle that is damaged, foreign or dangerous; nothing of it was used."""

    code = "bundle"
    exit_code = 1


def unknown(kind: str, value: object, names: Sequence[str]) -> tuple[str, str]:
    """Message and hint for a name that is not in ``known``: the closest names, else the first."""
    folded = {name.casefold(): name for name in names}
    word = str(value).casefold()
    close = []
    if len(word) <= LONGEST_NAME:
        close = difflib.get_close_matches(word, list(folded), n=3, cutoff=0.5)
    more = ", …" if len(names) > 12 else ""
    hint = f"Available: {', '.join(names[:12])}{more}."
    if close:
        hint = f"Did you mean {' or '.join(repr(folded[name]) for name in close)}?"
    return f"unknown {kind} {value!r:.{LONGEST_NAME + 2}}.", hint


def look_up(
    kind: str,
    name: Any,
    rows: Mapping[str, Row],
    field: str | None,
    error: type[RecipeError] = InputError,
) -> Row:
    """Return the row of a name.

    Raises:
        RecipeError: of the class ``error``, which names the closest, where there is none.
    """
    if name not in rows:
        message, hint = unknown(kind, name, list(rows))
        raise error(message, field=field, hint=hint)
    return rows[name]
