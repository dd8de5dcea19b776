"""The training program and its text, as files of a bundle."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_json
from recipe_core.base.resources import PACKAGE
from recipe_core.launch.entry import train_py
from recipe_core.launch.training.corpus import corpus

DATA = "data/text.txt"


def trainer_files(settings: dict[str, Any], script: str, module: str) -> dict[str, str]:
    """``trainer/``, a script of a few lines that starts it, ``train.json`` and the text."""
    files = {
        f"trainer/{path.name}": path.read_text(encoding="utf-8")
        for path in sorted((PACKAGE / "trainer").glob("*.py"))
    }
    files[script] = train_py(script, module)
    return files | {"train.json": to_json(settings), DATA: corpus()}


def data_files() -> dict[str, str]:
    """The text as rows of JSON, for frameworks that read such a folder."""
    rows = (
        to_json({"text": paragraph}, indent=None) for paragraph in corpus().strip().split("\n\n")
    )
    return {"data/text.jsonl": "\n".join(rows) + "\n"}
