"""Variation of lengths, by the few names that people choose from."""

from __future__ import annotations

from typing import Any

from recipe_core.request.serving_workload import SIDES, ServingWorkload

_FIELDS = tuple(f"{side}_{part}" for side in SIDES for part in ("spread", "lengths"))
# What each name states of prompts and answers; of all else nothing.
_STATED: dict[str, dict[str, Any]] = {
    "usual": {},
    "exact": {"spread": 0.0},
    # chats, such as ShareGPT's, have a long tail: a coefficient of variation of 1 is assumed
    "chats": {"lengths": {"shape": "lognormal", "cv": 1.0}},
    "trace": {"lengths": {"shape": "trace"}},
}
_TITLES = {
    "usual": "As usual (±10 %)",
    "exact": "Not at all, as in benchmarks",
    "chats": "Widely, as chats (ShareGPT)",
    "trace": "As in the trace",
}


def variation_name(workload: ServingWorkload) -> str:
    """Return how lengths vary by its name; empty for figures of one's own."""
    fields = workload.model_dump(include=set(_FIELDS), exclude_none=True)
    return next((name for name in _STATED if fields == _fields_of(name)), "")


def variation_text(workload: ServingWorkload) -> str:
    """Say how lengths vary after what they are, unless as usual: ``, all alike``."""
    texts = {"usual": "", "exact": ", all alike", "chats": ", widely varied"}
    return texts.get(variation_name(workload), ", varied as stated")


def _fields_of(name: str) -> dict[str, Any]:
    return {f"{side}_{part}": value for side in SIDES for part, value in _STATED[name].items()}


def offered_variations(workload: ServingWorkload) -> dict[str, str]:
    """Titles by the names that a workload may have; a trace's only where it brings lengths."""
    traced = workload.over_time is not None and bool(workload.over_time.lengths)
    offered = {name: title for name, title in _TITLES.items() if name != "trace" or traced}
    return offered if variation_name(workload) else {"": "Your own figures", **offered}


def variation_changes(name: str) -> dict[str, Any]:
    """Return changes of a request, by dotted fields, after which its lengths vary so.

    Means stay, but for a trace, which has its own.
    """
    means = [f"{side}_tokens" for side in SIDES if name == "trace"]
    fields = dict.fromkeys([*means, *_FIELDS]) | _fields_of(name)
    return {f"workload.{field}": value for field, value in fields.items()}
