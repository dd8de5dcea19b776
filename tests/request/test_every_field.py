"""No field passes in silence: it changes what a command answers, or is refused by name.

The table has a value for every field of the schema, so that a new field needs one to be tried with.
"""

import json
from functools import cache

import pytest
from pydantic import TypeAdapter

from recipe_core.base.errors import RecipeError
from recipe_core.doors import answers
from recipe_core.request.schema import json_schema
from recipe_core.request.size import SizeRequest
from tests.conftest import request_values
from tests.corpus.asking import OPERATIONS
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_values

BASES = {
    "serving": request_values(
        "meta-llama/Llama-3.1-8B-Instruct",
        per_node=2,
        workload={"concurrency": 32},
        options={"engines": ["vllm"]},
    ),
    "training": training_values(
        nodes=1, sequence_length=4096, global_batch=64, tokens=2e9, method="finetune"
    ),
    "size": request_values(
        "meta-llama/Llama-3.1-8B-Instruct",
        workload={"concurrency": None, "mode": "open", "request_rate": 4.0},
        objective={"optimize": "cost", "limits": {"tpot_ms": 40, "ttft_ms": 2000}},
        options={"engines": ["vllm"]},
    )
    | {"hardware": {"any": {"devices": ["h100-sxm", "l40s"]}}},
}
ECHOES = ("recipe.yaml", "README.md", "sbom.json")
"""Files of a bundle that repeat the request, or digests of it."""
FIELDS = {kind: table("every_field", kind) for kind in BASES}
GROUPS, CONTEXTS = (table("every_field", name) for name in ("groups", "contexts"))


def changed(values, path, value):
    """A copy of values with a dotted field set, None: left out; ``[]`` is a list's first item."""
    first, _, rest = path.partition(".")
    if value is None and not rest:
        return {name: given for name, given in values.items() if name != first}
    if first.endswith("[]"):
        name = first[:-2]
        items = list(values.get(name) or [{}])
        items[0] = changed(items[0], rest, value)
        return {**values, name: items}
    return {**values, first: changed(values.get(first) or {}, rest, value) if rest else value}


def stated(kind, parts):
    values = BASES[kind]
    for path, value in parts.items():
        values = changed(values, path, value)
    return values


def built(values):
    """Digests of a bundle's files but for those that repeat the request."""
    files = OPERATIONS["bundle"]({"request": values})["files"]
    return {path: digest for path, digest in files.items() if path not in ECHOES}


COMMANDS = {
    "plan": answers.answer_plan,
    "estimate": lambda values: answers.answer_estimate({"candidate": {}, **values}),
    "build": built,
    "simulate": lambda values: answers.answer_simulate({"request": values}),
    "size": answers.answer_size,
}
OWN_WORDS = ("request", "candidate_request", "link")
"""What an answer repeats of its question."""


@cache
def answered(command, text):
    """What a command answers, without the question; a refusal by its field and message."""
    try:
        given = COMMANDS[command](json.loads(text))
    except RecipeError as error:
        return f"refused: {error.field} {error.message}"
    return json.dumps({n: v for n, v in given.items() if n not in OWN_WORDS}, sort_keys=True)


def fields_of(schema, kind):
    """Dotted paths of all fields that hold a value; those of another kind of workload left out."""
    found = []

    def visit(model, path):
        for name, field in model["properties"].items():
            options = field.get("anyOf") or field.get("oneOf") or [field]
            parts = [(o, "") for o in options if "$ref" in o]
            parts += [(o["items"], "[]") for o in options if "$ref" in o.get("items", {})]
            dotted = f"{path}.{name}".lstrip(".")
            for option, many in parts:
                part = schema["$defs"][option["$ref"].rpartition("/")[2]]
                if part["properties"].get("kind", {}).get("const", kind) == kind:
                    visit(part, dotted + many)
            if not parts:
                found.append(dotted)

    visit(schema, "")
    return found


def usual(path):
    return next(commands for begin, commands in GROUPS.items() if path.startswith(begin))


def tried(kind):
    for path, (value, *more) in FIELDS[kind].items():
        context, commands = (*more, *({}, usual(path))[len(more) :])
        context = CONTEXTS[context] if isinstance(context, str) else context
        for command in commands:
            yield kind, path, value, context, command


@pytest.mark.parametrize("kind", ["serving", "training"])
def test_every_field_has_a_value_to_be_tried_with(kind):
    ours = set(fields_of(json_schema(), kind))
    others = set(FIELDS["serving"]) | set(FIELDS["training"])
    assert set(FIELDS[kind]) <= ours
    assert ours - others == set()
    assert all(usual(path) for path in ours)


def test_every_field_of_a_size_has_a_value_to_be_tried_with():
    known = set(FIELDS["serving"]) | set(FIELDS["training"])
    ours = set(fields_of(TypeAdapter(SizeRequest).json_schema(), "serving"))
    assert set(FIELDS["size"]) <= ours
    assert ours - known - set(FIELDS["size"]) == set()


@over(
    "kind, path, value, context, command",
    [row for kind in BASES for row in tried(kind)],
    share=40,
)
def test_a_field_changes_the_answer_or_is_refused_by_name(kind, path, value, context, command):
    before = answered(command, json.dumps(stated(kind, context)))
    assert not before.startswith("refused"), before
    after = answered(command, json.dumps(changed(stated(kind, context), path, value)))
    if after.startswith("refused"):
        assert path.replace("[]", "") in after.replace("[0]", ""), after
    assert after != before
