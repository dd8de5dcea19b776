"""Verdicts on a published collection of commands: ``python benchmarks/check.py COLLECTION``.

COLLECTION is a checkout of https://github.com/vllm-project/recipes whose API is built
(``npm install`` and ``node scripts/build-recipes-api.mjs`` there write ``public/``), or any folder
of scripts and Markdown, such as the ``docs`` of https://github.com/sgl-project/sgl-cookbook, whose
commands are judged on ``--hardware``. Prints the table of docs/reference/check.md; ``--refused
FILE`` writes what was refused, each with its reasons, and ``--unknown`` lists the names without an
answer.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.commands.files import check_items
from recipe_core.commands.judge import Item
from recipe_core.hardware.cluster import device_profile
from recipe_core.targets.deployments.judge import deployment_entries

VERDICTS = ("fits", "tight", "uncertain", "cannot start", "unknown", "not read")
COUNTED = re.compile(r"_\d+x$")
"""What the taxonomy adds to a device's name for a machine with several."""


@dataclass(frozen=True)
class Published:
    """One command of a collection, and what its publisher says of it."""

    item: Item
    model: str
    verified: bool


@dataclass(frozen=True)
class Collection:
    """The commands that a folder publishes, and how many are for devices without a profile."""

    published: list[Published]
    foreign: Counter[str]
    one_each: bool
    """Whether each command starts exactly one server; text also holds what starts none."""


def per_hardware(folder: Path, *, strategies: bool, bare: bool) -> Collection:
    """The rendered commands of the collection of vLLM recipes, each on its own hardware.

    Args:
        folder: the checkout, with ``public/`` built.
        strategies: take the alternatives of each hardware too, beyond the recommended strategy.
        bare: leave out the container image, so that the pinned release judges.

    Raises:
        InputError: where ``public/`` is not built.
    """
    devices = yaml.safe_load((folder / "taxonomy.yaml").read_text())["hardware_profiles"]
    public = folder / "public"
    files = sorted(public.glob("*/*/hw/*.json"))
    if not files:
        hint = "Build it: npm install && node scripts/build-recipes-api.mjs."
        raise InputError(f"{folder} has no public/*/*/hw/*.json.", field="collection", hint=hint)
    if strategies:
        files += sorted(public.glob("*/*/hw/*/strategies/*.json"))
    badges: dict[str, dict[str, str]] = {}
    published, foreign = [], Counter[str]()
    for file in files:
        parts = file.relative_to(public).parts
        model, hardware = "/".join(parts[:2]), Path(parts[3]).stem
        document = json.loads(file.read_text())
        command = _command(document, bare)
        profile = _profile(hardware)
        if command is None or profile is None:
            foreign[hardware if profile is None else "no command"] += 1
            continue
        if model not in badges:
            badges[model] = _badges(public / f"{model}.json")
        ground = {
            "hardware": profile,
            "gpus": devices[hardware]["gpu_count"],
            "nodes": document.get("node_count") or 1,
        }
        item = Item(str(file.relative_to(public)), command, ground)
        published.append(Published(item, model, badges[model].get(hardware) == "verified"))
    return Collection(published, foreign, one_each=True)


def _command(document: dict[str, Any], bare: bool) -> str | None:
    """The text that starts the first node, as people copy it, with its image unless ``bare``."""
    names = ["command", "head_command"]
    if not bare:
        names = ["docker_command", "head_docker_command", *names]
    return next((document[name] for name in names if document.get(name)), None)


def _profile(hardware: str) -> str | None:
    try:
        return device_profile(COUNTED.sub("", hardware).replace("_", "-")).name
    except RecipeError:
        return None


def _badges(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    return json.loads(file.read_text()).get("meta", {}).get("hardware") or {}


def any_folder(folder: Path, hardware: str) -> Collection:
    """Every command of a folder's deployment files, scripts and Markdown.

    On one machine where a file states no other; files that cannot be read are counted as left out.
    """
    published, left = [], Counter[str]()
    for entry in deployment_entries(folder, {}):
        if entry.error is None:
            item = replace(entry, ground={"hardware": hardware, **entry.ground})
            published.append(Published(item, "", False))
        else:
            left["what cannot be read"] += 1
    return Collection(published, left, one_each=False)


def judged(collection: Collection) -> Iterator[tuple[Published, dict[str, Any]]]:
    """Each command with its verdicts, one per server."""
    by_source = {entry.item.source: entry for entry in collection.published}
    items = [entry.item for entry in collection.published]
    for answer in check_items(items, {}, one_each=collection.one_each):
        yield by_source[answer["source"].split("#")[0]], answer


def table(rows: list[tuple[Published, dict[str, Any]]]) -> str:
    """Counts by verdict, all and those that the publisher marks as verified."""
    judged, verified = Counter[str](), Counter[str]()
    for entry, answer in rows:
        verdict = answer.get("verdict", "not read")
        judged[verdict] += 1
        verified[verdict] += entry.verified
    lines = ["| verdict | commands | of these verified |", "|---|---|---|"]
    lines += [f"| {name} | {judged[name]:,} | {verified[name]:,} |" for name in VERDICTS]
    return "\n".join(lines)


def known_names(rows: list[tuple[Published, dict[str, Any]]]) -> tuple[set[str], set[str]]:
    """Model names of the collection, and those of them that no command could be judged for."""
    names = {entry.model or str(answer.get("model")) for entry, answer in rows}
    answered = {
        entry.model or str(answer.get("model"))
        for entry, answer in rows
        if answer.get("verdict", "unknown") != "unknown"
    }
    return names, names - answered


def main() -> None:
    """Print the table of a collection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--hardware", default="h200-sxm:8", help="for folders that state none")
    parser.add_argument("--strategies", action="store_true", help="alternatives of a hardware too")
    parser.add_argument("--bare", action="store_true", help="without the container images")
    parser.add_argument("--refused", type=Path, help="write refused commands here, one a line")
    parser.add_argument("--unknown", action="store_true", help="list names without an answer")
    options = parser.parse_args()
    if (options.collection / "taxonomy.yaml").is_file():
        collection = per_hardware(
            options.collection, strategies=options.strategies, bare=options.bare
        )
    else:
        collection = any_folder(options.collection, options.hardware)
    rows = list(judged(collection))
    print(table(rows))
    names, unanswered = known_names([row for row in rows if "verdict" in row[1]])
    print(f"\n{len(names) - len(unanswered)} of {len(names)} model names known.")
    for name, count in collection.foreign.most_common():
        print(f"left out: {count:,} for {name}")
    if options.unknown:
        print("\n".join(sorted(unanswered)))
    if options.refused:
        _write_refused(options.refused, rows)


def _write_refused(file: Path, rows: list[tuple[Published, dict[str, Any]]]) -> None:
    refused = [
        {"source": answer["source"], "verified": entry.verified, "reasons": answer["reasons"]}
        for entry, answer in rows
        if answer.get("verdict") == "cannot start"
    ]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in refused))


if __name__ == "__main__":
    main()
