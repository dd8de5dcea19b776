"""Commands in files: lists of one a line, code blocks of Markdown, JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recipe_core.base.documents import parse_json, read_text
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.commands.judge import Item, judge_items, no_engine
from recipe_core.estimates.serving.starts import DOUBT
from recipe_core.plans.plans import estimate_batch

SUFFIXES = (".txt", ".md", ".jsonl")

_FENCE = re.compile(r"[ \t]*(```+|~~~+)")
_JOINED = re.compile(r"\\[ \t]*\r?\n")


def items_of(file: Path, source: str) -> Iterator[Item]:
    """The commands of a file; raises InputError when it cannot be read."""
    text = read_text(file, field="dir", limit=None if file.suffix == ".jsonl" else 4 << 20)
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield _parse_json_line(f"{source}:{number}", line)
        return
    split = _code_blocks if file.suffix == ".md" else _command_lines
    for line_number, part in split(text):
        yield Item(f"{source}:{line_number}", part)


def _command_lines(text: str) -> Iterator[tuple[int, str]]:
    """One command a line, where a line may go on after a backslash."""
    number = 1
    for line in _JOINED.sub("\\\\\0", text).split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.replace("\\\0", "\\\n")
        number += 1 + line.count("\0")


def _code_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield what stands between fences, with the line of the first."""
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


def _parse_json_line(source: str, line: str) -> Item:
    try:
        return parse_item(source, parse_json(line, source))
    except RecipeError as error:
        return Item(source, error=error)


def parse_item(source: str, value: Any) -> Item:
    """A command from plain values: ``{"command": text or words, "hardware": …}``.

    The fields beside the command are those of ``CommandContext``.
    """
    command = value.get("command", value.get("argv")) if isinstance(value, dict) else None
    if not isinstance(command, str | list):
        problem = InputError("is missing: text or a list of words.", field="command")
        return Item(source, error=problem)
    context = {name: field for name, field in value.items() if name not in ("command", "argv")}
    return Item(source, command, context)


def check_items(
    items: Sequence[Item], usual: dict[str, Any], *, one_each: bool = False
) -> Iterator[dict[str, Any]]:
    """One verdict per server, in order, each with its ``source``.

    ``usual``: the ground where an item states none. Items that start no known engine have no
    verdict; with ``one_each`` each item has exactly one: on its first server, or an error.
    """
    for item, verdicts in zip(items, judge_items(items, usual), strict=True):
        if one_each:
            verdicts = verdicts[:1] or [no_engine().to_json()]
        for number, answer in enumerate(verdicts, 1):
            place = item.source if len(verdicts) == 1 else f"{item.source}#{number}"
            yield {"source": place, **item.about, **_short_verdict(answer)}


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
    items = [parse_item(f"{n}", value) for n, value in enumerate(values, 1) if commands[n - 1]]
    verdicts = check_items(items, usual, one_each=True)
    requests = (value for value, is_command in zip(values, commands, strict=True) if not is_command)
    estimates = iter(estimate_batch(requests))
    for is_command in commands:
        answer = next(verdicts if is_command else estimates)
        yield answer if is_command or "error" in answer else _of_request(answer)


def _of_request(answer: dict[str, Any]) -> dict[str, Any]:
    """The verdict in the estimate of a request; uncertain as that on a command may be."""
    doubt = [note for note in answer["notes"] if note.startswith(DOUBT)]
    if not answer["feasible"] or not doubt:
        return {"ok": answer["feasible"], "reasons": answer["reasons"]}
    chance = answer["memory"]["start_probability"]
    return {"ok": None, "verdict": "uncertain", "start_probability": chance, "reasons": doubt}
