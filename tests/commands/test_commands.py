from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.commands.arguments import read_arguments
from recipe_core.commands.launches import find_launches, image_tag, launch_of
from recipe_core.commands.meaning import meaning_of
from recipe_core.commands.words import MAX_CHARACTERS, read_script
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine, engine_names
from tests.fixtures.paths import DATA
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

PUBLISHED = [json.loads(line) for line in (DATA / "commands.jsonl").read_text().splitlines()]
READ = ["vllm", "sglang", "tensorrt-llm"]


def words(text: str) -> list[tuple[str, ...]]:
    return [command.words for command in read_script(text).commands]


def launch_in(text):
    launches, _ = find_launches(read_script(text))
    (launch,) = launches
    return launch


def read(text):
    """The engine of a command, what its words mean, and every finding."""
    launch = launch_in(text)
    arguments = read_arguments(launch.engine, launch.args)
    found = meaning_of(arguments)
    return launch.engine, found, [*arguments.findings, *found.findings]


def codes(text):
    return [finding.code for finding in read(text)[2]]


@over("text, expected", table("commands", "words_are_those_of_a_shell"))
def test_words_are_those_of_a_shell(text, expected):
    assert [list(found) for found in words(text)] == expected


def test_variables_before_a_command_are_its_own():
    script = read_script("export A=1\nB=2 C='x y' vllm serve m")
    assert script.env == {"A": "1"}
    assert script.commands[0].env == {"B": "2", "C": "x y"}
    # a blank after a backslash is noticed, and what cannot be read refused
    script = read_script("vllm serve a \\ \n --b")
    assert script.loose_ends == 1
    assert script.commands[0].words == ("vllm", "serve", "a", "--b")
    for text in ("a 'b", 'a "b', 'a "b\\"', "a" * (MAX_CHARACTERS + 1), "a \0 b"):
        with pytest.raises(InputError):
            read_script(text)


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


PIECES_OF_WORDS = [
    *("<a", "`x", "$(", "${a", "{{", "A=1\n", "<<E\n", "'a'", "\\\n", '"$A"', "a $A ", "(("),
    *("bash -c '", "&&", ">"),
]


@over("piece", PIECES_OF_WORDS)
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


@over("text, name, args", table("commands", "a_server_is_found_behind_what_wraps_it"))
def test_a_server_is_found_behind_what_wraps_it(text, name, args):
    launch = launch_in(text)
    assert (launch.engine, list(launch.args)) == (name, args)


@over("text, seen", table("commands", "devices_that_a_server_sees"))
def test_devices_that_a_server_sees(text, seen):
    assert launch_in(text).visible_devices == seen


@over("args", ["org/model --tp 2", "--model org/model --tp 2"])
def test_an_image_of_others_is_read_by_its_name(args):
    launch = launch_in(f"docker run --gpus all some/spark-vllm-fork:latest {args}")
    found = (launch.engine, launch.program, launch.image_by_name)
    assert found == ("vllm", ("vllm", "serve"), True)
    assert "--tp" in launch.args
    # what an image starts is not to be said again
    assert launch_in("docker run vllm/vllm-openai:v0.32.0 vllm serve m").repeated
    assert not launch_in("docker run rocm/vllm:x vllm serve m").repeated


@over("text", table("commands", "what_starts_no_server"))
def test_what_starts_no_server(text):
    assert find_launches(read_script(text))[0] == []


def test_image_tags():
    tags = {"a/b:1": "1", "a/b": None, "host:5000/a/b": None, "host:5000/a/b:2": "2"}
    tags["a@sha256:ff"] = "sha256:ff"
    assert {image: image_tag(image) for image in tags} == tags
    # a list of words needs no quoting
    launch = launch_of(("vllm", "serve", "a model", "-tp", "2"))
    assert launch is not None
    assert launch.args == ("a model", "-tp", "2")
    # each engine that is built or read has its table
    specs = [engine(name) for name in engine_names()]
    buildable = {spec.name for spec in specs if spec.buildable and not spec.wraps}
    for name in {*READ, *buildable}:
        assert engine(name).options.options, name


@pytest.mark.parametrize("name", READ)
def test_tables_and_grammars_agree(name):
    """Every option that means something is there; every flag that is gone is not, or says itself
    that it goes; what to use instead is.
    """
    table, grammar = engine(name).options, grammars()[name]
    known = {*grammar.means, *grammar.words, *grammar.unmodelled}
    assert known - {"draft_method"} <= set(table.by_name)
    for flag, gone in grammar.gone.items():
        assert flag not in table.by_spelling or table.by_spelling[flag].deprecated, flag
        assert gone.use == "nothing" or gone.use.split(".")[0] in table.by_spelling, gone.use
    for option, values in grammar.words.items():
        choices = table.by_name[option].choices if option in table.by_name else ()
        assert not choices or set(values) <= set(choices), option


