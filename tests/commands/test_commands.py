"""Commands of engines: their words, what they start, what their options mean."""

import json
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.images import image_tag
from recipe_core.commands.launches import find_launches, first_launch
from recipe_core.commands.option_meanings import Meant
from recipe_core.commands.words import MAX_CHARACTERS, read_script
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine, engine_names
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

PUBLISHED = [json.loads(line) for line in (DATA / "commands.jsonl").read_text().splitlines()]
READ = ["vllm", "sglang", "tensorrt-llm"]
FLAGS = sorted(
    {flag for name in READ for flag in (*engine(name).options.by_spelling, *grammars()[name].gone)}
)
PIECES = st.one_of(
    st.text(max_size=30),
    st.sampled_from([*FLAGS, *table("commands", "starts")]),
    st.sampled_from(table("commands", "signs")),
)
OPTION_WORDS = st.lists(st.one_of(st.sampled_from(FLAGS), st.text(max_size=12)), max_size=12)


def words(text):
    return [command.words for command in read_script(text).commands]


def launch_in(text):
    ((launch,), _) = find_launches(read_script(text))
    return launch


def read(text):
    """The engine of a command, what its words mean, and every finding."""
    launch = launch_in(text)
    arguments = Arguments(launch.engine, launch.args)
    found = Meant(arguments)
    return launch.engine, found, arguments.findings


@over("text, expected", table("commands", "words_are_those_of_a_shell"))
def test_words_are_those_of_a_shell(text, expected):
    assert [list(found) for found in words(text)] == expected


def test_variables_image_tags_and_what_starts_no_server_are_read():
    script = read_script("export A=1\nB=2 C='x y' vllm serve m")
    assert (script.env, script.commands[0].env) == ({"A": "1"}, {"B": "2", "C": "x y"})
    # a blank after a backslash is noticed, and what cannot be read refused
    script = read_script("vllm serve a \\ \n --b")
    assert (script.loose_ends, script.commands[0].words) == (1, ("vllm", "serve", "a", "--b"))
    for text in ("a" * (MAX_CHARACTERS + 1), *table("commands", "unreadable")):
        refusal(read_script, text)
    for text in table("commands", "what_starts_no_server"):
        assert find_launches(read_script(text))[0] == [], text
    tags = table("commands", "image_tags")
    assert {image: image_tag(image) for image in tags} == tags
    # a list of words needs no quoting
    assert first_launch(("vllm", "serve", "a model", "-tp", "2")).args == ("a model", "-tp", "2")
    # each engine that is built or read has its table
    specs = [engine(name) for name in engine_names()]
    buildable = {spec.name for spec in specs if spec.buildable and not spec.wraps}
    for name in {*READ, *buildable}:
        assert engine(name).options.options, name


@given(st.lists(st.text(max_size=12).filter(lambda word: "\0" not in word), min_size=1, max_size=8))
def test_quoted_words_come_back(given_words):
    assert words("x " + shlex.join(given_words)) == [("x", *given_words)]


@given(st.text(alphabet="ab= '\"\\\t-.,:/", max_size=60))
def test_plain_text_splits_as_shlex_does(text):
    """Without operators, comments and variables there is nothing that shlex does otherwise."""
    try:
        expected = shlex.split("x " + text)
    except ValueError:
        return
    assert words("x " + text) == [tuple(expected)]


@over("piece", table("commands", "repeated"))
def test_reading_takes_time_in_proportion(piece):
    """No piece makes the reader quadratic: a full-size text of it is read at once."""
    text = f"A={'x' * 500}\nvllm serve " + piece * ((MAX_CHARACTERS - 600) // len(piece))
    try:
        script = read_script(text)
    except InputError:
        return
    lengths = [len(word) for command in script.commands for word in command.words]
    assert sum(lengths) <= 3 * MAX_CHARACTERS
    find_launches(script)


@over("text, known", table("commands", "launches"))
def test_a_server_is_found_behind_what_wraps_it(text, known):
    launch = launch_in(text)
    assert json.loads(json.dumps({name: getattr(launch, name) for name in known})) == known


@pytest.mark.parametrize("name", READ)
def test_tables_and_grammars_agree_and_every_option_in_every_spelling_is_read(name):
    """Every option that means something is there; every flag that is gone is not, or says itself
    that it goes; what to use instead is.
    """
    known, grammar = engine(name).options, grammars()[name]
    meant = {*grammar.means, *grammar.words, *grammar.unmodelled}
    assert meant - {"draft_method"} <= set(known.by_name)
    for flag, gone in grammar.gone.items():
        assert flag not in known.by_spelling or known.by_spelling[flag].deprecated, flag
        assert gone.use == "nothing" or gone.use.split(".")[0] in known.by_spelling, gone.use
    for option, values in grammar.words.items():
        choices = known.by_name[option].choices if option in known.by_name else ()
        assert not choices or set(values) <= set(choices), option
    for option in engine(name).options.options.values():
        for flag in option.spellings:
            joined = [f"{flag}={value}" for value in sample(option)] or [flag]
            for argv in ([flag, *sample(option)], joined):
                found = Arguments(name, argv)
                assert option.name in found.values, argv
                assert [f for f in found.findings if f.level == "error"] == [], argv


def sample(option):
    """Words of a value that an option takes."""
    if option.type == "switch":
        return []
    text = {"int": "2", "float": "0.5", "str": "x", "json": "{}"}[option.type]
    return [option.choices[0] if option.choices else text]


@over("command, values", table("commands", "values_are_typed"))
def test_values_are_typed(command, values):
    launch = launch_in(command)
    found = Arguments(launch.engine, launch.args)
    assert (found.values, found.findings) == (values, [])


@over("command, code, says", table("commands", "findings_say_what_to_do"))
def test_findings_say_what_to_do(command, code, says):
    found = [finding for finding in read(command)[2] if finding.code == code]
    assert says in str(found[0])


@over("row", PUBLISHED)
def test_published_commands_are_read(row):
    name, found, findings = read(row["command"])
    said = {"engine": name, "model": found.model, "candidate": found.candidate}
    said |= {"max_context": found.max_context, "codes": [finding.code for finding in findings]}
    assert said == {name: row[name] for name in said}


@over("command, meant", table("commands", "meanings"))
def test_options_mean_splits_and_drafts(command, meant):
    _, found, _ = read(command)
    assert {name: getattr(found, name) for name in meant} == meant


def forbid_processes(patch):
    def forbidden(*args, **kwargs):
        raise AssertionError("a process was started")

    for name in ("Popen", "run", "call", "check_output"):
        patch.setattr(subprocess, name, forbidden)
    spawning = "system popen fork forkpty posix_spawn posix_spawnp execv execve execvp execvpe"
    for name in spawning.split():
        patch.setattr(f"os.{name}", forbidden, raising=False)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PIECES, max_size=20), st.sampled_from([" ", "", "="]))
def test_any_text_is_read_or_refused_and_never_run(pieces, glue):
    with pytest.MonkeyPatch.context() as patch:
        forbid_processes(patch)
        try:
            launches, _ = find_launches(read_script(glue.join(pieces)))
        except InputError:
            return
        for launch in launches:
            arguments = Arguments(launch.engine, launch.args)
            Meant(arguments)
            json.dumps(arguments.findings.to_json())
            assert launch.visible_devices is None or launch.visible_devices > 0


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(READ), OPTION_WORDS)
def test_any_words_of_options_are_read(name, given_words):
    found = Arguments(name, given_words)
    assert set(found.values) <= set(engine(name).options.by_name)
    Meant(found)
