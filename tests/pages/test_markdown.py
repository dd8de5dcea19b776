"""Text of a user is shown as it is: no field of a profile, model or request is read as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from google.protobuf.message import Message
from streamlit.testing.v1 import AppTest

from recipe_core.models.catalog import catalog_entry
from recipe_core.plans.plans import plan_splits
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import Kept, shelf_query
from recipe_core.views.charts.views import views_of
from tests.fixtures.opening import (
    LLAMA_70B,
    PAGES,
    TABS,
    TP4,
    TP8,
    chosen,
    figure,
    open_lens,
    open_view,
    opened,
    put,
    shown,
)
from tests.fixtures.rows import table


def payload(field: str) -> str:
    """Text in which a reader of Markdown finds an image, a link, a colour, a formula …"""
    word = f"payload-{field}"
    return f"![{word}](http://e.example/a) **{word}** :red[{word}] ${word}$ [{word}](x:y)"


MODEL = catalog_entry("Qwen/Qwen3-8B").config | {
    "_name_or_path": payload("model"),
    "note": payload("configuration"),
}


def filled(value: Any) -> Any:
    """A part of the table with payloads and profiles in place of their names."""
    if isinstance(value, dict):
        return {name: filled(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner) for inner in value]
    kind, _, name = str(value).partition("-")
    if kind == "profile":
        return filled(table("markdown", "profile")) | {"name": name}
    return payload(name) if kind == "payload" else value


def request(kind: str) -> PlanRequest:
    return PlanRequest.parse({"model": MODEL, **filled(table("markdown", kind))})


VERBATIM = {
    *(("Code", "code_text"), ("PageLink", "query_string")),
    *((chart, "spec") for chart in ("PlotlyChart", "UnknownElement")),
    *(("TextInput", field) for field in ("placeholder", "value", "default")),
    *(("TextArea", field) for field in ("value", "default")),
    *(("Selectbox", field) for field in ("options", "raw_value")),
}
"""Fields of messages that no browser reads as Markdown."""
LENSES = ("formats", "over-time", "layouts")
"""Views of the plan beside those of one layout."""
READ = re.compile(r"\[payload[\w-]*\]|\*\*payload|\$payload|:red\[payload")
"""What of a payload is Markdown."""


def opened_with(asked: PlanRequest, page: str) -> AppTest:
    app = opened()
    app.session_state["request"], app.session_state["edited"] = asked, True
    return app.run() if page == "model.py" else app.switch_page(page).run()


def nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", {}).values():
        yield from nodes(child)


def texts(message: Message) -> Iterator[tuple[str, str]]:
    """Every text of a message, with the name of its field."""
    for field, value in message.ListFields():
        several = hasattr(value, "__len__") and not isinstance(value, str | bytes)
        listed = value if several else [value]
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
    app = opened_with(request(kind), page)
    assert assert_verbatim(app) > 0
    if page == "plan.py":
        assert_verbatim(shown(app, **{"why-not": True}))
        for lens in LENSES:
            assert_verbatim(open_lens(app, lens))
        for view in views_of(plan_splits(request(kind))):
            assert_verbatim(open_view(app, view.title))
    if page == "ship.py" and kind == "serving":
        for tab in TABS:
            assert_verbatim(shown(app, tabs=tab))


def test_no_refusal_or_error_is_markdown() -> None:
    assert len(READ.findall(payload("x"))) == 5
    for page in ("model.py", "plan.py"):
        app = opened_with(request("refused"), page)
        assert "does not hold" in app.error[0].value
        assert_verbatim(app)
    app = opened_with(request("unknown"), "model.py")
    assert "unknown device" in app.error[0].value
    assert READ.search(re.sub(r"\\.", "", app.error[0].value)) is None


def test_no_word_of_a_command_is_markdown() -> None:
    app = opened_with(request("serving"), "check.py")
    serve = "vllm serve Qwen/Qwen3-32B -tp 2"
    for command in (
        f"{serve} '--{payload('option')}' '{payload('value')}'",
        f"{serve} '--x`{payload('option')}`' 3",
        f"{serve} --dtype '{payload('value')}'",
        f"vllm serve '{payload('model')}' -tp 2",
        f"'{payload('program')}' serve x",
    ):
        assert_verbatim(put(app, "command", command))


def test_names_models_and_devices_of_kept_choices_are_read_as_text() -> None:
    own = chosen(TP8, {"model": LLAMA_70B, "hardware.device": filled("profile-mine")})
    inline = chosen(TP4, {"model": MODEL, "hardware.device": "mi300x"})
    shelf = (Kept(payload("one")[:70], own), Kept("<b>two</b> | $x$ **y**", inline))
    app = opened("side.py", **shelf_query(shelf))
    assert_verbatim(app)
    for each in app.table:
        cells = [*map(str, each.value.columns), *map(str, each.value.to_numpy().ravel())]
        assert not any("<b>" in cell for cell in cells)
    assert "<b>" not in str(figure(app, "side-chart"))