def sample(option) -> list[str]:
    """Words of a value that an option takes."""
    if option.type == "switch":
        return []
    text = {"int": "2", "float": "0.5", "str": "x", "json": "{}"}[option.type]
    return [option.choices[0] if option.choices else text]


@pytest.mark.parametrize("name", READ)
def test_every_option_in_every_spelling_is_read(name):
    spec = engine(name)
    for option in spec.options.options.values():
        for flag in option.spellings:
            joined = [f"{flag}={value}" for value in sample(option)] or [flag]
            for argv in ([flag, *sample(option)], joined):
                found = read_arguments(name, argv)
                assert option.name in found.values, argv
                assert [f for f in found.findings if f.level == "error"] == [], argv


@over("command, values", table("commands", "values_are_typed"))
def test_values_are_typed(command, values):
    launch = launch_in(command)
    found = read_arguments(launch.engine, launch.args)
    assert found.values == values
    assert found.findings == []


@over("command, code, says", table("commands", "findings_say_what_to_do"))
def test_findings_say_what_to_do(command, code, says):
    found = [finding for finding in read(command)[2] if finding.code == code]
    assert says in str(found[0])


def test_harmless_values_of_what_is_not_modelled_are_not_worth_a_word():
    assert codes("vllm serve m --cpu-offload-gb 0") == []
    assert codes("trtllm-serve m --backend pytorch") == []
    # attention ranks that do not divide are refused
    assert "attention-dp" in codes("sglang serve m --tp 8 --attn-dp-size 3")
    assert "attention-dp" in codes("sglang serve m --tp 8 --attn-dp-size 2 --dp-size 2")


@over("row", PUBLISHED)
def test_published_commands_are_read(row):
    name, found, findings = read(row["command"])
    assert (name, found.model) == (row["engine"], row["model"])
    assert (found.candidate, found.max_context) == (row["candidate"], row["max_context"])
    assert [finding.code for finding in findings] == row["codes"]


@over("options, candidate", table("commands", "sglang_counts_attention_ranks_within_tp"))
def test_sglang_counts_attention_ranks_within_tp(options, candidate):
    _, found, _ = read(f"python -m sglang.launch_server --model m {options}")
    assert found.candidate == {"pp": 1} | candidate


@over("command, draft", table("commands", "drafts_are_read_from_json_or_options"))
def test_drafts_are_read_from_json_or_options(command, draft):
    launch = launch_in(command.replace("{", "'{").replace("}", "}'"))
    assert meaning_of(read_arguments(launch.engine, launch.args)).draft == draft


def forbid_processes(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("a process was started")

    for name in ("Popen", "run", "call", "check_output"):
        monkeypatch.setattr(subprocess, name, forbidden)
    spawning = "system popen fork forkpty posix_spawn posix_spawnp execv execve execvp execvpe"
    for name in spawning.split():
        monkeypatch.setattr(f"os.{name}", forbidden, raising=False)


FLAGS = sorted(
    {flag for name in READ for flag in (*engine(name).options.by_spelling, *grammars()[name].gone)}
)
STARTS = [
    *("vllm serve", "python3 -m sglang.launch_server", "trtllm-serve", "docker run", "bash -c"),
    "vllm/vllm-openai:v1.2.3",
]
SIGNS = [
    *("8", "-1", "fp8", "auto", "{}", '{"a": 1}', "'", '"', "\\\n", "&&", "|", "$TP", "${A:-1}"),
    *("$(x)", "<m>", "#", "=", ".", "<<E"),
]
PIECES = st.one_of(st.text(max_size=30), st.sampled_from([*FLAGS, *STARTS]), st.sampled_from(SIGNS))


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
            arguments = read_arguments(launch.engine, launch.args)
            found = meaning_of(arguments)
            json.dumps([f.to_json() for f in (*arguments.findings, *found.findings)])
            assert launch.visible_devices is None or launch.visible_devices > 0


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(READ),
    st.lists(st.one_of(st.sampled_from(FLAGS), st.text(max_size=12)), max_size=12),
)
def test_any_words_of_options_are_read(name, given_words):
    found = read_arguments(name, given_words)
    assert set(found.values) <= set(engine(name).options.by_name)
    meaning_of(found)
