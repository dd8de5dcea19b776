"""Documents, the command line's help and the descriptions of both doors use the pages' words."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import typer

from recipe_core.doors.api import create_api
from recipe_core.doors.cli import load_commands
from recipe_core.doors.mcp import create_mcp
from recipe_core.views.catalog import NAMES, document_schema
from tests.fixtures.paths import ROOT
from tests.fixtures.plain_words import other_words

CODE = re.compile(r"^```.*?^```$|^ {4,}\S.*$|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
ALLOWED = {
    "docs/method/physics.md": ("(closed loop)", "(open loop)"),  # where the two are defined
    "docs/reference/glossary.md": ("(closed loop)", "(open loop)"),  # the terms of the field
    "docs/method/training.md": ("| in flight |",),  # micro-batches between stages
}
"""What a page may say all the same, and why."""


def descriptions(value):
    """The texts of a schema that people read."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name in ("description", "summary") and isinstance(part, str):
                yield part
            else:
                yield from descriptions(part)
    elif isinstance(value, list):
        for part in value:
            yield from descriptions(part)


def found_in(texts):
    """Texts with words that pages do not use, and what to write."""
    plain = (CODE.sub("", text) for text in texts)
    return {text[:200]: rules for text in plain if (rules := other_words(text))}


def test_every_document_uses_the_words_of_the_pages():
    paths = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert len(paths) > 25
    found = {}
    for path in paths:
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        for allowed in ALLOWED.get(name, ()):
            assert allowed in text.casefold(), f"{name}: {allowed} is no longer there to be allowed"
            text = re.sub(re.escape(allowed), "", text, flags=re.IGNORECASE)
        found |= {f"{name}: {line}": rules for line, rules in found_in(_lines(text)).items()}
    assert found == {}


def _lines(text):
    return CODE.sub("", text).splitlines()


def test_commands_and_both_doors_use_the_words_of_the_pages():
    group = typer.main.get_command(load_commands())
    texts = [group.help or ""]
    for command in group.commands.values():
        texts += [command.help or "", *(option.help or "" for option in command.params)]
    assert len(texts) > 100
    tools = create_mcp(folders=False)
    texts += [tools.instructions or ""]
    with ThreadPoolExecutor(1) as own_thread:  # a browser's loop may run in this one
        listed = own_thread.submit(asyncio.run, tools.list_tools()).result()
    for tool in listed:
        texts += [tool.description or "", *descriptions(tool.input_schema)]
    texts += descriptions(create_api(folders=False).openapi())
    for name in NAMES:
        texts += descriptions(document_schema(name))
    assert len(texts) > 1000
    assert found_in(texts) == {}


def test_words_that_pages_do_not_use_are_found_and_others_are_not():
    for text in ("tp 4 · dp 2", "64 in flight", "92% of it", "the best split", "in a closed loop"):
        assert found_in([f"it is {text}"]), text
    for text in ("TP 4 × DP 2 · EP 8", "92 % of it", "64 users at once", "`tp 4`", "is split over"):
        assert not found_in([f"it is {text}"]), text
