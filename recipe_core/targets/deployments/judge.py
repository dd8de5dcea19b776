"""Verdicts on the engines of deployment files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.commands.files import Item, judge_items
from recipe_core.commands.ground import Ground
from recipe_core.targets.deployments.deployed import DeployedEngine, DeploymentFile
from recipe_core.targets.deployments.model_names import model_hint


def check_deployment(
    file: DeploymentFile, stated: Mapping[str, Any], *, folders: bool = True
) -> dict[str, Any]:
    """Verdicts on every engine of a file: ``{"ok", "kind", "engines", "left"}``.

    Args:
        file: the file as it was read.
        stated: what the user says of hardware and load, before what the file says.
        folders: whether models may be read from paths and asked of the hub.

    Raises:
        InputError: when ``stated`` is wrong.
    """
    if "hardware" in stated:
        Ground.of(**stated)
    items = [item_of(engine, engine.where, file.kind, stated) for engine in file.engines]
    verdicts = judge_items(items, {}, folders=folders)
    answers = [
        {**about(engine), **_with_hint(found[0])}
        for engine, found in zip(file.engines, verdicts, strict=True)
    ]
    return {
        "ok": verdict_of(answers),
        "kind": file.kind,
        "engines": answers,
        "left": [left.to_json() for left in file.left],
    }


def verdict_of(answers: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether all run: false where one cannot, None where one is not known to."""
    said = [answer.get("ok") for answer in answers]
    if any(ok is False for ok in said):
        return False
    return True if said and all(said) else None


def item_of(engine: DeployedEngine, source: str, kind: str, stated: Mapping[str, Any]) -> Item:
    """An engine as an item of many; ``source`` is its file and line."""
    return Item(source, engine.launch, engine.ground(stated), {"kind": kind, **about(engine)})


def about(engine: DeployedEngine) -> dict[str, Any]:
    """What an answer says of an engine's place in its file."""
    values: dict[str, Any] = {
        "where": engine.where,
        "engine": {"name": engine.launch.engine},
        "line": engine.line,
        "image": engine.launch.image,
        "replicas": engine.replicas,
        "unset": list(engine.unset),
        "file_notes": list(engine.place.notes),
    }
    return {name: value for name, value in values.items() if value not in (None, [], 1)}


def _with_hint(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer whose model is an unknown folder, with the model that it is called like."""
    error = answer.get("error")
    if "verdict" not in answer:
        answer = {"ok": None, "verdict": "unknown", **answer}
    if error and error.get("field") == "model" and (hint := model_hint(str(answer.get("model")))):
        answer = {**answer, "error": {**error, "hint": hint}}
    return answer
