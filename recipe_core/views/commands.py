"""Verdicts on commands and on the engines of deployment files, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.base.texts import quote_command
from recipe_core.engines.spec import engine
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.describe import model_short_name
from recipe_core.views.columns import Column, terminal
from recipe_core.views.estimates import estimate_text, serving_speed
from recipe_core.views.plans import change_lines
from recipe_core.views.texts import Phrases

Json = Mapping[str, Any]


def verdict_text(answer: Json) -> str:
    """A verdict with its findings, the estimate, changes after which it starts, a better split."""
    if "estimate" not in answer:
        return _PHRASES.text("verdict", answer, "", "", {}, "")
    hardware = HardwareRequest.model_validate(answer["hardware"])
    estimate, better, text = answer["estimate"], answer["better"], ""
    if estimate["feasible"]:
        notes = [note for note in estimate["notes"] if note.rstrip(".") not in answer["reasons"]]
        text = estimate_text(answer["candidate"], {**estimate, "notes": notes})
    offer: dict[str, Any] = {}
    if better is not None:
        several = len({start["node"] for start in better["commands"]}) > 1
        offer = {"speed": serving_speed(better["estimate"]), "several": several}
    changes = change_lines([change for change in answer["changes"] if "options" not in change])
    title = f"{hardware.devices} × {hardware.device_name}"
    return _PHRASES.text("verdict", answer, title, text, offer, "\n".join(changes))


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


def changed_lines(difference: Sequence[Json]) -> list[str]:
    """The words that change from one command to another: ``- -tp 2``, ``+ -tp 4``."""
    signs = {"removed": "-", "added": "+"}
    return [
        f"{signs[run['kind']]} {quote_command(run['words'])}"
        for run in difference
        if run["kind"] in signs
    ]


def memory_meant(answer: Json) -> str:
    """Tell a command's two memory figures apart: that of the load and that of the start."""
    memory = answer["estimate"]["memory"]
    return _PHRASES.sentence("memory", answer["workload"], memory, answer["start_bytes"])


def idle_devices_text(waste: Json) -> str:
    """Devices that a command leaves idle, and what replicas on them would give; else empty."""
    return _PHRASES.sentence("wasted", waste) if waste.get("idle") else ""


_PHRASES = Phrases(
    "commands", words=words_text, changed=changed_lines, engine=lambda name: engine(name).title
)


# --- deployment files ----------------------------------------------------------------------------


def deployment_text(answer: Json) -> str:
    """One block for each engine of a file, then what was not read."""
    blocks = [_engine_text(engine) for engine in answer["engines"]]
    blocks += [f"{_place_text(part)}\n  not read: {part['why']}" for part in answer["left"]]
    return "\n\n".join(blocks) or f"No engine in this {answer['kind']} file."


def _engine_text(answer: Json) -> str:
    verdict = verdict_text(answer) if "judged_with" in answer else ""
    return _PHRASES.text("engine", answer, _place_text(answer), verdict, _error_text(answer))


def _place_text(part: Json) -> str:
    return f"{part['where']}, line {part['line']}" if part.get("line") else str(part["where"])


def _error_text(answer: Json) -> str:
    error = answer.get("error") or {}
    return " ".join(str(error[name]) for name in ("field", "message", "hint") if error.get(name))


def _engine_name(answer: Json) -> str:
    name = (answer.get("engine") or {}).get("name")
    return engine(name).title if name else ""


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
    Column("Engine", _engine_name, align="left"),
    Column("Model", _model_text, align="left"),
    Column("Hardware", _hardware_text, align="left"),
    Column("Verdict", _judgement, align="left"),
)


def folder_text(answers: Sequence[Json]) -> str:
    """A table of every engine of a folder, and how many have each verdict."""
    counts = Counter(str(answer.get("verdict") or "not read") for answer in answers)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return f"{terminal(answers, FOLDER)}\n{summary}" if answers else "No engine was found."
