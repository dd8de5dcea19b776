"""Verdicts on commands and on the engines of deployment files, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.base.units import chance_text, gib, token_rate_text
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.describe import model_short_name
from recipe_core.request.split_key import split_name
from recipe_core.views.columns import Column, terminal
from recipe_core.views.estimates import estimate_text, serving_speed
from recipe_core.views.plans import change_lines

Json = Mapping[str, Any]


def verdict_text(answer: Json) -> str:
    return "\n".join(_verdict_lines(answer))


def _verdict_lines(answer: Json) -> Iterator[str]:
    engine, model = answer["engine"], answer["model"] or "an unnamed model"
    head = f"{answer['verdict']}: {model} with {engine['name']} {engine['version']}"
    if (table := answer["judged_with"]["table"]) != engine["version"]:
        head += f" (options of {table})"
    if "estimate" not in answer:
        yield head
        yield from _findings(answer)
        return
    hardware = HardwareRequest.model_validate(answer["hardware"])
    yield f"{head} on {hardware.devices} × {hardware.device_name}"
    yield from (f"  why: {reason}" for reason in answer["reasons"])
    # errors are among the reasons already
    yield from _findings(answer, errors=False)
    estimate, changes = answer["estimate"], answer["changes"]
    if estimate["feasible"]:
        notes = [note for note in estimate["notes"] if note.rstrip(".") not in answer["reasons"]]
        yield estimate_text(answer["candidate"], {**estimate, "notes": notes})
    yield from _changed_commands(changes)
    yield from _wasted(answer["waste"])
    if answer["better"] is not None:
        yield from _better_command(answer["better"])
    yield from change_lines([change for change in changes if "options" not in change])


def words_text(change: Json) -> str:
    """A change of the words of a command: ``with --max-model-len 191520``."""
    options = change.get("options", {})
    return " and ".join(_word_text(flag, value) for flag, value in options.items())


def _word_text(flag: str, value: Any) -> str:
    if value is None:
        return f"without {flag}"
    if isinstance(value, str) and value.startswith("--"):
        return f"with {value} instead of {flag}"
    return f"with {flag}" if value is True else f"with {flag} {value}"


def _changed_commands(changes: Sequence[Json]) -> Iterator[str]:
    for change in changes:
        if "options" in change:
            chance = chance_text(change["start_probability"])
            yield f"starts {words_text(change)} ({change['verdict']}, {chance}):"
            if "command" in change:
                yield f"  {change['command']}"


def memory_meant(answer: Json) -> str:
    """Tell a command's two memory figures apart: that of the load and that of the start."""
    workload, memory = answer["workload"], answer["estimate"]["memory"]
    tokens = workload["input_tokens"] + workload["output_tokens"]
    starts = answer["start_bytes"] <= memory["usable_bytes"]
    text = (
        f"{gib(memory['total_bytes'])} would hold the load, {workload['concurrency']:,} requests "
        f"of {tokens:,} tokens, at once. "
        f"{gib(answer['start_bytes'])} is what the engine needs to start: room for one request of "
        f"{workload['max_context']:,} tokens, the longest that the command accepts. "
        f"That is {'within' if starts else 'more than'} the {gib(memory['usable_bytes'])} that "
        "are usable."
    )
    if starts and memory["total_bytes"] > memory["usable_bytes"]:
        text += f" Of the load it holds {memory['max_concurrency']:,} requests; the others wait."
    return text


def _findings(answer: Json, *, errors: bool = True) -> Iterator[str]:
    for finding in answer["findings"]:
        if errors or finding["level"] != "error":
            text = " ".join(filter(None, (finding["message"], finding.get("hint"))))
            yield f"  {finding['level']}: {text}"


def _wasted(waste: Json) -> Iterator[str]:
    if not waste["idle"]:
        return
    text = f"wasted: {waste['idle']} of {waste['devices']} devices are idle"
    if "replicas" in waste:
        together = token_rate_text(waste["output_tokens_per_s"])
        text += f"; {waste['replicas']} replicas would give {together}"
        text += f" ({waste['gain']:+.0%})" if waste["gain"] is not None else ""
    yield text


def _better_command(better: Json) -> Iterator[str]:
    gain = f" ({better['gain']:+.0%})" if "gain" in better else ""
    yield f"better{gain}: {split_name(better['candidate'])}: {serving_speed(better['estimate'])}"
    several = len({start["node"] for start in better["commands"]}) > 1
    for start in better["commands"]:
        yield f"  {start['command']}" + (f"   # on node {start['node']}" if several else "")
    if "why_no_command" in better:
        yield f"  no command for it: {better['why_no_command']}"


# --- deployment files ----------------------------------------------------------------------------


def deployment_text(answer: Json) -> str:
    """One block for each engine of a file, then what was not read."""
    blocks = ["\n".join(_engine_lines(engine)) for engine in answer["engines"]]
    blocks += [f"{_place_text(part)}\n  not read: {part['why']}" for part in answer["left"]]
    return "\n\n".join(blocks) or f"No engine in this {answer['kind']} file."


def _engine_lines(answer: Json) -> Iterator[str]:
    yield _place_text(answer)
    if "judged_with" in answer:
        yield from _verdict_lines(answer)
    else:
        yield f"unknown: {answer['engine']['name']}"
    if text := _error_text(answer):
        yield f"  why: {text}"
    yield from (f"  note: {note}" for note in answer.get("file_notes", []))
    if unset := answer.get("unset"):
        yield f"  note: without a value in the file: {', '.join(unset)}."


def _place_text(part: Json) -> str:
    return f"{part['where']}, line {part['line']}" if part.get("line") else str(part["where"])


def _error_text(answer: Json) -> str:
    error = answer.get("error") or {}
    return " ".join(str(error[name]) for name in ("field", "message", "hint") if error.get(name))


def _model_text(answer: Json) -> str:
    return model_short_name(str(answer["model"])) if answer.get("model") else ""


def _hardware_text(answer: Json) -> str:
    hardware = answer.get("hardware")
    if not isinstance(hardware, Mapping):
        return ""
    device = hardware.get("device")
    # a profile of the user's own is a mapping
    name = device.get("name") if isinstance(device, Mapping) else device
    return f"{hardware.get('per_node', 1) * hardware.get('nodes', 1)} x {name}"


def _judgement(answer: Json) -> str:
    verdict, error = str(answer.get("verdict") or "not read"), _error_text(answer)
    return f"{verdict}: {error}" if error else verdict


# Engines of a folder of deployment files.
FOLDER: tuple[Column[Json], ...] = (
    Column("File", "source", align="left"),
    Column("Kind", lambda answer: answer.get("kind") or "", align="left"),
    Column("Engine", lambda answer: (answer.get("engine") or {}).get("name") or "", align="left"),
    Column("Model", _model_text, align="left"),
    Column("Hardware", _hardware_text, align="left"),
    Column("Verdict", _judgement, align="left"),
)


def folder_text(answers: Sequence[Json]) -> str:
    """A table of every engine of a folder, and how many have each verdict."""
    counts = Counter(str(answer.get("verdict") or "not read") for answer in answers)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return f"{terminal(answers, FOLDER)}\n{summary}" if answers else "No engine was found."
