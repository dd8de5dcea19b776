"""Templates: what a place becomes, and what is left out."""

import pytest

from recipe_core.launch.templates import Facts, fill_template, first_met, is_met
from tests.fixtures.rows import over

VALUES = {"name": "a", "count": 3, "share": 0.25, "none": None, "more": {"b": 1}, "rows": [1, 2]}


@over(
    "template, filled",
    [
        ("<count>", 3),
        ("<name>-<count>", "a-3"),
        ("<share:.1f>", "0.2"),
        ("x <none>", None),
        ({"<name>": "<count>", "<more>": None, "empty": None}, {"a": 3, "b": 1, "empty": None}),
        ({"a": {"b": "<none>"}, "c": {}}, {"c": {}}),
        ({"a": "<none>"}, None),
        ([0, "<rows>", "<none>", {"<when>": "none", "a": 1}], [0, 1, 2]),
        ({"<when>": "name !none", "a": 1}, {"a": 1}),
        ("a < b and c > d", "a < b and c > d"),
    ],
)
def test_a_place_is_filled_and_what_has_nothing_is_left_out(template, filled):
    assert fill_template(template, VALUES) == filled


def test_a_name_without_a_value_is_a_mistake_of_the_template():
    with pytest.raises(KeyError, match="other"):
        fill_template({"a": "<other>"}, VALUES)


def test_values_are_not_templates_and_are_not_changed():
    rows = [{"a": "<name>"}]
    assert fill_template({"rows": "<rows>"}, {"rows": rows}) == {"rows": [{"a": "<name>"}]}
    assert rows == [{"a": "<name>"}]


def test_the_first_choice_whose_condition_is_met_counts():
    assert is_met("", {})
    assert first_met({"none": 1, "name !none": {"none": 2, "": 3}, "": 4}, VALUES) == 3
    assert first_met({"none": 1}, VALUES) is None


def test_facts_are_worked_out_when_they_are_asked_for():
    texts = {"text": {"long": "<word> of <length>", "": "<word>"}}
    known = {"length": len, "long": lambda subject: len(subject) > 3, "never": None}
    facts = Facts("four", known, {"word": "w"}, texts)
    assert facts["text"] == "w of 4"
    assert facts.sentences([["long", "<text>."], ["!long", "<never>"]]) == ["w of 4."]
