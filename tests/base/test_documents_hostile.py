"""Documents that are made to break what reads them: refused in words, and soon."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base import documents, errors
from recipe_core.base.documents import check_plain, finite, parse_json, parse_yaml, to_json
from recipe_core.base.errors import InputError
from recipe_core.bundle.manifest import MANIFEST, Manifest
from recipe_core.bundle.write import bundle_files
from recipe_core.commands.judge import check_command
from recipe_core.model.checkpoint import checkpoint_bytes
from recipe_core.request import link
from tests.fixtures.recipes import recipe_of
from tests.fixtures.sizes import examples

BOTH = pytest.mark.parametrize("parse", [parse_json, parse_yaml])


def nested(depth: int) -> Any:
    value: Any = "x"
    for n in range(depth):
        value = [value] if n % 2 else {"a": value}
    return value


@BOTH
def test_levels_are_counted_alike(parse: Any) -> None:
    deepest = "[" * documents.MAX_DEPTH + "]" * documents.MAX_DEPTH
    assert parse(deepest)
    for deeper in (f"[{deepest}]", "[" * 900 + "]" * 900, "[" * 100_000):
        with pytest.raises(InputError, match="more than 64 levels"):
            parse(deeper)


@BOTH
def test_values_are_counted(parse: Any) -> None:
    many = ",".join(["1"] * (documents.MAX_NODES - 1))
    assert len(parse(f"[{many}]")) == documents.MAX_NODES - 1
    with pytest.raises(InputError, match="200,000 values"):
        parse(f"[{many},1]")


def test_what_somebody_else_parsed_is_counted_too() -> None:
    check_plain(nested(documents.MAX_DEPTH))
    for depth in (documents.MAX_DEPTH + 1, 900, 50_000):
        with pytest.raises(InputError, match="more than 64 levels"):
            check_plain(nested(depth))
    with pytest.raises(InputError, match="200,000 values"):
        check_plain({str(n): n for n in range(100_001)})
    assert finite(nested(documents.MAX_DEPTH))
    assert to_json(nested(documents.MAX_DEPTH))


@pytest.mark.parametrize(
    "value", ["\ud800", {"\udfff": 1}, [{"a": ["é\udc00"]}], {"a": {"b": "x\ud83dx"}}]
)
def test_half_a_character_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="half a character"):
        check_plain(value)
    with pytest.raises(InputError, match="half a character"):
        parse_json(json.dumps(value))
    with pytest.raises(InputError, match=r"not valid YAML|half a character|not allowed"):
        parse_yaml(json.dumps(value))


def test_a_whole_character_in_two_halves_is_one() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "😀"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("NaN", "not a number that JSON knows"),
        ("-Infinity", "not a number that JSON knows"),
        ("1e999", "holds inf, which is not a number"),
        ("9" * 5000, "more than 300 digits"),
        ("-" + "9" * 301, "more than 300 digits"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"b": {"a": 1, "c": 1, "a": 1}}', "duplicate key 'a'"),
    ],
)
def test_json_that_programs_read_differently_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        parse_json(text, "the body")
    assert str(refused.value).startswith("the body ")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: .nan", "holds nan"),
        ("a: .inf", "holds inf"),
        ("9" * 5000, "more than 300 digits"),
        ("a: " + "1:" * 1_000_000 + "1", "more than 300 digits"),
        ("a: 1:" + "00:" * 140 + "0.5", "more than 300 digits"),
        ("<<: {a: 1}", "merge key"),
        ("? [a]\n: 1", "is a list or a mapping"),
        ("? {a: 1}\n: 1", "is a list or a mapping"),
        ("1: a\ntrue: b", "duplicate key"),
        ("a: !!bool maybe", "YAML tag"),
        ("a: !!int ''", "YAML tag"),
        ("a: !!timestamp soon", "YAML tag"),
        ("a: !!set {b, c}", "YAML tag"),
        ("a: !anything b", "YAML tag"),
        ("a: 2026-13-45", "cannot be read"),
    ],
)
def test_yaml_that_means_more_than_it_says_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_yaml(text)


def test_a_lone_equals_sign_is_a_text() -> None:
    assert parse_yaml("a: =") == {"a": "="}


@settings(max_examples=examples(300), deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**290), 10**290)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
        ),
        max_leaves=20,
    )
)
def test_every_other_value_is_read_as_it_was_written(value: Any) -> None:
    check_plain(value)
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False)) == value


# --- Time


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (30, 30))


def cli(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line with 30 s of processor time, which quadratic work exceeds by far."""
    return subprocess.run(
        [sys.executable, "-m", "recipe_core", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(documents.__file__).parents[2])},
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )


