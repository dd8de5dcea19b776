"""Documents that are made to break what reads them: refused in words, and soon."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base import documents, errors
from recipe_core.base.documents import check_plain, finite, parse_json, parse_yaml, to_json
from recipe_core.base.errors import InputError
from recipe_core.bundle.manifest import MANIFEST, Manifest
from recipe_core.bundle.write import bundle_files
from recipe_core.commands import arguments, unknown_words
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.model import hub
from recipe_core.model.checkpoint import checkpoint_bytes
from recipe_core.request import link
from tests.fixtures.recipes import recipe_of
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples


def nested(depth):
    value = "x"
    for n in range(depth):
        value = [value] if n % 2 else {"a": value}
    return value


LEVELS, VALUES = "more than 64 levels", "200,000 values"


@over("parse", [parse_json, parse_yaml])
def test_levels_and_values_are_counted_alike(parse):
    deepest = "[" * documents.MAX_DEPTH + "]" * documents.MAX_DEPTH
    assert parse(deepest)
    for deeper in (f"[{deepest}]", "[" * 900 + "]" * 900, "[" * 100_000):
        assert LEVELS in str(refusal(parse, deeper))
    many = ",".join(["1"] * (documents.MAX_NODES - 1))
    assert len(parse(f"[{many}]")) == documents.MAX_NODES - 1
    assert VALUES in str(refusal(parse, f"[{many},1]"))


def test_what_somebody_else_parsed_is_counted_too():
    check_plain(nested(documents.MAX_DEPTH))
    for depth in (documents.MAX_DEPTH + 1, 900, 50_000):
        assert LEVELS in str(refusal(check_plain, nested(depth)))
    assert VALUES in str(refusal(check_plain, {str(n): n for n in range(100_001)}))
    assert finite(nested(documents.MAX_DEPTH))
    assert to_json(nested(documents.MAX_DEPTH))
    # links with documents of any kind open
    digits = f'{{"a": {"9" * 5000}}}'
    for text in ('{"a": "\\ud800"}', "{" * 5000, '{"a": 1, "a": 2}', '{"a": 1e999}', digits):
        _, ignored = link.from_query({"model": text})
        assert len(ignored) == 1


@over("value", ["\ud800", {"\udfff": 1}, [{"a": ["é\udc00"]}], {"a": {"b": "x\ud83dx"}}])
def test_half_a_character_is_refused_and_two_halves_are_one(value):
    for parse in (check_plain, lambda value: parse_json(json.dumps(value))):
        assert "half a character" in str(refusal(parse, value))
    refused = str(refusal(parse_yaml, json.dumps(value)))
    assert re.search(r"not valid YAML|half a character|not allowed", refused)
    assert parse_json('"\\ud83d\\ude00"') == "😀"


@over(
    "text, says",
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
def test_json_that_programs_read_differently_is_refused(text, says):
    refused = str(refusal(parse_json, text, "the body"))
    assert says in refused
    assert refused.startswith("the body ")
    assert len(refused) < 200


@over(
    "text, says",
    table("documents_hostile", "yaml_refused"),
)
def test_yaml_that_means_more_than_it_says_or_is_broken_is_refused(text, says):
    assert says in str(refusal(parse_yaml, text))


def test_yaml_that_is_too_long_is_refused_and_a_lone_equals_sign_a_text():
    digits = "more than 300 digits"
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    for text, says in (
        ("9" * 5000, digits),
        ("a: " + "1:" * 1_000_000 + "1", digits),
        ("a: 1:" + "00:" * 140 + "0.5", digits),
        ("x" * (documents.MAX_DOCUMENT_BYTES + 1), "the limit is"),
        (bomb, "alias"),
    ):
        assert says in str(refusal(parse_yaml, text))
    assert parse_yaml("a: =") == {"a": "="}


LETTERS = st.text(st.characters(codec="utf-8"))
NUMBERS = st.integers(-(10**290), 10**290) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | LETTERS,
    lambda inner: st.lists(inner) | st.dictionaries(LETTERS, inner),
    max_leaves=20,
)


@settings(max_examples=examples(300), deadline=None)
@given(PLAIN)
def test_every_other_value_is_read_as_it_was_written(value):
    check_plain(value)
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False)) == value


def cli(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line with 30 s of processor time, which quadratic work exceeds by far."""
    return subprocess.run(
        [sys.executable, "-m", "recipe_core", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(documents.__file__).parents[2])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (30, 30)),
        capture_output=True,
        text=True,
        check=False,
    )


def keys(count: int) -> str:
    return "\n".join(f"key{n}: {n}" for n in range(count))


@pytest.mark.nightly
def test_many_keys_take_time_with_their_number_only(tmp_path):
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


def test_the_nearest_names_are_looked_for_a_few_times_only(monkeypatch):
    looked: list[str] = []

    def counted(word, *_, **__):
        looked.append(word)
        return []

    monkeypatch.setattr(unknown_words.difflib, "get_close_matches", counted)
    words = ["vllm", "serve", "Qwen/Qwen3-8B", *(f"--unheard-of-{n}" for n in range(2500))]
    verdict = check_command(words, Ground.of(hardware="h100-sxm"), folders=False)
    assert len([f for f in verdict["findings"] if f["code"] == "unknown"]) == 2500
    assert 0 < len(looked) <= arguments.SUGGESTIONS
    # those of a long one not at all, and a field is shown no longer than one can read
    monkeypatch.setattr(errors.difflib, "get_close_matches", None)
    message, hint = errors.unknown("model", "x" * 4_000_000, ["a", "b"])
    assert (len(message) < 200, hint) == (True, "Available: a, b.")
    assert len(str(InputError("is not a known field.", field="x" * 1_000_000))) < 500


def test_an_index_or_a_header_of_any_kind_says_nothing_about_the_size(tmp_path):
    size = '{"metadata": {"total_size": '
    texts = ("[" * 100_000, f"{size}1e999}}}}", '{"metadata": []}', "null", '"x"')
    for text in (*texts, f"{size}{'9' * 5000}}}}}"):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        assert checkpoint_bytes(tmp_path) is None
    (tmp_path / "model.safetensors.index.json").unlink()
    for header in (b"[" * 100_000, b'{"a": {"data_offsets": []}}', b'{"a": 1}'):
        data = len(header).to_bytes(8, "little") + header
        (tmp_path / "model.safetensors").write_bytes(data)
        assert checkpoint_bytes(tmp_path) is None


def test_a_config_of_the_hub_is_read_like_any_document(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(file))
    monkeypatch.setattr(hub, "_reachable", lambda: False)
    for n, text in enumerate(("[" * 900 + "]" * 900, '{"a": "\\ud800"}', "{", "[]")):
        file.write_text(text)
        error = refusal(hub.hub_config, f"owner/model-{n}", kind=errors.ModelError)
        assert f"config.json of owner/model-{n}" in str(error)
    file.write_text('{"a": Infinity, "b": NaN}')  # as published configs have them
    assert hub.hub_config("owner/model-of-constants") == {"a": None, "b": None}
