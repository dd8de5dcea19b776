"""No page shows a name of the program, nor words of an earlier one: fields and files have words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from streamlit.testing.v1 import AppTest

from recipe_core.engines.spec import engine_names
from recipe_core.request.size import Market
from recipe_core.views.plain import describe_plainly, plain_help, plain_words
from tests.fixtures.opening import opened
from tests.fixtures.plain_words import other_words

UNSEEN = frozenset(
    {"id", "key", "userKey", "elementKey", "formId", "groupId", "spec", "arrowData", "src", "url"}
    | {"queryString", "pageScriptHash", "page", "columns", "columnOrder", "styler", "icon", "href"}
    | {"elementRef", "rawValues", "data", "type"}
)
"""Parts of an element that nobody reads."""
SERVING = {
    "model": "meta-llama/Llama-3.3-70B-Instruct",
    "hardware.device": "h100-sxm",
    "objective.optimize": "cost",
    "objective.limits.tpot_ms": "40",
}
TRAINING = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware.device": "h100-sxm",
    "workload.kind": "training",
}
STATES = {
    "serving": SERVING,
    "batch": {**SERVING, "workload.mode": "offline", "objective.limits.tpot_ms": ""},
    "nothing": {**SERVING, "objective.limits.tpot_ms": "0.5"},
    "clusters": {**SERVING, "options.hardware": '[{"device":"mi300x","per_node":8}]'},
    "embeddings": {"model": "BAAI/bge-m3", "hardware.device": "l40s"},
    "training": {**TRAINING, "workload.tokens": "1e10"},
    "grpo": {
        **TRAINING,
        "workload.method": "grpo",
        "workload.rollout.prompts": "128",
        "workload.rollout.response_tokens": "1024",
    },
}
BY_DAY = ("serving", "grpo")
PAGES = ("model.py", "traffic.py", "hardware.py", "plan.py", "ship.py", "side.py", "check.py")
LENSES = ("formats", "over-time", "why")
IDENTIFIER = re.compile(
    r"(?<![\w/.-])[a-z]+(?:_[a-z0-9]+)+(?![\w/-])"  # of several words
    r"|\b(?:workload|objective|hardware|options|candidate|parameters)\.[a-z]\w+"
    r"|\.(?:md|py)\b|Errno|\w+Enum\b|^(?:None|True|False|nan)$"
)
ENGINES = [name for name in engine_names() if "-" in name]
MATERIAL = re.compile(r":material/\w+:|\[[^\]]*\]\([^)]*\)")
"""Marks, and links with the address that they lead to."""
STYLES = re.compile(r"<style>.*?</style>|<[^<>]*>", re.DOTALL)
"""What dresses a page."""


def strings_of(value: Any, name: str = "") -> Iterator[str]:
    """Every string of an element that a reader sees."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in UNSEEN and key != "placeholder":  # of files to paste: what files hold
                yield from strings_of(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from strings_of(part, name)
    elif isinstance(value, str):
        yield value


def texts_of(node: Any) -> Iterator[str]:
    """Texts of a page but those to copy; of tables their cells."""
    for child in getattr(node, "children", {}).values():
        if hasattr(child, "children"):
            yield from texts_of(child)
        tabular = child.type in ("code", "arrow_data_frame", "dataframe", "table")
        if tabular or getattr(child, "proto", None) is None:
            continue
        yield from strings_of(MessageToDict(child.proto))


def cells_of(app: AppTest) -> Iterator[str]:
    for table in (*app.table, *app.dataframe):
        frame = table.value.drop(columns=["key"], errors="ignore")
        yield from (str(cell) for column in frame for cell in frame[column].dropna())


def identifiers(text: str) -> list[str]:
    plain = MATERIAL.sub("", text.replace("\\", ""))
    engines = [name for name in ENGINES if re.search(rf"\b{name}\b", plain)]
    return [*IDENTIFIER.findall(plain), *engines, *other_words(STYLES.sub("", plain))]


@pytest.mark.parametrize(
    "state",
    [pytest.param(state, marks=() if state in BY_DAY else pytest.mark.nightly) for state in STATES],
)
def test_no_page_shows_an_identifier(state: str) -> None:
    link = {name: value for name, value in STATES[state].items() if value}
    shown = {}
    for page, lens in [*((page, "") for page in PAGES), *(("plan.py", lens) for lens in LENSES)]:
        app = opened(page, **link, **({"lens": lens} if lens else {}))
        for text in (*texts_of(app._tree), *cells_of(app)):
            if names := identifiers(text):
                shown[page, lens, text[:200]] = names
    assert shown == {}


def test_names_of_fields_are_words_and_other_names_stay() -> None:
    said = plain_words(
        "objective.limits.tpot_ms: 5 is below total_bytes of my_model_7b/config.json"
    )
    assert said == "tpot ms: 5 is below total bytes of my_model_7b/config.json"
    assert plain_help("by `input_spread` (`hw_profiles/storage/`), or `on-demand`") == (
        "by input spread, or on-demand"
    )
    assert "`" not in describe_plainly(Market, "commitments")
