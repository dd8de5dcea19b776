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
from tests.fixtures.sizes import examples

PUBLISHED = [json.loads(line) for line in (DATA / "commands.jsonl").read_text().splitlines()]
READ = ["vllm", "sglang", "tensorrt-llm"]


def words(text: str) -> list[tuple[str, ...]]:
    return [command.words for command in read_script(text).commands]


def one(text: str):
    launches, _ = find_launches(read_script(text))
    (launch,) = launches
    return launch


def meant(text: str):
    launch = one(text)
    return meaning_of(read_arguments(launch.engine, launch.args))


def codes(text: str) -> list[str]:
    launch = one(text)
    arguments = read_arguments(launch.engine, launch.args)
    return [f.code for f in (*arguments.findings, *meaning_of(arguments).findings)]


# Words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve a -tp 2 # two", [("vllm", "serve", "a", "-tp", "2")]),
        ("a 'b c' \"d e\" f\\ g", [("a", "b c", "d e", "f g")]),
        ("a \\\n  --b 1 \\\r\n --c", [("a", "--b", "1", "--c")]),
        ("a --json '{\"x\": [1, 2]}'", [("a", "--json", '{"x": [1, 2]}')]),
        ("a && b; c | d & e\nf || (g)", [("a",), ("b",), ("c",), ("d",), ("e",), ("f",), ("g",)]),
        ("a > log 2>&1 < in &>> all b", [("a", "b")]),
        ("a <model> <your-model-id> {{ tp }}", [("a", "<model>", "<your-model-id>", "{{ tp }}")]),
        (
            "a $HOME/x ${UNSET} $(nproc --all) `id -u`",
            [("a", "$HOME/x", "${UNSET}", "$(nproc --all)", "`id -u`")],
        ),
        (
            "M=org/name\nexport TP=8\na $M ${TP} \"$M-x\" '$M' ${P:-9000}",
            [("a", "org/name", "8", "org/name-x", "$M", "9000")],
        ),
        ("cat <<EOF > f\nit's not closed\nEOF\na b", [("cat",), ("a", "b")]),
        ("a#b c", [("a#b", "c")]),
        ("a '' \"\"", [("a", "", "")]),
    ],
)
def test_words_are_those_of_a_shell(text, expected):
    assert words(text) == expected


def test_variables_before_a_command_are_its_own():
    script = read_script("export A=1\nB=2 C='x y' vllm serve m")
    assert script.env == {"A": "1"}
    assert script.commands[0].env == {"B": "2", "C": "x y"}


def test_a_blank_after_a_backslash_is_noticed():
    script = read_script("vllm serve a \\ \n --b")
    assert script.loose_ends == 1
    assert script.commands[0].words == ("vllm", "serve", "a", "--b")


@pytest.mark.parametrize("text", ["a 'b", 'a "b', 'a "b\\"', "a" * (MAX_CHARACTERS + 1), "a \0 b"])
def test_what_cannot_be_read_is_one_error(text):
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


