"""Packed texts: whatever is packed comes back, and whatever else arrives is refused in words."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import string
import zlib
from typing import Any
from urllib.parse import urlencode

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.hardware.cluster import device, device_names, plain
from recipe_core.hardware.upload import template, uploaded_profile
from recipe_core.model.catalog import catalog_entry, catalog_ids
from recipe_core.request import packed
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query, to_query
from recipe_core.request.packed import MAX_TEXT, MAX_UNPACKED, is_packed, pack, shorter, unpack
from tests.fixtures.refusals import refusal
from tests.fixtures.sizes import examples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), finite, texts),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


def stream(data: bytes, version: str = "1", dictionary: bytes = packed._DICTIONARY) -> str:
    """A packed text of any bytes."""
    press = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zdict=dictionary)
    out = press.compress(data) + press.flush()
    return f"~{version}.{base64.urlsafe_b64encode(out).decode().rstrip('=')}"


@settings(deadline=None, max_examples=examples(300))
@given(values)
def test_what_is_packed_comes_back(value: Any) -> None:
    text = pack(value)
    assert is_packed(text)
    assert urlencode({"a": text}) == f"a={text}"  # no letter needs an escape
    assert unpack(text) == value


@settings(deadline=None, max_examples=examples(300))
@given(st.text(max_size=80) | st.binary(max_size=200).map(stream))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        value = unpack(text)
    except InputError:
        return
    assert unpack(pack(value)) == value


@settings(deadline=None, max_examples=examples(200))
@given(values, st.data())
def test_a_text_that_was_cut_or_changed_is_refused(value: Any, data: st.DataObject) -> None:
    text = pack(value)
    cut = data.draw(st.integers(len("~1."), len(text) - 1))
    assert "cut off or changed" in str(refusal(unpack, text[:cut]))
    alphabet = string.ascii_letters + string.digits + "-_"
    place = data.draw(st.integers(len("~1."), len(text) - 1))
    letter = data.draw(st.sampled_from(alphabet))
    try:  # the last letter has bits that no byte holds
        changed = unpack(text[:place] + letter + text[place + 1 :])
    except InputError:
        return
    assert changed == value


def test_no_stream_becomes_more_than_may_be() -> None:
    bomb = stream(b"0" * (80 << 20))
    assert len(bomb) > MAX_TEXT  # so large a bomb is not even looked at
    assert "characters; the limit is" in str(refusal(unpack, bomb))
    largest = stream(b'"' + b"0" * (30 << 20) + b'"')
    assert len(largest) < MAX_TEXT
    assert f"more than {MAX_UNPACKED:,} bytes" in str(refusal(unpack, largest))
    assert unpack(stream(b'"' + b"0" * (MAX_UNPACKED - 2) + b'"'))
    for depth in (100, 100_000):
        assert "levels" in str(refusal(unpack, stream(b"[" * depth + b"]" * depth)))


def test_what_is_no_packed_text_is_said() -> None:
    texts = [
        ("", "is not a packed text"),
        ("~1", "is not a packed text"),
        ("~1.a b", "is not a packed text"),
        ("~1.ä", "is not a packed text"),
        ("~1.", "cut off"),
        ("~1.AAAAA", "cut off"),
        ("~2.AAAA", "packed in version 2; this builder reads version 1"),
        ("~999999999.AAAA", "packed in version 999999999"),
        (stream(b"[1]", "0"), "packed in version 0"),
        (stream(b"[1]", dictionary=b"another dictionary"), "cut off or changed"),
        (stream(b"\xff\xfe"), "cut off or changed"),
        (stream(b"{"), "is not valid JSON"),
        (stream(b'{"a":1,"a":2}'), "duplicate key"),
        (stream(b"NaN"), "is not a number that JSON knows"),
        (stream(b"9" * 1000), "digits"),
        (stream(b'"\\ud800"'), "half a character"),
        (stream(b"[1]") + "AAAA", "cut off or changed"),
    ]
    errors = [(text, str(refusal(unpack, text)), said) for text, said in texts]
    assert [(text, error) for text, error, said in errors if said not in error] == []


def test_the_dictionary_of_a_version_never_changes() -> None:
    """Links of this version could no longer be read: another dictionary is another version."""
    digest = hashlib.sha256(packed._DICTIONARY).hexdigest()
    assert (packed.VERSION, digest[:16]) == (1, "98a913296f8427fb")
    old = "~1.ePmQfAf8i45WggS5BTDEq7HFBUgC3asmQM2xAB8TEjE"
    assert unpack(old) == [["Qwen3-8B", {"model": "Qwen/Qwen3-8B", "candidate.tp": "4"}]]


def short(changes: dict[str, Any]) -> bool:
    """Whether a request survives its link, and that is short."""
    request = change(DEFAULT, changes)
    query = to_query(request)
    return len(urlencode(query)) < 4000 and from_query(query) == (request, [])


def test_a_link_with_a_profile_of_ones_own_or_a_config_of_a_known_model_stays_short() -> None:
    long = []
    for name in device_names():
        profile = uploaded_profile(template(device(name)).encode(), "mine.yaml")
        long += [] if short({"hardware.device": profile}) else [name]
    for name in catalog_ids():
        config = {"_name_or_path": "ours", **catalog_entry(name).config}
        long += [] if short({"model": config}) else [name]
    assert long == []


def test_short_values_stay_legible_and_texts_that_look_packed_are_no_names() -> None:
    small = {"model_type": "llama", "hidden_size": 64}
    assert json.loads(shorter(small)) == small
    large = plain(device("h100-sxm"))
    assert is_packed(shorter(large))
    scrambled = random.Random(0).randbytes(600).hex()
    assert len(shorter(scrambled)) <= len(scrambled) + 2
    # A model of such a name, though nobody has one, would still be the same in a link.
    request = change(DEFAULT, {"model": "~1.odd"})
    assert from_query(to_query(request)) == (request, [])
    read, ignored = from_query({"model": "~1.odd"})
    assert read == DEFAULT
    assert ignored == ["model: the model was cut off or changed on the way."]
