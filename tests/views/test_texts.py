"""Texts of templates: units as filters, one line for what a user wrote, facts by title."""

import pytest

from recipe_core.views import texts
from recipe_core.views.texts import Block, Phrases

TEMPLATE = """\
{% macro facts(name, size) %}
Name: {{ name }}

Size: {{ size | gib }} of {{ name | loud }}
{% endmacro %}
{% macro table(rows) %}
{{ rows }}
{% endmacro %}
{% macro cells(title, size) %}
{{ title }} | {{ size }}
{% endmacro %}
"""


@pytest.fixture
def phrases(tmp_path, monkeypatch):
    (tmp_path / "some.j2").write_text(TEMPLATE)
    monkeypatch.setattr(texts, "FOLDER", tmp_path)
    return Phrases("some", loud=str.upper)


def test_a_value_is_one_line_and_a_block_keeps_its_own(phrases):
    facts = phrases.facts("facts", "a\nSize: b", 2**30)
    assert facts == {"Name": "a Size: b", "Size": "1.00 GiB of A SIZE: B"}
    assert list(phrases.lines("table", "a\nb")) == ["a b"]
    assert phrases.text("table", Block("a\n\nb")) == "a\nb"
    assert phrases.sentence("table", Block("a\n  b")) == "a b"


def test_a_bar_in_a_value_parts_no_cells(phrases):
    assert list(phrases.rows("cells", "a | b", "c|d")) == [("a | b", "c|d")]
    assert list(phrases.lines("cells", "a | b", 1)) == ["a | b | 1"]
