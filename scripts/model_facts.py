"""``recipe_core/models/model_facts.csv``: what the search of models shows of each.

Downloads in 30 days and dates of release are kept as they stand, or taken from a list of models as
PyPI llmfit carries it (a JSON list of objects with ``name``, ``hf_downloads``, ``release_date``)::

    python scripts/model_facts.py [--use LIST.json]
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipe_core.models.catalog import catalog_entry, catalog_ids, catalog_model
from recipe_core.models.search import FACTS, FIELDS, model_facts
from recipe_core.models.supplements import name_meanings

# Endings of an original's name that its copies' names leave out.
UNSAID = ("", "-bf16", "-it", "-hf")


def name_tail(name: str) -> str:
    return name.rpartition("/")[2].casefold().removeprefix("meta-")


def original_of(name: str, names: dict[str, str]) -> str:
    """The model of which a name is a copy in another format or place; empty for an original.

    A copy of a copy is one of the original. ``names``: of all models, by their tails, the catalog's
    own before aliases.
    """
    for stem, convention in name_meanings(name if "/" in name else f"-/{name}"):
        for ending in UNSAID if convention else ("",):
            original = names.get(f"{name_tail(stem)}{ending}")
            if original is not None and original != name:
                return original_of(original, names) or original
    return ""


def every_row(use: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    entries = [catalog_entry(name) for name in catalog_ids()]
    all_names = [*(e.id for e in entries), *(alias for e in entries for alias in e.aliases)]
    names: dict[str, str] = {}
    for name in all_names:
        names.setdefault(name_tail(name), name)
    for name in sorted(all_names, key=str.casefold):
        model, its_use = catalog_model(name), use.get(name.casefold(), {})
        yield {
            "id": name,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters if model.is_moe else "",
            "max_context": model.max_context,
            "weight_dtype": model.weight_dtype,
            "task": model.task,
            "original": original_of(name, names),
            "downloads": its_use.get("downloads") or "",
            "released": its_use.get("released") or "",
        }


def table_text(use: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    return [{field: str(row[field]) for field in FIELDS} for row in every_row(use)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--use", type=Path, help="a list of models with their downloads")
    use_list = parser.parse_args().use
    if use_list is None:
        present = model_facts().values() if FACTS.is_file() else ()
        use = {
            row.id.casefold(): {"downloads": row.downloads, "released": row.released}
            for row in present
        }
    else:
        use = {
            row["name"].casefold(): {
                "downloads": row.get("hf_downloads"),
                "released": row.get("release_date"),
            }
            for row in json.loads(use_list.read_text(encoding="utf-8"))
        }
    rows = table_text(use)
    with FACTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    sys.stdout.write(f"{len(rows)} models in {FACTS}\n")


if __name__ == "__main__":
    main()
