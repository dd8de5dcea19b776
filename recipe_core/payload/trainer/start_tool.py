"""Start a tool that trains: lay its data, fetch its model, and name its newest checkpoint.

Of the bundle's folder everything is only read: what is made goes into the run's folder.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OPTION = "--resume_from_checkpoint"
# A controller tells nodes apart by these (a PyTorchJob does). A tool that starts its own processes
# would take them for one of these, and wait for the others before it starts any.
_OF_NODES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_ANSWERS = ("chosen", "rejected")
_TOKENIZER = ("*.json", "*.model", "*.jinja", "*.tiktoken", "merges.txt", "vocab.txt")
# Files of a model on the hub that a program can need, as patterns.
PARTS = {"tokenizer": _TOKENIZER, "model": (*_TOKENIZER, "*.safetensors")}


def find_newest_checkpoint(folder: Path) -> Path | None:
    """The newest ``checkpoint-STEP`` that transformers' trainer wrote to the end."""
    folders = {}
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        step = state.parent.name.rpartition("-")[2]
        if step.isdigit():
            folders[int(step)] = state.parent
    return folders[max(folders)] if folders else None


def add_resume_words(program: Sequence[str], folder: Path | None) -> list[str]:
    """The program's words, with its newest checkpoint where it must be told and there is one."""
    checkpoint = find_newest_checkpoint(folder) if folder else None
    return [*program, OPTION, str(checkpoint)] if checkpoint else [*program]


def refuse_blanks(program: Sequence[str]) -> None:
    """Refuse words that a program would take for several.

    Raises:
        SystemExit: naming the first word with a blank.
    """
    for word in program:
        if any(letter.isspace() for letter in word):
            problem = f"{Path(program[0]).name} splits {word!r} at its blanks"
            raise SystemExit(
                f"start: {problem}; move the bundle or the model to a path without any."
            )


def fetch_model_parts(model: str, parts: str) -> str:
    """The folder of a model: its own, or where the hub's client keeps what is downloaded of it.

    Raises:
        SystemExit: where the hub does not give it.
    """
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(model, allow_patterns=list(PARTS[parts])))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        hint = "Set HF_TOKEN for a gated model, or name a folder that holds it."
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SystemExit(
            f"start: the {parts} of {model} cannot be fetched: {reason} {hint}"
        ) from None


def read_training_rows(source: Path, *, single: bool) -> Iterator[Any]:
    """The rows of a file; ``single``: of an answer that is a list of messages its last one.

    Raises:
        SystemExit: naming the line that is no JSON object.
    """
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise SystemExit(f"start: {source}, line {number} is not a JSON object; correct it.")
        if single:
            lists = {name: row.get(name) for name in _ANSWERS}
            row |= {
                name: messages[-1] for name, messages in lists.items() if isinstance(messages, list)
            }
        yield row


def lay(source: Path, place: Path, *, single: bool) -> None:
    """Write the rows to ``place``, at once: processes of other nodes may do the same."""
    text = "".join(
        f"{json.dumps(row, ensure_ascii=False)}\n"
        for row in read_training_rows(source, single=single)
    )
    _write_laid_file(place, text)


def _write_laid_file(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f"{place.name}.{os.uname().nodename}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(place)


def main(argv: Sequence[str] | None = None) -> int:
    """Become the program; does not return."""
    options = _start_tool_parser().parse_args(argv)
    if options.lay:
        source = Path(os.environ.get("RECIPE_DATA") or options.data)
        lay(source, options.lay, single=options.single)
        for beside in options.beside:
            _write_laid_file(options.lay.parent / beside.name, beside.read_text(encoding="utf-8"))
    started = add_resume_words(options.program, options.checkpoints)
    if options.fetch:
        folder = fetch_model_parts(options.model, options.fetch)
        started = [folder if word == options.model else word for word in started]
    if options.splits_words:
        refuse_blanks(started)
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        os.chdir(options.folder)
    environment = {n: value for n, value in os.environ.items() if n not in _OF_NODES}
    os.execvpe(started[0], started, environment)  # noqa: S606 - the bundle's own words, no shell


def _start_tool_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="start.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FILE", help="rows to train on")
    parser.add_argument("--lay", type=Path, metavar="FILE", help="where they go")
    parser.add_argument("--single", action="store_true", help="one message for each answer")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], help="a file to lay there too"
    )
    parser.add_argument("--folder", type=Path, help="where the program works")
    parser.add_argument("--splits-words", action="store_true", help="it splits words at blanks")
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="name the newest of it")
    parser.add_argument("--model", metavar="FOLDER|ID", help="the word that is the model")
    parser.add_argument("--fetch", choices=sorted(PARTS), help="what to download of it")
    parser.add_argument("program", nargs="+", metavar="WORD", help="after --: what to start")
    return parser
