"""Documents and numbers: written and read alike, and refused in words, and soon, where not."""

import json
import math
import os
import re
import resource
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base import documents, errors
from recipe_core.base.documents import check_plain, finite, parse_json, parse_yaml, to_json
from recipe_core.base.errors import InputError
from recipe_core.base.numbers import Range, number_text, read_number, read_numbers
from recipe_core.base.units import (
    alike,
    band_ends_text,
    prefixed,
    seconds,
    seconds_text,
    significant,
    usd,
)
from recipe_core.bundle.signing import MANIFEST, Manifest
from recipe_core.bundle.write import bundle_files
from recipe_core.commands import arguments, unknown_words
from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command
from recipe_core.models.checkpoint import safetensors_bytes
from recipe_core.request import link
from recipe_core.request.edit import range_of
from recipe_core.request.link import FIELDS
from tests.fixtures.paths import ROOT
from tests.fixtures.recipes import recipe_of
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples


def test_what_yaml_holds_is_read_and_written_alike_and_whole_or_not_at_all(tmp_path):
    assert parse_yaml("tokens: 15e9\nrate: 2.5e-3") == {"tokens": 15e9, "rate": 2.5e-3}
    # a value in two places is written twice
    shared = {"a": [1]}
    assert parse_yaml(documents.to_yaml([shared, shared])) == [shared, shared]
    # ends of lines of one YAML only are written as escapes
    for text in ("a\u2028b", "a\u2029", "\x85", "\ufeffa"):
        assert documents.to_yaml({"a": text}).isascii()
        assert parse_yaml(documents.to_yaml({"a": text})) == {"a": text}
    for word in table("documents", "words"):  # that look like something else
        text = documents.to_yaml({"command": [word]})
        assert (parse_yaml(text), f"'{word}'" in text) == ({"command": [word]}, True), word
    target = tmp_path / "file"
    documents.write_whole(target, b"old")
    error = refusal(documents.write_whole, tmp_path / "missing" / "file", b"new")
    assert "cannot write" in str(error)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


VALUES = [
    {"a": {"b": [1, 2.5, True, None, 'é"\n'], "c": {}}, "d": [], "e": (), "f": [[], {"g": (1,)}]},
    [1e16, 1e-7, -0.0, math.nan, [math.inf]],
    {1: {True: 1, None: 2, 2.5: math.nan}},
    "text",
    math.nan,
]


@over("value", VALUES)
def test_indented_json_is_as_the_library_writes_it_and_unknown_figures_null(value):
    written = json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False)
    assert to_json(value) == written
    figures = {"a": [math.nan, 1.5], "b": math.inf}
    assert to_json(figures, indent=None) == '{"a": [null, 1.5], "b": null}'


LEVELS, MANY = "more than 64 levels", "200,000 values"


def nested(depth):
    value = "x"
    for n in range(depth):
        value = [value] if n % 2 else {"a": value}
    return value


@over("parse", [parse_json, parse_yaml])
def test_levels_and_values_are_counted_alike(parse):
    deepest = "[" * documents.MAX_DEPTH + "]" * documents.MAX_DEPTH
    assert parse(deepest)
    for deeper in (f"[{deepest}]", "[" * 900 + "]" * 900, "[" * 100_000):
        assert LEVELS in str(refusal(parse, deeper))
    many = ",".join(["1"] * (documents.MAX_NODES - 1))
    assert len(parse(f"[{many}]")) == documents.MAX_NODES - 1
    assert MANY in str(refusal(parse, f"[{many},1]"))


def test_what_somebody_else_parsed_is_counted_too_and_links_with_any_document_open():
    for read in (check_plain, finite, to_json):
        read(nested(documents.MAX_DEPTH))
    for depth in (documents.MAX_DEPTH + 1, 900, 50_000):
        assert LEVELS in str(refusal(check_plain, nested(depth)))
    assert MANY in str(refusal(check_plain, {str(n): n for n in range(100_001)}))
    digits = f'{{"a": {"9" * 5000}}}'
    for text in ('{"a": "\\ud800"}', "{" * 5000, '{"a": 1, "a": 2}', '{"a": 1e999}', digits):
        assert len(link.from_query({"model": text})[1]) == 1


@over("value", ["\ud800", {"\udfff": 1}, [{"a": ["é\udc00"]}], {"a": {"b": "x\ud83dx"}}])
def test_half_a_character_is_refused_and_two_halves_are_one(value):
    for parse in (check_plain, lambda value: parse_json(json.dumps(value))):
        assert "half a character" in str(refusal(parse, value))
    refused = str(refusal(parse_yaml, json.dumps(value)))
    assert re.search(r"not valid YAML|half a character|not allowed", refused)
    assert parse_json('"\\ud83d\\ude00"') == "😀"


