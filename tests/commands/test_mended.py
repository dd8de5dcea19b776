"""What a mended command keeps, and where each program looks for its model."""

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.commands.arguments import Arguments
from recipe_core.commands.context import CommandContext
from recipe_core.commands.edits import mend_words, set_options
from recipe_core.commands.judge import judge_command
from recipe_core.commands.launches import first_launch
from recipe_core.commands.remedies import whole_command
from tests.fixtures.rows import over
from tests.fixtures.sizes import examples
from tests.fixtures.verdicts import assert_says

API_SERVER = "python -m vllm.entrypoints.openai.api_server"
MODEL_PLACES = [
    ("vllm serve m -tp 2", True),
    ("vllm serve --model m", True),
    ("vllm serve -tp 2 m", True),
    (f"{API_SERVER} --model m", True),
    (f"{API_SERVER} --model=$MODEL", True),
    (f"{API_SERVER} m", False),
    ("/opt/bin/python3 -u -m vllm.entrypoints.openai.api_server -tp 2 m", False),
    ("sglang serve m --tp 2", True),
    ("sglang serve --model-path m --tp 2", True),
    ("/usr/bin/sglang serve --tp 2 m", False),
    ("python -m sglang.launch_server --model m", True),
    ("python -m sglang.launch_server m --tp 2", False),
    ("trtllm-serve --tp_size 2 m", True),
    ("trtllm-serve serve m", True),
    ("text-embeddings-router --model-id m", True),
    ("text-embeddings-router m", False),
    ("python -m dynamo.vllm --model m", True),
    ("python -m dynamo.vllm m", False),
    # what an image starts by itself is another program since some release (vllm#32294)
    ("docker run vllm/vllm-openai:v0.9.1 m", False),
    ("docker run vllm/vllm-openai:v0.13.0-cu129@sha256:0 m", False),
    ("docker run vllm/vllm-openai:v0.9.1 --model m", True),
    ("docker run vllm/vllm-openai:v0.25.0 m", True),
    ("docker run vllm/vllm-openai:latest m", True),
]
KEPT = {
    "vllm": ["--port 9000", "--max_model_len=8192", "-tp 2", "-O3", "--no-enable-prefix-caching"],
    "sglang": ["--port 9000", "--context-length=8192", "--tp 2", "--trust-remote-code"],
}
BROKEN = {
    "vllm": [
        "--fooo 3",
        "--swap-space 4",
        "--dtype float8",
        "--enforce-eager=true",
        "--task embed",
    ],
    "sglang": ["--fooo", "--max-micro-batch-size 4", "--dtype float8", "--disable-mla"],
}
STARTS = {
    "vllm": ["vllm serve {}", "vllm serve --model {}", f"{API_SERVER} --model {{}}"],
    "sglang": ["sglang serve {}", "python3 -m sglang.launch_server --model-path={}"],
}
MISPLACED = {"vllm": f"{API_SERVER} {{}}", "sglang": "python -m sglang.launch_server {}"}


def read(words):
    launch = first_launch(tuple(words))
    return launch, Arguments(launch.engine, launch.args, None, launch.program)


def is_inside(words, others):
    """Whether the words stand among others, as they are and in their order."""
    rest = iter(others)
    return all(word in rest for word in words)


@over("command, right", MODEL_PLACES)
def test_each_program_takes_its_model_in_its_own_place(command, right):
    _, arguments = read(command.split())
    codes = [finding.code for finding in arguments.findings if finding.level == "error"]
    assert codes == ([] if right else ["model-place"])


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_mended_command_keeps_every_word_that_is_not_mended(data):
    name = data.draw(st.sampled_from(sorted(KEPT)))
    start = data.draw(st.sampled_from([*STARTS[name], MISPLACED[name]])).format("org/a-model")
    kept = data.draw(st.lists(st.sampled_from(KEPT[name]), unique=True))
    broken = data.draw(st.lists(st.sampled_from(BROKEN[name]), unique=True))
    pieces = data.draw(st.permutations([*kept, *broken]))
    before = [start, *(piece for piece in pieces if piece in kept)]
    untouched = " ".join(before).split()
    launch, arguments = read(" ".join([start, *pieces]).split())
    done = mend_words(arguments)
    if not broken and start != MISPLACED[name].format("org/a-model"):
        assert done is None
        return
    command = whole_command(launch, done[0]).argv
    assert is_inside(untouched, command)
    again = read(command)[1]
    assert [finding for finding in again.findings if finding.level == "error"] == []
    # and another value of an option leaves all other words as well
    option = {"vllm": "max_model_len", "sglang": "context_length"}[name]
    longer = set_options(again, {option: 4096})
    assert is_inside([word for word in untouched if "8192" not in word], [*command[:3], *longer])


def test_a_mended_and_a_better_command_name_the_model_as_their_program_takes_it():
    """The word is refused or passed over there (vllm#27389)."""
    ground = CommandContext.of(hardware="h100-sxm:8")
    answer = judge_command(f"{API_SERVER} Qwen/Qwen3-8B --max-model-len 8192", ground)
    assert_says(answer, {"verdict": "cannot start", "says": "takes its model as --model alone"})
    [change] = answer["changes"]
    assert change["command"] == f"{API_SERVER} --model Qwen/Qwen3-8B --max-model-len 8192"
    assert change["options"] == {"--model": "Qwen/Qwen3-8B"}
    words = "--model Qwen/Qwen2-57B-A14B-Instruct --tensor-parallel-size 8 --max-model-len 8192"
    answer = judge_command(f"{API_SERVER} {words}", ground)
    assert "gain" not in answer["better"]  # over a split that cannot run there is none
    assert_says(answer, {"verdict": "cannot start", "says": "28 attention heads"})
    [better] = answer["better"]["commands"]
    start = f"{API_SERVER} --model Qwen/Qwen2-57B-A14B-Instruct "
    assert better["command"].startswith(start)
    assert judge_command(better["argv"], ground)["ok"] is True


def test_a_worker_of_dynamo_is_read_as_the_engine_inside_and_its_own_options_are_passed_over():
    command = "python -m dynamo.vllm --model Qwen/Qwen3-32B --disaggregation-mode prefill"
    command += " --migration-limit 3 --max-model-len 8192 -tp"
    answer = judge_command(f"{command} 2 --never-known 1", CommandContext.of(hardware="h100-sxm:8"))
    levels = {"version": ["note"], "unknown": ["warning"]}
    assert_says(answer, {"verdict": "fits", "judged_with.exact": False, "levels": levels})
    passed_over = ["--disaggregation-mode", "prefill", "--migration-limit", "3"]
    assert answer["unread"] == [*passed_over, "--never-known", "1"]
    answer = judge_command(
        f"{command} 3", CommandContext.of(hardware="h100-sxm:8", engine_version="0.31.0")
    )
    assert_says(answer, {"verdict": "cannot start", "says": "not divisible by TP 3"})
    [note] = [each["message"] for each in answer["findings"] if each["code"] == "version"]
    assert note.startswith("what dynamo.vllm changes of vLLM 0.31.0 is not known")


def test_what_is_held_once_is_not_said_to_be_held_several_times():
    command = "vllm serve Qwen/Qwen2-57B-A14B-Instruct --max-model-len 8192 -tp {}"
    for tp, notes in ((7, []), (8, ["Each cached token is held 2 times: 4 KV heads over TP 8."])):
        answer = judge_command(command.format(tp), CommandContext.of(hardware="h200-sxm:8"))
        assert [note for note in answer["estimate"]["notes"] if "Each cached" in note] == notes
