"""Refusals of documents, in words that need no knowledge of Python."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from recipe_core.base.errors import InputError
from recipe_core.base.problems import first_problem
from recipe_core.request.first_error import validate_plain


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


PET = Annotated[Cat | Dog, Field(discriminator="kind")]
PYTHON = re.compile(r"tuple|dict|string|integer|bool|float|instance|pars|validation|\btags?\b|none")
MOST, LEAST = "should have at most", "should have at least"
LIST, MAPPING = "input should be a list", "input should be a mapping of names to values"
COUNT, NUMBER = "input should be a whole number", "input should be a number"
DAY = "input should be a date such as 2026-01-31"
TYPES: list[tuple[tuple[Any, ...], tuple[Any, ...], str]] = [
    ((list[int], tuple[int, ...], set[int], frozenset[int]), ("x",), LIST),
    ((dict[str, int], Mapping[str, int], Cat, PET), ("x", [1]), MAPPING),
    ((str,), (3, None, ["a"]), "input should be text"),
    ((int,), ("x", 2.5, None, [1], "9" * 5000), COUNT),
    ((float,), ("x", None, {}), NUMBER),
    ((bool,), ("maybe", 3, None), "input should be true or false"),
    ((datetime.date,), ("x", [], "2026-13-01"), DAY),
    ((tuple[int, int],), ([1],), "is missing"),
    ((Annotated[tuple[int, ...], Field(max_length=2)],), ([1, 2, 3],), f"{MOST} 2 items, not 3"),
    ((Annotated[list[int], Field(min_length=1)],), ([],), f"{LEAST} 1 item, not 0"),
    ((Annotated[dict[str, int], Field(min_length=1)],), ({},), f"{LEAST} 1 item, not 0"),
    ((Annotated[str, Field(max_length=1)],), ("ab",), f"{MOST} 1 character"),
    ((Annotated[int, Field(ge=1)],), (0,), "input should be greater than or equal to 1"),
    ((PET,), ({"kind": "cow"},), "'kind' should be one of 'cat', 'dog', not 'cow'"),
    ((PET,), ({},), "'kind' is missing"),
    ((Literal["a", "b"],), ("c",), "input should be 'a' or 'b'"),
]
CASES = [(kind, value, said) for kinds, values, said in TYPES for kind in kinds for value in values]


@pytest.mark.parametrize(("kind", "value", "said"), CASES)
def test_a_value_of_the_wrong_type_is_refused_in_plain_words(
    kind: Any, value: Any, said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(value)
    message = first_problem(refused.value).message
    assert message == said
    assert not PYTHON.search(message)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "must be a mapping with name, age; this is a list."),
        ("x", "must be a mapping with name, age; this is text."),
        (None, "must be a mapping with name, age; this is nothing."),
        (3, "must be a mapping with name, age; this is a number."),
    ],
)
def test_a_document_that_is_no_mapping_says_what_it_takes(document: Any, said: str) -> None:
    class Person(BaseModel):
        name: str
        age: int
        home: str = ""

    with pytest.raises(InputError) as refused:
        validate_plain(document, Person)
    assert refused.value.message == said
