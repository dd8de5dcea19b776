"""What a reader does on a page, and what its words, widgets and link say after each step."""

from __future__ import annotations

import re
from functools import partialmethod
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.fixtures.opening import (
    CHOSEN,
    codes,
    edited,
    figure,
    opened,
    press,
    put,
    query_of,
    shown,
    states_hardware,
    words,
)
from tests.fixtures.rows import table


class Session:
    """One reader: the steps of a row by their names."""

    app: AppTest

    def open(self, link: str) -> None:
        self.app = opened(link)

    def arrive(self, link: str) -> None:
        """As ``open``, where the hardware is to be found."""
        self.app = opened(link, hardware_chosen=False)

    def go(self, page: str) -> None:
        self.app.switch_page(page)
        shown(self.app)

    def put(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            put(self.app, key, value)

    def type(self, values: dict[str, str]) -> None:
        """Type without leaving the box, as before a click on a button."""
        for key, value in values.items():
            self.app.get_by_key(key).set_value(value)

    def upload(self, files: dict[str, list[str]]) -> None:
        """Names and contents of files."""
        for key, (name, content) in files.items():
            put(self.app, key, (name, content.encode(), "text/plain"))

    def press(self, key: str) -> None:
        press(self.app, key)

    def state(self, values: dict[str, Any]) -> None:
        """Of the session: the open tab, what is chosen."""
        shown(self.app, **values)

    def address(self, fields: dict[str, str]) -> None:
        """Edit the link."""
        self.app.query_params.update(fields)
        shown(self.app)

    def reopen(self, page: str) -> None:
        """Open another page by the link of this one."""
        self.app = opened(page, **query_of(self.app))

    def edit(self, fields: dict[str, Any]) -> None:
        """Change the request as another page would."""
        edited(self.app, fields)

    def title(self, text: str) -> None:
        assert [title.value for title in self.app.title] == [text]

    def caption(self, text: str) -> None:
        """What the first caption of the page itself holds."""
        assert text in self.app.get_by_key("body").caption[0].value

    def link(self, fields: dict[str, str | None]) -> None:
        """Fields of the link; null: the link has none."""
        query = query_of(self.app)
        assert {name: query.get(name) for name in fields} == fields

    def link_holds(self, texts: dict[str, str]) -> None:
        query = query_of(self.app)
        assert {name for name, text in texts.items() if text not in query[name]} == set()

    def page(self, name: str) -> None:
        """The page that is open, which a button may have opened."""
        assert self.app.session_state["page"] == name

    def query(self, fields: dict[str, str | None]) -> None:
        """The whole link; chosen hardware is the usual one, unless the fields say otherwise.

        ``hardware: null``: it is open, and the link says nothing of it.
        """
        usual = {} if "hardware" in fields or states_hardware(fields) else CHOSEN
        stated = {name: text for name, text in fields.items() if name != "hardware"}
        assert query_of(self.app) == {"v": "1"} | usual | stated

    def says(self, texts: list[str]) -> None:
        said = words(self.app)
        assert [text for text in texts if text not in said] == []

    def silent(self, texts: list[str]) -> None:
        said = words(self.app)
        assert [text for text in texts if text in said] == []

    def copies(self, texts: list[str]) -> None:
        """What the texts to copy hold."""
        assert [text for text in texts if text not in self._copied()] == []

    def copies_no(self, texts: list[str]) -> None:
        assert [text for text in texts if text in self._copied()] == []

    def _copied(self) -> str:
        return "\n".join(codes(self.app)).replace(" \\\n   ", "")

    def _box(self, kind: str, texts: list[str]) -> None:
        """What the first box of a kind says; without texts there is none."""
        boxes = [str(box.value).replace("\\", "") for box in getattr(self.app, kind)]
        assert bool(boxes) == bool(texts), boxes
        assert [text for text in texts if text not in boxes[0]] == [], boxes

    error = partialmethod(_box, "error")
    success = partialmethod(_box, "success")
    warning = partialmethod(_box, "warning")
    info = partialmethod(_box, "info")

    def shows(self, values: dict[str, Any]) -> None:
        assert {key: self.app.get_by_key(key).value for key in values} == values

    def disabled(self, states: dict[str, bool]) -> None:
        assert {key: self.app.get_by_key(key).disabled for key in states} == states

    def offers(self, options: dict[str, list[str]]) -> None:
        """Patterns, each of which an option of a widget fits whole."""
        for key, patterns in options.items():
            found = self.app.get_by_key(key).options
            missing = [p for p in patterns if not any(re.fullmatch(p, text) for text in found)]
            assert missing == [], found

    def offers_no(self, options: dict[str, list[str]]) -> None:
        for key, texts in options.items():
            assert set(texts).isdisjoint(self.app.get_by_key(key).options)

    def selects(self, options: list[str]) -> None:
        """What any box to select from offers."""
        assert set(options) <= {option for box in self.app.selectbox for option in box.options}

    def metrics(self, texts: list[str]) -> None:
        assert set(texts) <= {metric.value for metric in self.app.metric}

    def has(self, keys: list[str]) -> None:
        for key in keys:
            assert self.app.get_by_key(key)

    def lacks(self, keys: list[str]) -> None:
        for key in keys:
            with pytest.raises(KeyError):
                self.app.get_by_key(key)

    def table(self, texts: list[str]) -> None:
        """What the first table holds."""
        cells = self.app.table[0].value.to_string().replace("\\", "")
        assert [text for text in texts if text not in cells] == []

    def tabs(self, titles: list[str]) -> None:
        assert set(titles) <= {tab.label for tab in self.app.tabs}

    def no_tabs(self, titles: list[str]) -> None:
        assert set(titles).isdisjoint(tab.label for tab in self.app.tabs)

    def lists(self, keys: list[str]) -> None:
        """Splits or devices in the first list of the page."""
        assert set(keys) <= set(self.app.dataframe[0].value["key"])

    def lists_no(self, keys: list[str]) -> None:
        assert set(keys).isdisjoint(self.app.dataframe[0].value["key"])

    def only(self, keys: list[str]) -> None:
        assert self.app.dataframe[0].value["key"].tolist() == keys

    def first(self, cells: dict[str, str]) -> None:
        """Cells of the first row of the first list."""
        row = self.app.dataframe[0].value.iloc[0]
        assert {name: row[name] for name in cells} == cells

    def first_key(self, start: str) -> None:
        assert self.app.dataframe[0].value["key"][0].startswith(start)

    def leads(self, links: list[str]) -> None:
        assert set(links) <= {link.proto.label for link in self.app.get("page_link")}

    def labels(self, patterns: dict[str, str]) -> None:
        """Of buttons."""
        for key, pattern in patterns.items():
            assert re.fullmatch(pattern, self.app.button(key=key).label.replace("\\", ""))

    def draws(self, charts: dict[str, list[str]]) -> None:
        """Charts, and what their legends name."""
        for key, names in charts.items():
            traces = figure(self.app, key)["data"]
            assert traces
            assert set(names) <= {trace.get("name") for trace in traces}

    def no_charts(self, none: bool) -> None:
        assert bool(self.app.get("plotly_chart")) != none

    def bar(self, texts: list[str]) -> None:
        """What stands at the foot of the window, in two lines; without texts there is no bar."""
        lines = (str(text.value).replace("\\", "") for text in self.app.markdown)
        bar = next((text for text in lines if "]\n:small[" in text), "")
        assert bool(bar) == bool(texts)
        assert [text for text in texts if text not in bar] == []
        assert len(bar.split("\n")) == (2 if texts else 1)


def follow(steps: list[dict[str, Any]]) -> None:
    session = Session()
    for step in steps:
        for name, value in step.items():
            getattr(session, name)(value)


@pytest.mark.parametrize("name", table("sessions", "by_day"))
def test_a_session(name: str) -> None:
    follow(table("sessions", "by_day")[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", table("sessions", "at_night"))
def test_a_session_of_the_night(name: str) -> None:
    follow(table("sessions", "at_night")[name])
