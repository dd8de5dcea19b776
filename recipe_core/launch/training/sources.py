"""The training program and its text, as files of a bundle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recipe_core.base.documents import to_json
from recipe_core.base.resources import PACKAGE
from recipe_core.launch.entry import train_py
from recipe_core.launch.training.corpus import chats, corpus, preferences
from recipe_core.launch.training.tasks import task_rows

TASKS = "data/tasks.jsonl"
REWARD, RAY_NODE = "reward", "ray_node"
_FOLDER = PACKAGE / "payload" / "trainer"
_OF_TOOLS = (REWARD, RAY_NODE, "start_tool", "unsloth_sft")
"""Programs in the trainer's folder that only bundles of other tools have."""


def data_file(data_format: str) -> str:
    """Where a bundle has its sample data."""
    return "data/text.txt" if data_format == "text" else f"data/{data_format}.jsonl"


def trainer_files(settings: dict[str, Any], script: str, module: str) -> dict[str, str]:
    """``trainer/``, a script of a few lines that starts it, ``train.json`` and sample data."""
    names = (path.stem for path in sorted(_FOLDER.glob("*.py")) if path.stem not in _OF_TOOLS)
    files = _sources(*names)
    files[script] = train_py(script, module)
    data_format = settings["data_format"]
    data = corpus() if data_format == "text" else rows(SAMPLES[data_format]())
    return files | {"train.json": to_json(settings), data_file(data_format): data}


def program_files(*names: str) -> dict[str, str]:
    """These programs of ``trainer/``, which need nothing else of it."""
    return _sources("__init__", *names)


START = ("python3", "${root}/start.py")
"""Words before those of a program for which something has to be laid or fetched."""


def starter() -> dict[str, str]:
    """The script that these words name, with its program."""
    return {"start.py": train_py("start.py", "start_tool"), **program_files("start_tool")}


def reward_files(prompts: int, *, several_nodes: bool) -> dict[str, str]:
    """Tasks, the rule that rewards answers and, for several nodes, what joins them."""
    files = {f"{REWARD}.py": _source(REWARD), TASKS: task_rows(prompts)}
    if several_nodes:
        files |= program_files(RAY_NODE)
        files[f"{RAY_NODE}.py"] = train_py(f"{RAY_NODE}.py", RAY_NODE)
    return files


def _sources(*names: str) -> dict[str, str]:
    return {f"trainer/{name}.py": _source(name) for name in names}


def _source(name: str) -> str:
    """A module of the trainer, as it stands."""
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def data_files() -> dict[str, str]:
    """The text as rows of JSON, for frameworks that read such a folder."""
    return {"data/text.jsonl": rows({"text": text} for text in corpus().strip().split("\n\n"))}


SAMPLES = {"chat": chats, "preference": preferences}


def rows(records: Iterable[dict[str, Any]]) -> str:
    """A line of JSON for each record."""
    return "".join(f"{to_json(record, indent=None).strip()}\n" for record in records)
