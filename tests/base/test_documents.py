from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from recipe_core.base import documents
from recipe_core.base.errors import InputError


def test_numbers_with_an_exponent_are_numbers():
    assert documents.parse_yaml("tokens: 15e9\nrate: 2.5e-3") == {"tokens": 15e9, "rate": 2.5e-3}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x [1]\nb: *x", "alias"),
        ("a: 1\na: 2", "duplicate key"),
        ("[" * 80 + "]" * 80, "more than 64 levels"),
        ("a: {b: ", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "YAML tag"),
        ("\x00", "not valid YAML"),
        ("x" * (documents.MAX_DOCUMENT_BYTES + 1), "the limit is"),
    ],
)
def test_dangerous_or_broken_yaml_is_refused(text, says):
    with pytest.raises(InputError, match=says):
        documents.parse_yaml(text)


def test_a_billion_laughs_is_refused_before_it_grows():
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    with pytest.raises(InputError, match="alias"):
        documents.parse_yaml(bomb)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "{", "[" * 100_000])
def test_broken_json_is_refused(text):
    with pytest.raises(InputError):
        documents.parse_json(text)


def test_writing_is_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "file"
    documents.write_whole(target, b"old")
    with pytest.raises(InputError, match="cannot write"):
        documents.write_whole(tmp_path / "missing" / "file", b"new")
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_unknown_figures_become_null():
    assert (
        documents.to_json({"a": [float("nan"), 1.5], "b": float("inf")}, indent=None)
        == '{"a": [null, 1.5], "b": null}'
    )


@pytest.mark.parametrize(
    "word",
    [
        "1e-08",
        "1E5",
        "-2.5e+3",
        ".5",
        "0o17",
        "y",
        "N",
        "on",
        "null",
        "1_000",
        "0x1f",
        "8000",
        "2026-01-02",
        "a: b",
        "*x",
    ],
)
def test_words_that_look_like_something_else_stay_words(word):
    text = documents.to_yaml({"command": [word]})
    assert documents.parse_yaml(text) == {"command": [word]}
    assert f"'{word}'" in text


def test_a_value_in_two_places_is_written_twice():
    shared = {"a": [1]}
    assert documents.parse_yaml(documents.to_yaml([shared, shared])) == [shared, shared]


@pytest.mark.parametrize(
    "value",
    [
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
    ],
)
def test_indented_json_is_as_the_library_writes_it(value: object) -> None:
    assert documents.to_json(value) == json.dumps(
        documents.finite(value), indent=1, ensure_ascii=False, allow_nan=False
    )


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029", "\x85", "\ufeffa"])
def test_ends_of_lines_of_one_yaml_only_are_written_as_escapes(text):
    assert documents.to_yaml({"a": text}).isascii()
    assert documents.parse_yaml(documents.to_yaml({"a": text})) == {"a": text}
