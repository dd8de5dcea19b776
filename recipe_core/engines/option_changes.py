"""What differs between the option tables of two releases, as data, and back.

A table of one release is a few tens of kilobytes, most of them the same in the next one. A file of
differences has what an older release lacks of a newer one (``drop``), what it has besides
(``options``, whole rows), and the fields of rows that differ (``change``).
"""

from __future__ import annotations

from typing import Any

Rows = dict[str, dict[str, Any]]
"""Options by flag, as the fields that are not at their defaults."""

LISTS = ("also", "inverse", "choices", "words", "keys")
"""Fields that differ by members; any other is replaced, and ``null`` sets its default."""


def laid_over(newer: Rows, changes: dict[str, Any]) -> Rows:
    """The rows of a release: a newer one's, with the differences laid over them.

    Raises:
        KeyError: when a row or member to drop or to change is not there.
        ValueError: when one to add is there already.
    """
    rows = dict(newer)
    for flag in changes.get("drop", ()):
        del rows[flag]
    for flag, fields in changes.get("change", {}).items():
        rows[flag] = _changed(rows[flag], fields)
    for flag, row in changes.get("options", {}).items():
        if flag in rows:
            raise ValueError(f"{flag} is there already")
        rows[flag] = row
    return dict(sorted(rows.items()))


def _changed(row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    out = dict(row)
    for name, value in fields.items():
        if name in LISTS:
            out[name] = _members(out.get(name, []), value)
        else:
            out[name] = value
    return {name: value for name, value in out.items() if value not in (None, [])}


def _members(values: list[str], change: dict[str, list[str]]) -> list[str]:
    dropped, added = change.get("drop", []), change.get("add", [])
    if missing := sorted(set(dropped) - set(values)):
        raise KeyError(missing[0])
    if present := sorted(set(added) & set(values)):
        raise ValueError(f"{present[0]} is there already")
    return [value for value in values if value not in dropped] + added


def differences(newer: Rows, older: Rows) -> dict[str, Any]:
    """What `laid_over` makes the older rows of, from the newer ones; sections without any left out.

    Members of lists may come back in another order.
    """
    shared = [flag for flag in older if flag in newer]
    change = {flag: fields for flag in shared if (fields := _row(newer[flag], older[flag]))}
    sections = {
        "drop": sorted(set(newer) - set(older)),
        "options": {flag: row for flag, row in sorted(older.items()) if flag not in newer},
        "change": change,
    }
    return {name: section for name, section in sections.items() if section}


def _row(newer: dict[str, Any], older: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in {**newer, **older}:
        now, then = newer.get(name), older.get(name)
        if name in LISTS:
            sides = {
                "drop": [value for value in now or [] if value not in (then or [])],
                "add": [value for value in then or [] if value not in (now or [])],
            }
            if members := {side: values for side, values in sides.items() if values}:
                out[name] = members
        elif now != then:
            out[name] = then
    return out