@pytest.mark.parametrize(
    "piece",
    [
        "<a",
        "`x",
        "$(",
        "${a",
        "{{",
        "A=1\n",
        "<<E\n",
        "'a'",
        "\\\n",
        '"$A"',
        "a $A ",
        "((",
        "bash -c '",
        "&&",
        ">",
    ],
)
def test_reading_takes_time_in_proportion(piece):
    """No piece makes the reader quadratic: a full-size text of it is read at once."""
    text = f"A={'x' * 500}\nvllm serve " + piece * ((MAX_CHARACTERS - 600) // len(piece))
    try:
        script = read_script(text)
    except InputError:
        return
    assert (
        sum(len(word) for command in script.commands for word in command.words)
        <= 3 * MAX_CHARACTERS
    )
    find_launches(script)


# What starts a server


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("vllm serve m --x", "vllm", ("m", "--x")),
        ("/opt/venv/bin/vllm serve m", "vllm", ("m",)),
        ("python3 -u -m vllm.entrypoints.openai.api_server --model m", "vllm", ("--model", "m")),
        ("python -m sglang.launch_server --model-path m", "sglang", ("--model-path", "m")),
        ("sglang serve m --tp 2", "sglang", ("m", "--tp", "2")),
        ("trtllm-serve m --tp_size 2", "tensorrt-llm", ("m", "--tp_size", "2")),
        ("trtllm-serve serve m", "tensorrt-llm", ("m",)),
        ("mpirun -n 8 trtllm-llmapi-launch trtllm-serve m", "tensorrt-llm", ("m",)),
        ("sudo -E env A=1 nohup numactl -N 0 vllm serve m > log &", "vllm", ("m",)),
        ("pip install vllm && for i in 0; do vllm serve m; done", "vllm", ("m",)),
        ("bash -lc 'source x; exec vllm serve m'", "vllm", ("m",)),
        (
            "docker run -it --rm --gpus all -p8000:8000 vllm/vllm-openai:v0.32.0 --model m",
            "vllm",
            ("--model", "m"),
        ),
        (
            "docker run --entrypoint vllm docker.io/vllm/vllm-openai@sha256:abc serve m",
            "vllm",
            ("m",),
        ),
        ("podman run --device=/dev/kfd rocm/vllm:6 bash -c 'vllm serve m'", "vllm", ("m",)),
        (
            "docker run --shm-size 32g lmsysorg/sglang:dev "
            "python3 -m sglang.launch_server --model m",
            "sglang",
            ("--model", "m"),
        ),
        (
            "docker run nvcr.io/nvidia/tensorrt-llm/release:1.2.0 trtllm-serve m",
            "tensorrt-llm",
            ("m",),
        ),
    ],
)
def test_a_server_is_found_behind_what_wraps_it(text, name, args):
    launch = one(text)
    assert (launch.engine, launch.args) == (name, args)


@pytest.mark.parametrize(
    "text",
    [
        "echo vllm serve m",
        "pip install vllm serve",
        "trtllm-serve disaggregated -c x",
        "docker run ubuntu ls",
        "vllm bench serve",
        "",
    ],
)
def test_what_starts_no_server(text):
    assert find_launches(read_script(text))[0] == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve m", 2),
        ("export HIP_VISIBLE_DEVICES=3\nvllm serve m", 1),
        ("docker run --gpus '\"device=0,1,2\"' vllm/vllm-openai --model m", 3),
        ("docker run --gpus 4 vllm/vllm-openai --model m", 4),
        ("docker run --gpus all -e CUDA_VISIBLE_DEVICES=5 vllm/vllm-openai --model m", 1),
        ("docker run --gpus all vllm/vllm-openai --model m", None),
        ("CUDA_VISIBLE_DEVICES=$IDS vllm serve m", None),
    ],
)
def test_devices_that_a_server_sees(text, seen):
    assert one(text).visible_devices == seen


def test_what_an_image_starts_is_not_to_be_said_again():
    assert one("docker run vllm/vllm-openai:v0.32.0 vllm serve m").repeated
    assert not one("docker run rocm/vllm:x vllm serve m").repeated


@pytest.mark.parametrize("args", ["org/model --tp 2", "--model org/model --tp 2"])
def test_an_image_of_others_is_read_by_its_name(args):
    launch = one(f"docker run --gpus all some/spark-vllm-fork:latest {args}")
    assert (launch.engine, launch.program, launch.image_by_name) == (
        "vllm",
        ("vllm", "serve"),
        True,
    )
    assert "--tp" in launch.args


@pytest.mark.parametrize(
    "text",
    [
        "docker run some/spark-vllm-fork:latest ls -l",
        "docker run some/spark-vllm-fork:latest",
        "docker run --entrypoint sleep some/spark-vllm-fork:latest org/model",
        "docker run rocm/vllm:latest org/model",
        "docker run some/thing:latest org/model",
    ],
)
def test_an_image_of_others_starts_nothing_without_arguments_of_a_server(text):
    assert find_launches(read_script(text))[0] == []


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("a/b:1", "1"),
        ("a/b", None),
        ("host:5000/a/b", None),
        ("host:5000/a/b:2", "2"),
        ("a@sha256:ff", "sha256:ff"),
    ],
)
def test_image_tags(image, tag):
    assert image_tag(image) == tag


# Options


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


