"""Text of a user is shown as it is: no field of a profile, model or request is read as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from google.protobuf.message import Message
from streamlit.testing.v1 import AppTest

from recipe_core.hardware.cluster import device
from recipe_core.model.catalog import catalog_entry
from recipe_core.present.charts.views import views_of
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan
from tests.fixtures.opening import PAGES, opened, shown
from tests.pages.test_recipe_page import TABS


def payload(field: str) -> str:
    """Text in which a reader of Markdown finds an image, a link, a colour, a formula …"""
    word = f"payload-{field}"
    return f"![{word}](http://e.example/a) **{word}** :red[{word}] ${word}$ [{word}](x:y)"


def profile(name: str) -> dict[str, Any]:
    """A device of the user with a payload in every field that takes free text."""
    base = device("h100-sxm")

    def quantity(value: float) -> dict[str, Any]:
        return {"value": value, "source": "ours", "status": "measured", "note": payload("note")}

    return {
        "schema_version": 1,
        "name": name,
        "based_on": base.name,
        "title": payload(f"title-of-{name}"),
        "tdp_watts": quantity(500),
        "idle_watts": quantity(80),
        "memory_bytes": quantity(base.memory_bytes.value),
        "memory_bandwidth_bytes_per_s": quantity(base.memory_bandwidth_bytes_per_s.value),
        "peak_flops_per_s": {"bf16": quantity(base.peak_flops_per_s["bf16"].value)},
        "sources": {
            "ours": {
                "title": payload("source"),
                "date": "![payload-date](http://e.example)",
                "command": payload("command"),
                "url": "https://e.example/[x]**y**",
            }
        },
    }


MODEL = catalog_entry("Qwen/Qwen3-8B").config | {
    "_name_or_path": payload("model"),
    "note": payload("configuration"),
}
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "hardware": {"device": profile("mine"), "per_node": 8},
    "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 16},
    "options": {
        "engines": ["vllm"],
        "environment": {"NCCL_DEBUG": payload("variable")},
        "engine_options": {"chat_template": payload("option")},
        "hardware": [{"device": profile("other"), "per_node": 4}],
    },
}
TRAINING = REQUEST | {
    "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e9},
    "options": {},
}
REFUSED = REQUEST | {
    "hardware": {"device": profile("mine"), "per_node": 1},
    "options": {"environment": {}},
    "objective": {"limits": {"ttft_ms": 0.001}},
}
VERBATIM = {
    *(("Code", "code_text"), ("PageLink", "query_string"), ("PlotlyChart", "spec")),
    *(("TextInput", field) for field in ("placeholder", "value", "default")),
    *(("TextArea", field) for field in ("value", "default")),
    *(("Selectbox", field) for field in ("options", "raw_value")),
}
"""Fields of messages that no browser reads as Markdown."""
READ = re.compile(r"\[payload[\w-]*\]|\*\*payload|\$payload|:red\[payload")
"""What of a payload is Markdown."""


def opened_with(request: PlanRequest, page: str) -> AppTest:
    app = opened()
    app.session_state["request"], app.session_state["edited"] = request, True
    return app.run() if page == "model.py" else app.switch_page(page).run()


def nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", {}).values():
        yield from nodes(child)


def texts(message: Message) -> Iterator[tuple[str, str]]:
    """Every text of a message, with the name of its field."""
    for field, value in message.ListFields():
        listed = (
            value if hasattr(value, "__len__") and not isinstance(value, str | bytes) else [value]
        )
        for item in listed.values() if isinstance(listed, Mapping) else listed:
            if isinstance(item, str):
                yield field.name, item
            elif isinstance(item, Message):
                yield from texts(item)


def sent(app: AppTest) -> Iterator[tuple[str, str, str]]:
    """Kind of element, field and text of everything that a page sends to the browser."""
    for tree in app._tree.children.values():
        for node in nodes(tree):
            kind, message = type(node).__name__, getattr(node, "proto", None)
            if kind == "Table":  # its cells are Markdown, those of a dataframe are not
                cells = node.value.reset_index().astype(str).to_numpy().ravel()
                yield from ((kind, "cell", str(cell)) for cell in [*cells, *node.value.columns])
            elif message is not None:
                yield from ((kind, *pair) for pair in texts(message))


def assert_verbatim(app: AppTest) -> int:
    """Nothing of a payload is Markdown; how many texts hold one."""
    assert not app.exception, [error.value for error in app.exception]
    others = [item for item in sent(app) if item[:2] not in VERBATIM]
    for kind, field, text in others:
        assert not READ.search(re.sub(r"\\.", "", text)), (kind, field, text)
    return sum("payload" in text for _, _, text in others)


@pytest.mark.parametrize("kind", ["serving", pytest.param("training", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("page", PAGES)
def test_no_text_of_a_user_is_markdown(page: str, kind: str) -> None:
    request = PlanRequest.parse(REQUEST if kind == "serving" else TRAINING)
    app = opened_with(request, page)
    assert assert_verbatim(app) > 0
    more: list[tuple[str, str]] = []
    if page == "compare.py":
        more = [("views", view.title) for view in views_of(plan(request))]
    if page == "recipe.py" and kind == "serving":
        more = [("tabs", tab) for tab in TABS]
    for state, title in more:
        assert_verbatim(shown(app, **{state: title}))


def test_no_refusal_or_error_is_markdown() -> None:
    for page in ("model.py", "compare.py"):
        app = opened_with(PlanRequest.parse(REFUSED), page)
        assert "does not hold" in app.error[0].value
        assert_verbatim(app)
    request = PlanRequest.parse(REQUEST | {"hardware": {"device": payload("device")}})
    app = opened_with(request, "model.py")
    assert "unknown device" in app.error[0].value
    assert READ.search(re.sub(r"\\.", "", app.error[0].value)) is None


def test_no_word_of_a_command_is_markdown() -> None:
    app = opened_with(PlanRequest.parse(REQUEST), "check.py")
    serve = "vllm serve Qwen/Qwen3-32B -tp 2"
    for command in (
        f"{serve} '--{payload('option')}' '{payload('value')}'",
        f"{serve} '--x`{payload('option')}`' 3",
        f"{serve} --dtype '{payload('value')}'",
        f"vllm serve '{payload('model')}' -tp 2",
        f"'{payload('program')}' serve x",
    ):
        app.text_area(key="command").set_value(command).run()
        assert_verbatim(app)


def test_a_payload_would_be_seen() -> None:
    assert len(READ.findall(payload("x"))) == 5
    assert READ.search(re.sub(r"\\.", "", f"Best: \\*\\*a\\*\\* {payload('x')}"))
