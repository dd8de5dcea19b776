"""Commands in files: scripts, lists of one a line, code blocks of Markdown, JSON lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.base.documents import parse_json, read_text
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import check_commands
from recipe_core.commands.launches import Launch
from recipe_core.engines.grammar import programs
from recipe_core.estimates.serving.starts import DOUBT
from recipe_core.plans.plans import estimate_batch

SUFFIXES = (".sh", ".bash", ".txt", ".md", ".jsonl")
MAX_FILES = 100_000

_FENCE = re.compile(r"[ \t]*(```+|~~~+)")
_JOINED = re.compile(r"\\[ \t]*\r?\n")


@dataclass(frozen=True, slots=True)
class Item:
    """A command and where it stands; ``ground`` is what its line says to judge it on.

    ``about``: what its verdict says besides.
    """

    source: str
    command: str | list[str] | Launch
    ground: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)


def read_items(path: Path) -> Iterator[Item | tuple[str, RecipeError]]:
    """The commands of a file, or of all files in a folder that may hold some.

    What cannot be read is its place and an error.

    Raises:
        InputError: when there is no such file or folder, or it holds no file with a known suffix.
    """
    if not path.is_dir():
        yield from items_of(path, path.name)
        return
    files = [f for f in sorted(path.rglob("*")) if f.suffix in SUFFIXES and f.is_file()]
    if not files:
        hint = f"Known suffixes: {', '.join(SUFFIXES)}."
        raise InputError(f"{path} holds no file of commands.", field="dir", hint=hint)
    for file in files[:MAX_FILES]:
        source = str(file.relative_to(path))
        try:
            yield from items_of(file, source)
        except RecipeError as error:
            yield source, error


def items_of(file: Path, source: str) -> Iterator[Item | tuple[str, RecipeError]]:
    """The commands of a file; raises InputError when it cannot be read."""
    text = read_text(file, field="dir", limit=None if file.suffix == ".jsonl" else 4 << 20)
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield _parse_json_line(f"{source}:{number}", line)
        return
    parts = {".md": _code_blocks, ".txt": _command_lines}.get(file.suffix, _one_script)(text)
    for at, part in parts:
        yield Item(f"{source}:{at}", part, {})


def _one_script(text: str) -> Iterator[tuple[int, str]]:
    yield 1, text


def _command_lines(text: str) -> Iterator[tuple[int, str]]:
    """One command a line, where a line may go on after a backslash."""
    number = 1
    for line in _JOINED.sub("\\\\\0", text).split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.replace("\\\0", "\\\n")
        number += 1 + line.count("\0")


def _code_blocks(text: str) -> Iterator[tuple[int, str]]:
    """What stands between fences, with the line of the first."""
    fence, start, block = "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if not fence and mark:
            fence, start, block = mark[1], number, []
        elif fence and mark and mark[1] == fence:
            yield start, "\n".join(block)
            fence = ""
        elif fence:
            block.append(line)


def _parse_json_line(source: str, line: str) -> Item | tuple[str, RecipeError]:
    try:
        return parse_item(source, parse_json(line, source))
    except RecipeError as error:
        return source, error


def parse_item(source: str, value: Any) -> Item:
    """A command from plain values: ``{"command": text or words, "hardware": …}``.

    The fields beside the command are those of ``Ground``.

    Raises:
        InputError: when it names no command.
    """
    command = value.get("command", value.get("argv")) if isinstance(value, dict) else None
    if not isinstance(command, str | list):
        raise InputError("is missing: text or a list of words.", field="command")
    context = {name: field for name, field in value.items() if name not in ("command", "argv")}
    return Item(source, command, context)


def check_items(
    items: Sequence[Item | tuple[str, RecipeError]],
    usual: dict[str, Any],
    *,
    one_each: bool = False,
) -> Iterator[dict[str, Any]]:
    """One verdict per server, in order, each with its ``source``.

    ``usual``: the ground where an item states none. Items that start no known engine have no
    verdict; with ``one_each`` each item has exactly one: on its first server, or an error.
    """
    for entry, verdicts in zip(items, judge_items(items, usual), strict=True):
        source = entry.source if isinstance(entry, Item) else entry[0]
        about = entry.about if isinstance(entry, Item) else {}
        if one_each:
            verdicts = verdicts[:1] or [_no_engine()]
        for number, answer in enumerate(verdicts, 1):
            place = source if len(verdicts) == 1 else f"{source}#{number}"
            yield {"source": place, **about, **_short_verdict(answer)}


def judge_items(
    items: Sequence[Item | tuple[str, RecipeError]], usual: dict[str, Any], *, folders: bool = True
) -> list[list[dict[str, Any]]]:
    """Whole verdicts on the servers of each item, in order; what cannot be judged is its error.

    ``folders``: whether models may be read from paths and asked of the hub.
    """
    answers: dict[int, list[dict[str, Any]]] = {}
    grounds: dict[str, CommandContext] = {}
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for n, entry in enumerate(items):
        if not isinstance(entry, Item):
            answers[n] = [entry[1].to_json()]
            continue
        try:
            context = CommandContext.of(**{**usual, **entry.ground})
            grounds[key := context.model_dump_json()] = context
            groups[key].append(n)
        except RecipeError as error:
            answers[n] = [error.to_json()]
    for key, members in groups.items():
        commands = [entry.command for n in members if isinstance(entry := items[n], Item)]
        verdicts = check_commands(commands, grounds[key], folders=folders)
        answers |= dict(zip(members, verdicts, strict=True))
    return [answers[n] for n in range(len(items))]


def _no_engine() -> dict[str, Any]:
    hint = f"Known: {programs()}."
    return InputError("no known engine in the command.", field="command", hint=hint).to_json()


def _short_verdict(answer: dict[str, Any]) -> dict[str, Any]:
    """A verdict as one line: of the estimates only the serving figures."""
    out = {name: value for name, value in answer.items() if name not in ("estimate", "changes")}
    if changes := [change for change in answer.get("changes", []) if "options" in change]:
        out["changes"] = changes
    if "estimate" in answer:
        out["serving"] = answer["estimate"].get("serving")
    if answer.get("better"):
        out["better"] = _short_verdict(answer["better"])
    return out


def check_values(values: list[Any], usual: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One answer per line of a ``.jsonl``, in order.

    Of a command the verdict; of a request whether its split can run, and why not.
    """
    commands = [
        isinstance(value, dict) and bool({"command", "argv"} & set(value)) for value in values
    ]
    items = [_item_or_error(f"{n}", value) for n, value in enumerate(values, 1) if commands[n - 1]]
    verdicts = check_items(items, usual, one_each=True)
    requests = (value for value, is_command in zip(values, commands, strict=True) if not is_command)
    estimates = iter(estimate_batch(requests))
    for is_command in commands:
        if is_command:
            yield next(verdicts)
            continue
        answer = next(estimates)
        if "error" not in answer:
            answer = _of_request(answer)
        yield answer


def _of_request(answer: dict[str, Any]) -> dict[str, Any]:
    """The verdict in the estimate of a request; uncertain as that on a command may be."""
    doubt = [note for note in answer["notes"] if note.startswith(DOUBT)]
    if not answer["feasible"] or not doubt:
        return {"ok": answer["feasible"], "reasons": answer["reasons"]}
    chance = answer["memory"]["start_probability"]
    return {"ok": None, "verdict": "uncertain", "start_probability": chance, "reasons": doubt}


def _item_or_error(source: str, value: Any) -> Item | tuple[str, RecipeError]:
    try:
        return parse_item(source, value)
    except RecipeError as error:
        return source, error