DIGITS = "more than 300 digits"


@over(
    "text, says",
    [*table("documents", "json_refused"), ("9" * 5000, DIGITS), ("-" + "9" * 301, DIGITS)],
)
def test_json_that_programs_read_differently_is_refused(text, says):
    refused = str(refusal(parse_json, text, "the body"))
    assert says in refused
    assert refused.startswith("the body ")
    assert len(refused) < 200


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
TOO_LONG = [
    *((text, DIGITS) for text in ("9" * 5000, "a: " + "1:" * 1_000_000 + "1")),
    ("a: 1:" + "00:" * 140 + "0.5", DIGITS),
    ("x" * (documents.MAX_DOCUMENT_BYTES + 1), "the limit is"),
    (BOMB, "alias"),
]


@over("text, says", [*table("documents", "yaml_refused"), *TOO_LONG])
def test_yaml_that_means_more_than_it_says_or_is_broken_or_too_long_is_refused(text, says):
    assert says in str(refusal(parse_yaml, text))
    assert parse_yaml("a: =") == {"a": "="}


LETTERS = st.text(st.characters(codec="utf-8"))
NUMBERS = st.integers(-(10**290), 10**290) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | LETTERS,
    lambda inner: st.lists(inner) | st.dictionaries(LETTERS, inner),
    max_leaves=20,
)


@settings(max_examples=examples(300))
@given(PLAIN)
def test_every_other_value_is_read_as_it_was_written(value):
    check_plain(value)
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False)) == value