def test_each_engine_that_is_built_or_read_has_its_table():
    buildable = {
        name for name in engine_names() if engine(name).buildable and not engine(name).wraps
    }
    for name in {*READ, *buildable}:
        assert engine(name).options.options, name


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
            for argv in (
                [flag, *sample(option)],
                [f"{flag}={sample(option)[0]}"] if sample(option) else [flag],
            ):
                found = read_arguments(name, argv)
                assert option.name in found.values, argv
                assert [f for f in found.findings if f.level == "error"] == [], argv


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("vllm serve m --tensor_parallel_size=4", {"tensor_parallel_size": 4}),
        ("vllm serve m --tensor-parallel 4", {"tensor_parallel_size": 4}),
        ("vllm serve m -tp=4 -q fp8", {"tensor_parallel_size": 4, "quantization": "fp8"}),
        ("vllm serve m --max-model-len 32k", {"max_model_len": 32_000}),
        ("vllm serve m --max-model-len 32K", {"max_model_len": 32_768}),
        ("vllm serve m --max-model-len auto", {"max_model_len": "auto"}),
        ("vllm serve m -O3", {"optimization_level": "3"}),
        ("vllm serve m --no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("vllm serve m --moe-backend FlashInfer-Cutlass", {"moe_backend": "flashinfer_cutlass"}),
        (
            "vllm serve m -cc.mode 3 -cc.custom_ops+ a,b",
            {"compilation_config": {"mode": 3, "custom_ops": ["a", "b"]}},
        ),
        (
            "vllm serve m --served-model-name a b --port 1",
            {"served_model_name": ["a", "b"], "port": 1},
        ),
        (
            "sglang serve m --tp 2 --mem-fraction-static .8",
            {"tp_size": 2, "mem_fraction_static": 0.8},
        ),
        (
            "trtllm-serve m --kv_cache_free_gpu_memory_fraction 0.8",
            {"free_gpu_memory_fraction": 0.8},
        ),
    ],
)
def test_values_are_typed(command, values):
    launch = one(command)
    found = read_arguments(launch.engine, launch.args)
    assert found.values == values
    assert found.findings == []


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("vllm serve m --foo-bar 3", "unknown", "vLLM 0.32.0 has no --foo-bar."),
        ("vllm serve m --tensor-paralel-size 2", "unknown", "Did you mean --tensor-parallel-size"),
        ("vllm serve m --swap-space 4", "unknown", "Use --kv-offloading-size."),
        ("vllm serve m --disable-log-requests", "unknown", "Leave it out"),
        ("vllm serve m --data-parallel 2", "unknown", "several options that begin"),
        ("vllm serve m -tp two", "value", "takes int, not 'two'"),
        ("vllm serve m --kv-cache-dtype fp9", "value", "Did you mean fp8"),
        ("vllm serve m --limit-mm-per-prompt image=4", "value", "takes JSON"),
        ("vllm serve m --compilation-config '{\"level\": 3}'", "key", "no key 'level'"),
        ("vllm serve m --compilation-config 3", "value", "a JSON object"),
        ('vllm serve m --speculative-config {"method":"ngram"}', "value", "{method:ngram}"),
        ("vllm serve m --enforce-eager true", "switch-value", "takes no value"),
        ("vllm serve m -tp", "no-value", "needs a value"),
        ("vllm serve m -tp 2 -tp 4", "repeated", "the last, 4, counts"),
        ("vllm serve m -tp $TP", "open", "is left open: $TP"),
        ("vllm serve m other", "stray", "'other' belongs to no option"),
        ("vllm serve m --max-model-len=-5", "range", "-5 is not a number of tokens"),
        ("vllm serve m -tp 0", "range", "greater than or equal to 1"),
        ("vllm serve m --gpu-memory-utilization 1.5", "range", "less than or equal to 1"),
        ("trtllm-serve m --tp-size 2", "unknown", "Did you mean --tp_size"),
        (
            "python -m sglang.launch_server --model m --enable-dp-attention",
            "deprecated",
            "--attn-dp-size",
        ),
        ("vllm serve m --cpu-offload-gb 4", "unmodelled", "weights in host memory"),
        ("vllm serve m --kv-cache-dtype nvfp4", "unmodelled", "nvfp4 is not in the estimate"),
    ],
)
def test_findings_say_what_to_do(command, code, says):
    launch = one(command)
    arguments = read_arguments(launch.engine, launch.args)
    found = [f for f in (*arguments.findings, *meaning_of(arguments).findings) if f.code == code]
    assert found
    assert says in str(found[0])


