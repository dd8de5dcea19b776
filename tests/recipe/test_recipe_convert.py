"""Commands and published recipes as recipes: the same processes, and no silent loss."""

import random
import shlex
from collections import Counter
from dataclasses import replace

import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.commands.context import CommandContext
from recipe_core.launch.serving.vllm import WAYS
from recipe_core.launch.start import launch_deployment
from recipe_core.recipe import relaunch
from recipe_core.recipe.convert import convert_to_recipe
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.published import read_published
from recipe_core.request.describe import model_short_name
from tests.fixtures.deployments import ASKED, deployments
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table

PASSED, VARIABLES = table("recipe", "passed"), table("recipe", "variables")
PASSED["vllm"] += ASKED.values()
IMAGES = {"vllm": ("vllm/vllm-openai:v0.32.0", 2), "sglang": ("lmsysorg/sglang:v0.5.23", 0)}


def drawn(name):
    """Random deployments of one engine, with user options and variables, and their launches."""
    draw = random.Random(9)
    for deployment in deployments(name, 80, seed=21):
        options = draw.choice(PASSED[name])
        own = {"engine_options": options, "environment": draw.choice(VARIABLES)}
        served = model_short_name(deployment.setting.model.name)
        asked = replace(deployment, served_name=served, **own)
        try:
            started = launch_deployment(asked)
        except NoAnswer:
            continue
        groups = {process.group for process in started.processes}
        engines = 1 if asked.candidate.ep > 1 else len(groups)
        if asked.candidate.prefill is None and asked.candidate.replicas == 1 and engines == 1:
            yield asked, started


def words_of(deployment, process):
    typed = {"${model}": deployment.setting.model.name, "${host}": "127.0.0.1", "${port}": "8000"}
    words = list(process.argv)
    for name, value in (typed | dict.fromkeys(("${head}", "${node0}"), "10.0.0.1")).items():
        words = [word.replace(name, value) for word in words]
    return words[words.index("--") + 1 :] if "--" in words else words


def as_text(deployment, started):
    process = started.processes[0]
    variables = [f"{name}={value}" for name, value in process.env.items()]
    return shlex.join(["env", *variables, *words_of(deployment, process)])


def as_published(deployment, started):
    """Public recipe JSON: words, variables, an image, hardware."""
    cluster, process = deployment.setting.cluster, started.processes[0]
    rendered = {"argv": words_of(deployment, process), "env": process.env}
    rendered |= {"hardware": cluster.device.name, "node_count": cluster.nodes}
    return read_published({"recommended_command": rendered | {"docker_image": "example/engine:v1"}})


def as_container(deployment, started):
    """A docker run whose image starts the engine by itself."""
    process, (image, skip) = started.processes[0], IMAGES[deployment.candidate.engine]
    env = [word for name, value in process.env.items() for word in ("--env", f"{name}={value}")]
    docker = ["docker", "run", "--gpus", "all", "--ipc=host", *env, image]
    return shlex.join([*docker, *words_of(deployment, process)[skip:]])


def as_options(deployment, started):
    """vLLM's ``--config`` file or SGLang's: options by name, which start one process."""
    if len(started.processes) > 1:
        return None
    model = deployment.setting.model.name
    typed = {"${model}": model, "${host}": "127.0.0.1", "${port}": 8000}
    options = {
        option: typed.get(value, value) if isinstance(value, str) else value
        for option, value in started.options.items()
    }
    options |= {"model": model} if deployment.candidate.engine == "vllm" else {}
    document = yaml.safe_dump({"chat_template": None} | options, sort_keys=False)
    return read_published(yaml.safe_load(document))


def processes(started, form):
    """Everything about processes that is the same on every machine; a file has no variables."""
    if form is as_options:
        return [process.argv for process in started.processes]
    return [(p.argv, p.env, p.port_offset, p.devices, p.node, p.role) for p in started.processes]


OTHERS = (as_options, as_published, as_container)
AT_NIGHT = [pytest.param(form, marks=pytest.mark.nightly) for form in OTHERS]


@pytest.mark.parametrize("form", [as_text, *AT_NIGHT])
@pytest.mark.parametrize("name", PASSED)
def test_what_is_started_converts_to_what_is_started(name, form):
    seen = Counter()
    for deployment, started in drawn(name):
        if (written := form(deployment, started)) is None:
            continue
        cluster = deployment.setting.cluster
        hardware = f"{cluster.device.name}:{cluster.per_node}"
        # a command does not say the acceptance of the drafts that are drawn
        ground = CommandContext.of(hardware=hardware, nodes=cluster.nodes, acceptance=0.7)
        try:
            found = convert_to_recipe(written, ground)
        except NoAnswer:  # drawn without a look at memory
            continue
        again = relaunch(found.recipe)
        assert processes(again, form) == processes(started, form)
        assert found.lost == ()
        seen.update(converted=True, draft=deployment.candidate.speculative is not None)
        if form is not as_options:
            own, options = (
                {name: value for name, value in each.options.items() if name not in WAYS}
                for each in (again, started)
            )
            assert own == options
            assert found.recipe.max_context == deployment.max_context
            seen.update(spread=started.nodes > 1, options=bool(found.carried))
    assert seen["converted"] > 8
    assert seen["draft"]
    assert form is as_options or min(seen["draft"], seen["spread"], seen["options"]) > 1


