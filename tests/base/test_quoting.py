"""Every text is read back, as it was, by the parser of the language that it is quoted for."""

import json
import re
import shlex

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from recipe_core.base.documents import parse_yaml, to_json, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.base.resources import PACKAGE
from recipe_core.base.texts import (
    PLACEHOLDER,
    flaw_of_text,
    pieces,
    quote_command,
    quote_compose,
    quote_go_template,
    quote_markdown,
    quote_markdown_block,
    quote_markdown_code,
    quote_sbatch,
    quote_shell,
)
from recipe_core.engines.spec import engine
from recipe_core.payload.launcher import plan as launcher_plan
from recipe_core.targets.node_script import IN_KUBERNETES, IN_SHELL, Variable, fill_placeholders
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples
from tests.nightly.attack import readers
from tests.nightly.attack.readers import Shell
from tests.nightly.attack.texts import PAYLOADS

CARRIED = [p for p in PAYLOADS if "\ud800" not in p and not flaw_of_text(PLACEHOLDER.sub("", p))]
TEXT = st.text(
    st.one_of(
        st.sampled_from("$(){}`'\"\\;&|<>%#!*~=-@:,. \t\n"),
        st.characters(codec="utf-8", exclude_categories=("Cc",)),
    ),
    max_size=30,
)
TEXTS = st.one_of(st.sampled_from(CARRIED), TEXT)
UNCHECKED = {"suppress_health_check": list(HealthCheck)}
PROPERTY = settings(max_examples=examples(400), **UNCHECKED)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    return Shell(tmp_path_factory.mktemp("shell"))


@settings(max_examples=examples(60, least=15), **UNCHECKED)
@given(words=st.lists(TEXTS, min_size=1, max_size=20))
@example(words=CARRIED)
def test_bash_passes_on_every_word_and_a_deliberate_injection_is_seen(shell, words):
    command = quote_command(["docker", *words])
    for script in (f"{command}\n", f"exec env {command}\n"):
        (program,) = shell.run(script)
        assert program["argv"] == ["docker", *words]
    (program,) = shell.run(f"SOME={quote_shell(words[0])} docker\n")
    assert program["env"].get("SOME", "") == words[0]
    assert not shell.injected
    if words == CARRIED:
        shell.run("docker x; touch INJECTED\n")
        assert shell.injected == ["INJECTED"]
        (shell.folder / "INJECTED").unlink()


@PROPERTY
@given(st.one_of(TEXTS, st.from_regex(r"\A[\w.:/@%+=,-]{1,20}\Z")))
def test_shells_yaml_json_go_templates_and_lines_of_sbatch_hold_every_text(text):
    word = fill_placeholders("${model}${head}", {"model": text, "head": Variable("head")}, IN_SHELL)
    assert shlex.split(word) == [f"{text}$head"]
    assert readers.go_template(quote_go_template(text)) == text
    value = {"a": [text], text: 1}
    written = to_yaml(value)
    assert yaml.safe_load(written) == parse_yaml(written) == json.loads(to_json(value)) == value
    try:
        assert quote_sbatch(text) == text
        assert not set(text) & set(" \t\r\n#'\"\\")
    except NoAnswer:
        assert not re.fullmatch(r"[\w.:/@%+=,-]+", text)


@settings(max_examples=examples(20, least=3))
@given(st.lists(TEXT, min_size=30, max_size=60))
@example(CARRIED)
def test_docker_compose_reads_any_text_and_fills_in_what_is_not_quoted(texts):
    named = {f"A{n}": text for n, text in enumerate(texts)}
    words = {name: quote_compose(text) for name, text in named.items()}
    command = [*words.values(), "${HF_TOKEN}"]
    service = {"image": "x:1", "command": command, "environment": words}
    read = readers.compose({"f": to_yaml({"services": {"a": service}})})["f"]["a"]
    assert read["command"] == [*texts, "substituted"]
    assert read["environment"] == named


@PROPERTY
@given(TEXTS, TEXTS)
def test_kubernetes_expands_references_and_no_text(before, after):
    template = f"{before.replace('${', '')}${{self}}{after.replace('${', '')}"
    word = fill_placeholders(template, {"self": Variable("POD_IP")}, IN_KUBERNETES)
    expected = f"{before.replace('${', '')}10.0.0.1{after.replace('${', '')}"
    assert readers.expanded(word, {"POD_IP": "10.0.0.1", "HF_TOKEN": "x"}) == expected


def inline(text):
    """The inline parts of the only paragraph of a Markdown text."""
    tokens = MarkdownIt("commonmark").parse(text)
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    return [(token.type, token.content) for token in tokens[1].children or ()]


@PROPERTY
@given(TEXTS)
def test_markdown_shows_every_text_as_it_is(text):
    if line := " ".join(text.split()):
        parts = inline(quote_markdown(text))
        assert {kind for kind, _ in parts} <= {"text", "text_special"}
        assert "".join(content for _, content in parts) == line
        assert inline(quote_markdown_code(text)) == [("code_inline", line)]
    # a block of code ends where it should
    (token,) = MarkdownIt("commonmark").parse(quote_markdown_block(text))
    normal = text.replace("\r\n", "\n").replace("\r", "\n")
    assert (token.type, token.content) == ("fence", f"{normal}\n")


@given(st.lists(st.one_of(TEXT, st.sampled_from(["${model}", "${port3}", "${HOME}", "${x}"]))))
def test_pieces_put_together_are_the_template(parts):
    template = "".join(parts)
    again = "".join(f"${{{text}}}" if is_name else text for is_name, text in pieces(template))
    assert again == template


@over("name, option, value, words", table("quoting", "no_value_becomes_an_option"))
def test_no_value_becomes_an_option(name, option, value, words):
    argv = engine(name).argv({option: value})
    assert argv == (words or [f"--{option.replace('_', '-')}", json.dumps(value).replace(" ", "")])


def test_values_that_an_engine_would_read_otherwise_are_refused():
    error = refusal(engine("vllm").argv, {"allowed_media_domains": ["a.example", "--x"]})
    assert error.field == "options.allowed_media_domains"
    assert "option" in error.message
    for value in (float("nan"), float("inf"), -float("inf")):
        refused = refusal(engine("vllm").argv, {"gpu_memory_utilization": value})
        assert refused.field == "options.gpu_memory_utilization"
    # What travels in bundles has its own list, and may know fewer names but none more.
    own = launcher_plan._PLACEHOLDER.pattern
    names = re.fullmatch(r"\\\$\\\{\((.*)\)\\\}", own)[1].split("|")
    for name in (name.replace(r"\d+", "12") for name in names):
        assert PLACEHOLDER.fullmatch(f"${{{name}}}"), name


def test_no_other_module_quotes():
    """One function for each language, in one place; the launcher travels alone and has its own."""
    package = PACKAGE
    own = {"base/texts.py", "payload/launcher/report.py"}
    # reading words is not writing them
    quotes = re.compile(r"shlex\.(quote|join)|replace\(\"\$|replace\(\"\{\{")
    paths = [path for path in package.rglob("*.py") if quotes.search(path.read_text("utf-8"))]
    assert {path.relative_to(package).as_posix() for path in paths} == own
