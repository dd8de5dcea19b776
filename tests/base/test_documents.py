from __future__ import annotations

import json
import math

from recipe_core.base import documents
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over


def test_what_yaml_holds_is_read_and_written_alike():
    assert documents.parse_yaml("tokens: 15e9\nrate: 2.5e-3") == {"tokens": 15e9, "rate": 2.5e-3}
    # a value in two places is written twice
    shared = {"a": [1]}
    assert documents.parse_yaml(documents.to_yaml([shared, shared])) == [shared, shared]
    # ends of lines of one YAML only are written as escapes
    for text in ("a\u2028b", "a\u2029", "\x85", "\ufeffa"):
        assert documents.to_yaml({"a": text}).isascii()
        assert documents.parse_yaml(documents.to_yaml({"a": text})) == {"a": text}


def test_writing_is_whole_or_not_at_all(tmp_path):
    target = tmp_path / "file"
    documents.write_whole(target, b"old")
    error = refusal(documents.write_whole, tmp_path / "missing" / "file", b"new")
    assert "cannot write" in str(error)
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    # and broken JSON is not read
    for text in ("NaN", "Infinity", "{", "[" * 100_000):
        refusal(documents.parse_json, text)


WORDS = [
    *("1e-08", "1E5", "-2.5e+3", ".5", "0o17", "y", "N", "on", "null", "1_000", "0x1f", "8000"),
    *("2026-01-02", "a: b", "*x"),
]


@over("word", WORDS)
def test_words_that_look_like_something_else_stay_words(word):
    text = documents.to_yaml({"command": [word]})
    assert documents.parse_yaml(text) == {"command": [word]}
    assert f"'{word}'" in text


VALUES = [
    {
        "a": {"b": [1, 2.5, True, None, 'é"\n'], "c": {}},
        "d": [],
        "e": (),
        "f": [[], {"g": (1,)}],
    },
    [1e16, 1e-7, -0.0, math.nan, [math.inf]],
    {1: {True: 1, None: 2, 2.5: math.nan}},
    "text",
    math.nan,
]


@over("value", VALUES)
def test_indented_json_is_as_the_library_writes_it_and_unknown_figures_null(value):
    finite = documents.finite(value)
    written = json.dumps(finite, indent=1, ensure_ascii=False, allow_nan=False)
    assert documents.to_json(value) == written
    figures = {"a": [math.nan, 1.5], "b": math.inf}
    assert documents.to_json(figures, indent=None) == '{"a": [null, 1.5], "b": null}'