def test_harmless_values_of_what_is_not_modelled_are_not_worth_a_word():
    assert codes("vllm serve m --cpu-offload-gb 0") == []
    assert codes("trtllm-serve m --backend pytorch") == []


# Meaning


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["command"].split("\n")[0][:60])
def test_published_commands_are_read(row):
    launch = one(row["command"])
    arguments = read_arguments(launch.engine, launch.args)
    found = meaning_of(arguments)
    assert (launch.engine, found.model) == (row["engine"], row["model"])
    assert found.candidate == row["candidate"]
    assert found.max_context == row["max_context"]
    assert [f.code for f in (*arguments.findings, *found.findings)] == row["codes"]


@pytest.mark.parametrize(
    ("options", "candidate"),
    [
        ("--tp 8 --dp-size 4", {"tp": 8, "dp": 4, "ep": 1}),
        (
            "--tp 8 --attn-dp-size 4 --max-running-requests 256",
            {"tp": 2, "dp": 4, "ep": 1, "max_num_seqs": 64},
        ),
        (
            "--tp 8 --dp 8 --enable-dp-attention --chunked-prefill-size 65536",
            {"tp": 1, "dp": 8, "ep": 1, "max_batched_tokens": 8192},
        ),
        ("--tp 8 --ep-size 4", {"tp": 8, "dp": 1, "ep": 4}),
        ("--tp 8 --moe-a2a-backend deepep", {"tp": 8, "dp": 1, "ep": 8}),
        ("--tp $TP --dp 2", {"dp": 2, "ep": 1}),
    ],
)
def test_sglang_counts_attention_ranks_within_tp(options, candidate):
    found = meant(f"python -m sglang.launch_server --model m {options}")
    assert found.candidate == {"pp": 1} | candidate


def test_attention_ranks_that_do_not_divide_are_refused():
    assert "attention-dp" in codes("sglang serve m --tp 8 --attn-dp-size 3")
    assert "attention-dp" in codes("sglang serve m --tp 8 --attn-dp-size 2 --dp-size 2")


def test_drafts_are_read_from_json_or_options():
    nested = (
        'vllm serve m --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 5}\''
    )
    assert meant(nested).draft == {"tokens": 5, "method": "eagle"}
    assert meant("vllm serve m --spec-method ngram --spec-tokens 2").draft == {
        "tokens": 2,
        "method": "ngram",
    }
    assert meant(
        "sglang serve m --speculative-algorithm NEXTN --speculative-num-steps 3"
    ).draft == {"tokens": 3, "method": "mtp"}
    assert meant("vllm serve m").draft is None


def test_a_list_of_words_needs_no_quoting():
    launch = launch_of(("vllm", "serve", "a model", "-tp", "2"))
    assert launch is not None
    assert launch.args == ("a model", "-tp", "2")


# Anything at all


def forbid_processes(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("a process was started")

    for name in ("Popen", "run", "call", "check_output"):
        monkeypatch.setattr(subprocess, name, forbidden)
    for name in (
        "system",
        "popen",
        "fork",
        "forkpty",
        "posix_spawn",
        "posix_spawnp",
        "execv",
        "execve",
        "execvp",
        "execvpe",
    ):
        monkeypatch.setattr(f"os.{name}", forbidden, raising=False)


FLAGS = sorted(
    {flag for name in READ for flag in (*engine(name).options.by_spelling, *grammars()[name].gone)}
)
PIECES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            *FLAGS,
            "vllm serve",
            "python3 -m sglang.launch_server",
            "trtllm-serve",
            "docker run",
            "vllm/vllm-openai:v1.2.3",
            "bash -c",
        ]
    ),
    st.sampled_from(
        [
            "8",
            "-1",
            "fp8",
            "auto",
            "{}",
            '{"a": 1}',
            "'",
            '"',
            "\\\n",
            "&&",
            "|",
            "$TP",
            "${A:-1}",
            "$(x)",
            "<m>",
            "#",
            "=",
            ".",
            "<<E",
        ]
    ),
)


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