@pytest.mark.nightly
def test_many_keys_take_time_with_their_number_only(tmp_path):
    """With 30 s of processor time, which quadratic work exceeds by far."""
    recipe = recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2)
    files = bundle_files(recipe)
    files["recipe.yaml"] += "\n".join(f"key{n}: {n}" for n in range(60_000)).encode()
    del files[MANIFEST]
    manifest = Manifest.of(recipe.name, recipe.digest, files).model_dump()
    files[MANIFEST] = to_json(manifest).encode()
    many = {f"key{n}": n for n in range(99_000)}
    files |= {"../request.yaml": "\n".join(f"{name}: {n}" for name, n in many.items()).encode()}
    files |= {"../model/config.json": json.dumps(many).encode()}
    for name, data in files.items():
        path = tmp_path / "bundle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for words, says in (
        (("check", "bundle"), "recipe.yaml"),
        (("plan", "request.yaml"), "key0"),
        (("models", "./model"), "hidden_size"),
    ):
        answer = subprocess.run(
            [sys.executable, "-m", "recipe_core", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (30, 30)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode in (1, 2), (words, answer)
        assert says in answer.stderr + answer.stdout, (words, answer)
        assert "Traceback" not in answer.stderr


def test_the_nearest_names_are_looked_for_a_few_times_only(monkeypatch):
    looked = []

    def counted(word, *_, **__):
        looked.append(word)
        return []

    monkeypatch.setattr(unknown_words.difflib, "get_close_matches", counted)
    words = ["vllm", "serve", "Qwen/Qwen3-8B", *(f"--unheard-of-{n}" for n in range(2500))]
    verdict = judge_command(words, CommandContext.of(hardware="h100-sxm"), folders=False)
    assert len([f for f in verdict["findings"] if f["code"] == "unknown"]) == 2500
    assert 0 < len(looked) <= arguments.SUGGESTIONS
    # those of a long one not at all, and a field is shown no longer than one can read
    monkeypatch.setattr(errors.difflib, "get_close_matches", None)
    message, hint = errors.unknown("model", "x" * 4_000_000, ["a", "b"])
    assert (len(message) < 200, hint) == (True, "Available: a, b.")
    assert len(str(InputError("is not a known field.", field="x" * 1_000_000))) < 500


def test_an_index_or_header_of_any_kind_says_no_size(tmp_path):
    size = '{"metadata": {"total_size": '
    texts = ("[" * 100_000, f"{size}1e999}}}}", '{"metadata": []}', "null", '"x"')
    for text in (*texts, f"{size}{'9' * 5000}}}}}"):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        assert safetensors_bytes(tmp_path) is None
    (tmp_path / "model.safetensors.index.json").unlink()
    for header in (b"[" * 100_000, b'{"a": {"data_offsets": []}}', b'{"a": 1}'):
        data = len(header).to_bytes(8, "little") + header
        (tmp_path / "model.safetensors").write_bytes(data)
        assert safetensors_bytes(tmp_path) is None


WHOLE = Range(integer=True, minimum=1, maximum=1 << 40)
ANY = Range()


def test_numbers_are_understood_or_refused_by_value_and_range():
    for typed, value in table("documents", "what_is_understood"):
        number = read_number(typed, WHOLE, unit="ms")
        assert (number, type(number)) == (value, int), typed
    for typed in table("documents", "what_is_no_number"):
        assert "is not a number" in str(refusal(read_number, typed, ANY))
    assert "A decimal point is a dot" in str(refusal(read_number, "0,5", ANY))
    assert read_number("$1.25", ANY, unit="$") == 1.25  # dollars stand before their number
    refusal(read_number, "$1.25", ANY, unit="ms")
    assert read_numbers("16, 64;1k  2e3", WHOLE, limit=4) == (16, 64, 1000, 2000)
    assert read_numbers(" ", WHOLE, limit=4) == ()
    assert "at most 4" in str(refusal(read_numbers, "1 2 3 4 5", WHOLE, limit=4))
    assert "'x'" in str(refusal(read_numbers, "16, x", WHOLE, limit=4))
    for typed, words in (*table("documents", "refused"), ("9" * 70, "not a number")):
        error = refusal(read_number, typed, WHOLE, field="workload.input_tokens", unit="tokens")
        assert (error.field, len(str(error)) < 300) == ("workload.input_tokens", True)
        for part in (words, typed[:40], "from 1 to 1,099,511,627,776, in tokens"):
            assert part in str(error)


def test_other_units_of_time_and_what_money_is_for_are_understood_and_nothing_else():
    for typed, unit, value in table("documents", "in_other_units"):
        assert read_number(typed, ANY, unit=unit) == pytest.approx(value, rel=1e-12), typed
    assert read_number("2 s", WHOLE, unit="ms") == 2000
    assert isinstance(read_number("2 s", WHOLE, unit="ms"), int)
    for typed, unit in table("documents", "in_no_such_unit"):
        assert "is not a number" in str(refusal(read_number, typed, ANY, unit=unit)), typed
    refused = str(refusal(read_number, "0.1 ms", WHOLE, unit="s"))  # in the unit that is asked
    assert "not a whole number" in refused
    assert "in s" in refused


@settings(max_examples=examples(300))
@given(st.integers(0, 10**15) | st.floats(1e-9, 1e14))
def test_a_number_is_read_back_from_its_text(value):
    assert read_number(number_text(value), ANY) == pytest.approx(value, rel=1e-9)


@settings(max_examples=examples(300))
@given(st.text(max_size=30))
def test_no_text_breaks_the_reader(text):
    said = ""
    try:
        number = read_number(text, WHOLE, unit="ms")
    except InputError as error:
        said = str(error)
    assert "Type a whole number from 1" in said or number in WHOLE


def test_ranges_come_from_the_schema_and_every_field_of_a_link_has_one():
    said = table("documents", "ranges_come_from_the_schema")
    assert [(path, range_of(path).text) for path, _ in said] == list(map(tuple, said))
    for path in FIELDS:
        if not path.startswith("objective.weights."):
            assert range_of(path).text.startswith("a ")
    with pytest.raises(LookupError):
        range_of("workload.colour")


def test_numbers_are_written_as_people_read_them():
    assert alike([0.0217, 0.00176, 0.0000457], 0.0235) == ["21.7 ms", "1.8 ms", "<0.1 ms"]
    assert alike([1.25, 0.004, 0.0], 1.254) == ["1.25 s", "<0.01 s", "0.00 s"]
    assert alike([0.4, 0.0004], 0.435) == ["400 ms", "<1 ms"]
    # amounts of work have prefixes
    assert prefixed(3.676e9, "FLOP", 4) == "3.676 GFLOP"
    assert prefixed(450e9, "B/s") == "450 GB/s"
    assert seconds(88.59e-6, 4) == "88.59 µs"
    assert seconds(2.421) == "2.42 s"
    assert seconds(0.0) == "0 s"
    # a band has one unit and is rounded alike
    assert band_ends_text((0.0247, 0.0685), seconds_text) == "24.7 – 68.5 ms"
    assert band_ends_text((0.95, 1.2), seconds_text) == "0.95 – 1.20 s"
    assert band_ends_text((0.0247, 0.105), seconds_text) == "25 – 105 ms"
    assert band_ends_text((1.0, 12.5), usd) == "$1.00 – $12.5"
    # trailing zeros stay
    assert [significant(n) for n in (1.0, 1.06, 9.7, 1234.5)] == ["1.00", "1.06", "9.70", "1,234"]