def keys(count: int) -> str:
    return "\n".join(f"key{n}: {n}" for n in range(count))


def test_many_keys_take_time_with_their_number_only(tmp_path: Path) -> None:
    recipe = recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2)
    files = bundle_files(recipe)
    files["recipe.yaml"] += keys(60_000).encode()
    del files[MANIFEST]
    manifest = Manifest.of(recipe.name, recipe.digest, files)
    files[MANIFEST] = to_json(manifest.model_dump()).encode()
    for name, data in files.items():
        path = tmp_path / "bundle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "request.yaml").write_text(keys(99_000))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({f"k{n}": n for n in range(99_000)}))
    for words, says in (
        (("check", "bundle"), "recipe.yaml"),
        (("plan", "request.yaml"), "key0"),
        (("models", "./model"), "hidden_size"),
    ):
        answer = cli(*words, folder=tmp_path)
        assert answer.returncode in (1, 2), (words, answer)
        assert says in answer.stderr + answer.stdout, (words, answer)
        assert "Traceback" not in answer.stderr


def test_the_nearest_names_are_looked_for_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from recipe_core.commands import arguments, unknown_words
    from recipe_core.commands.ground import Ground

    looked: list[str] = []

    def counted(word: str, *_: Any, **__: Any) -> list[str]:
        looked.append(word)
        return []

    monkeypatch.setattr(unknown_words.difflib, "get_close_matches", counted)
    words = ["vllm", "serve", "Qwen/Qwen3-8B", *(f"--unheard-of-{n}" for n in range(2500))]
    verdict = check_command(words, Ground.of(hardware="h100-sxm"), folders=False)
    assert len([f for f in verdict["findings"] if f["code"] == "unknown"]) == 2500
    assert 0 < len(looked) <= arguments.SUGGESTIONS


def test_the_nearest_names_of_a_long_one_are_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors.difflib, "get_close_matches", None)
    message, hint = errors.unknown("model", "x" * 4_000_000, ["a", "b"])
    assert len(message) < 200
    assert hint == "Available: a, b."


def test_an_error_shows_no_more_of_a_field_than_one_can_read() -> None:
    assert len(str(InputError("is not a known field.", field="x" * 1_000_000))) < 500


# --- Where documents come in


def test_links_with_documents_of_any_kind_open() -> None:
    for text in (
        '{"a": "\\ud800"}',
        "{" * 5000,
        '{"a": 1, "a": 2}',
        '{"a": 1e999}',
        f'{{"a": {"9" * 5000}}}',
    ):
        _, ignored = link.from_query({"model": text})
        assert len(ignored) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"metadata": {"total_size": 1e999}}',
        '{"metadata": []}',
        "null",
        '"x"',
        '{"metadata": {"total_size": ' + "9" * 5000 + "}}",
    ],
)
def test_an_index_of_any_kind_says_nothing_about_the_size(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert checkpoint_bytes(tmp_path) is None


@pytest.mark.parametrize("header", [b"[" * 100_000, b'{"a": {"data_offsets": []}}', b'{"a": 1}'])
def test_a_header_of_any_kind_says_nothing_about_the_size(header: bytes, tmp_path: Path) -> None:
    data = len(header).to_bytes(8, "little") + header
    (tmp_path / "model.safetensors").write_bytes(data)
    assert checkpoint_bytes(tmp_path) is None


def test_a_config_of_the_hub_is_read_like_any_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    from recipe_core.model import hub

    file = tmp_path / "config.json"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(file))
    monkeypatch.setattr(hub, "_reachable", lambda: False)
    for n, text in enumerate(("[" * 900 + "]" * 900, '{"a": "\\ud800"}', "{", "[]")):
        file.write_text(text)
        with pytest.raises(errors.ModelError, match=r"config\.json of owner/"):
            hub.hub_config(f"owner/model-{n}")
    file.write_text('{"a": Infinity, "b": NaN}')  # as published configs have them
    assert hub.hub_config("owner/model-of-constants") == {"a": None, "b": None}
