"""Write the option tables of an engine's other releases as differences: ``python
scripts/engine_option_changes.py 0.32.0 FULL.yaml …``.

The files are complete tables of ``scripts/engine_options.py``, one of each release, in any order;
0.32.0 is the pinned one, which stays complete. Each other release is written as what differs from
the next one towards the pinned one, so that a new release changes two files. A release with the
options of the minor release before it is only listed there (``same_in``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from recipe_core.engines.options import FOLDER, LISTS, Rows, laid_over
from recipe_core.engines.release import release_key

Table = dict[str, Any]


def option_differences(newer: Rows, older: Rows) -> dict[str, Any]:
    """Return what `laid_over` makes the older rows of, from the newer; empty sections are left out.

    Members of lists may come back in another order.
    """
    shared = [flag for flag in older if flag in newer]
    change = {flag: fields for flag in shared if (fields := row_changes(newer[flag], older[flag]))}
    sections = {
        "drop": sorted(set(newer) - set(older)),
        "options": {flag: row for flag, row in sorted(older.items()) if flag not in newer},
        "change": change,
    }
    return {name: section for name, section in sections.items() if section}


def row_changes(newer: dict[str, Any], older: dict[str, Any]) -> dict[str, Any]:
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


def option_text(value: Any) -> str:
    """A value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 20)
    return text.strip().removesuffix("...").strip()


def written(table: Table, same_in: list[str], newer: Table | None) -> str:
    """A table as its file: complete, or as what differs from a newer one."""
    lines = [
        f"# Written by: python scripts/engine_option_changes.py, from {table['engine']}'s parser",
        f"schema_version: 1\nengine: {table['engine']}\nversion: {table['version']}",
    ]
    if newer is None:
        lines[0] = f"# Written by: python scripts/engine_options.py {table['engine']}"
    if same_in:
        lines.append(f"same_in: {option_text(same_in)}")
    if newer is None:
        sections: dict[str, Any] = {"options": table["options"]}
    else:
        lines.append(f"differs_from: {newer['version']}")
        sections = option_differences(newer["options"], table["options"])
        check(newer, table, sections)
    for name, section in sections.items():
        lines.append(f"{name}:")
        rows = section.items() if isinstance(section, dict) else ()
        lines += [f"  {flag}: {option_text(row)}" for flag, row in rows]
        lines += [f"  - {flag}" for flag in section if isinstance(section, list)]
    return "\n".join(lines) + "\n"


def check(newer: Table, table: Table, changes: dict[str, Any]) -> None:
    """Raise if the differences do not give the table again."""
    if alike(laid_over(newer["options"], changes)) != alike(table["options"]):
        raise SystemExit(f"{table['version']} is not what its differences give")


def alike(rows: dict[str, Any]) -> dict[str, Any]:
    """Rows without the order of members, and without fields at their defaults."""
    return {
        flag: {k: sorted(v) if isinstance(v, list) else v for k, v in row.items() if v}
        for flag, row in rows.items()
    }


def main(pinned: str, paths: list[str]) -> None:
    tables = [yaml.safe_load(Path(path).read_text(encoding="utf-8")) for path in paths]
    tables.sort(key=lambda table: release_key(table["version"]))
    rows: list[Table] = []
    same_in: dict[str, list[str]] = {}
    for table in tables:
        version = table["version"]
        patch = rows and release_key(rows[-1]["version"])[:2] == release_key(version)[:2]
        if patch and version != pinned and alike(rows[-1]["options"]) == alike(table["options"]):
            same_in.setdefault(rows[-1]["version"], []).append(version)
        else:
            rows.append(table)
    middle = next(n for n, table in enumerate(rows) if table["version"] == pinned)
    for n, table in enumerate(rows):
        towards = n + (n < middle) - (n > middle)
        newer = rows[towards] if n != middle else None
        text = written(table, same_in.get(table["version"], []), newer)
        name = f"{table['engine']}-{table['version']}.yaml"
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(name, len(text))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