H100 = CommandContext.of(hardware="h100-sxm:8")


def lost(found):
    return "\n".join(f"{each.subject}: {each.why}" for each in found.lost)


def test_one_rank_of_several_becomes_the_recipe_of_all_and_a_draft_stays():
    command = (
        "CUDA_VISIBLE_DEVICES=3 vllm serve Qwen/Qwen3-30B-A3B --data-parallel-size 8 "
        "--data-parallel-rank 3 --enable-expert-parallel --data-parallel-address 10.0.0.1 "
        "--data-parallel-rpc-port 13345"
    )
    found = convert_to_recipe(command, H100)
    assert found.recipe.engine.options["data_parallel_external_lb"] is True
    every = [process.argv for process in relaunch(found.recipe).processes]
    ranks = [argv[argv.index("--data-parallel-rank") + 1] for argv in every]
    assert ranks == [str(n) for n in range(8)]
    # a draft of its own stays one where the model has draft layers
    draft = '{"method":"eagle","num_speculative_tokens":3,"model":"someone/a-draft"}'
    serve = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len 4096"
    ground = CommandContext.of(hardware="h200-sxm:8", acceptance=0.7)
    found = convert_to_recipe(f"{serve} --speculative-config '{draft}'", ground)
    assert found.recipe.engine.options["speculative_config"] == yaml.safe_load(draft)


def test_what_cannot_be_carried_over_is_said():
    command = "HF_TOKEN=hf_secret FOO=1 CUDA_VISIBLE_DEVICES=0,1 VLLM_LOGGING_LEVEL=INFO "
    command += "vllm serve Qwen/Qwen3-8B --api-key k --no-such-flag 3 --seed 7"
    found = convert_to_recipe(command, H100)
    said = lost(found)
    for part in ("--no-such-flag 3", "HF_TOKEN", "FOO", "CUDA_VISIBLE_DEVICES", "--api-key"):
        assert part in said
    assert "hf_secret" not in said
    assert found.recipe.environment["VLLM_LOGGING_LEVEL"] == "INFO"
    assert found.recipe.lock.seeds["seed"] == 7
    # words of launch.json that the launcher fills are no address of anything
    words = ["vllm", "serve", "Qwen/Qwen3-8B", "--host", "${host}", "--port", "${port}"]
    found = convert_to_recipe(words, H100)
    assert found.recipe.parameters == Parameters()
    assert "--host ${host}: left open" in lost(found)
    assert "--port ${port}: left open" in lost(found)


def test_an_image_is_taken_over_unless_it_is_open_or_changes_without_notice():
    for tag, kept, why in (
        ("v0.32.0", "vllm/vllm-openai:v0.32.0", ""),
        ("latest", None, "without notice"),
        ("$TAG", None, "vllm/vllm-openai:$TAG: left open"),
    ):
        run = f"docker run --gpus all --ipc=host vllm/vllm-openai:{tag} --model Qwen/Qwen3-8B"
        found = convert_to_recipe(run, H100)
        assert found.recipe.parameters.image == kept
        assert why in lost(found)
        assert ("without notice" in lost(found)) is (tag == "latest")


def test_what_starts_nothing_or_has_no_address_is_no_recipe():
    serve = "vllm serve Qwen/Qwen3-8B"
    assert "takes int" in str(refusal(convert_to_recipe, f"{serve} -tp many", H100))
    large = "vllm serve meta-llama/Llama-3.1-70B-Instruct"
    assert "short" in str(refusal(convert_to_recipe, large, H100, kind=NoAnswer))
    for words, field in (("--host 'a b'", "host"), ("--port 99999", "port")):
        assert refusal(convert_to_recipe, f"{serve} {words}", H100).field == f"parameters.{field}"


def test_published_forms_are_read_and_others_refused():
    source = read_published(table("recipe", "rendering"))
    assert source.hardware == "h200"
    found = convert_to_recipe(source, CommandContext.of(hardware="h200:2"))
    assert found.recipe.candidate["tp"] == 2
    assert found.recipe.engine.options["reasoning_parser"] == "qwen3"
    assert "companions: not read" in lost(found)
    for env in ({"A": 1}, ["A=1"], [{"name": "A", "value": 1}]):
        assert read_published({"argv": ["vllm", "serve", "x"], "env": env}).env == {"A": "1"}
    for document, says in table("recipe", "not_published"):
        assert says in str(refusal(read_published, document))


def test_a_cookbook_is_read_for_a_device():
    book = table("recipe", "cookbook")
    assert "4" in read_published(book, "h100-sxm").command
    assert "8" in read_published(book, "mi300x").command
    assert read_published(book, "h100-sxm", "fast").command[-3] == "8"
    assert len(read_published(book, "h100-sxm").unread) == 2
    assert "no configuration" in str(refusal(read_published, book, "b200-sxm"))
