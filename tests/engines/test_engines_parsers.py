"""Every generated option against the engines' own parsers, each in a Python that has the engine
(``scripts/engine_parsers.py``).
"""

import json
import os
import re
import subprocess
from collections import defaultdict
from dataclasses import replace

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.start import launch_deployment
from recipe_core.models.catalog import load_model_spec
from tests.fixtures.deployments import ASKED, DRAFT_CHECKPOINT, MODELS, deployments
from tests.fixtures.paths import ROOT

SCRIPT = ROOT / "scripts" / "engine_parsers.py"
RECIPES, DEEP = 2000, 150
"""Random recipes of an engine, and how many of them are also held against the engine's
configuration, which takes longer.
"""
CLASSES = {"llama": "Llama", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "deepseek_v3": "DeepseekV3"}
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
EAGLE3["draft_vocab_size"] = 32000
PROGRAMS = {
    ("vllm", "serve"): "vllm",
    ("sglang", "serve"): "sglang",
    ("vllm-router",): "vllm-router",
    ("python3", "-m", "sglang_router.launch_router"): "sglang-router",
}


def python_with(engine: str) -> str:
    """An interpreter with the engine, from ``VLLM_PYTHON`` or ``SGLANG_PYTHON``; else skips."""
    variable = f"{engine.split('-')[0].upper()}_PYTHON"
    if not (found := os.environ.get(variable)):
        pytest.skip(f"{variable} names no Python that has {engine}; see scripts/engine_parsers.py")
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with the config.json of every model, by its id."""
    configs, out = {model: dict(load_model_spec(model).config) for model in MODELS}, {}
    for config in configs.values():
        config["architectures"] = [f"{CLASSES[config['model_type']]}ForCausalLM"]
    configs[DRAFT_CHECKPOINT] = configs[MODELS[0]] | EAGLE3
    for model, config in configs.items():
        folder = tmp_path_factory.mktemp("models") / model.replace("/", "--")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        out[model] = str(folder)
    return out


def filled(words, model):
    """Words with what a launch fills in."""
    here = dict.fromkeys(("host", "head", "node"), "127.0.0.1")
    values = {"model": model, "root": "bundle", "run": "bundle/run", "port": "8001", **here}

    def value(found):
        return "8000" if found[0] == "${port}" else values.get(found[1], "8001")

    return [re.sub(r"\$\{(\w+?)(\d*)\}", value, word) for word in words]


def lines(engine, folders, count):
    """The command lines of random recipes, by the program whose parser reads them; vLLM's also with
    other balancers and Ray.
    """
    out, left, ways = defaultdict(list), count, [{}, *(ASKED.values() if engine == "vllm" else ())]
    for n, deployment in enumerate(deployments(engine, 10 * count, seed=7)):
        try:
            started = launch_deployment(replace(deployment, engine_options=ways[n % len(ways)]))
        except NoAnswer:
            continue
        for process in started.processes:
            if (argv := engine_part(process.argv)) is None:
                continue
            words = filled(argv, folders[deployment.setting.model.name])
            words = [word.replace(DRAFT_CHECKPOINT, folders[DRAFT_CHECKPOINT]) for word in words]
            started_by = next(p for p in PROGRAMS if tuple(words[: len(p)]) == p)
            size, program = len(started_by), PROGRAMS[started_by]
            # Ray would look for a cluster
            deep = left > count - DEEP and process.role != "worker" and "ray" not in words
            out[program].append({"argv": words[size:], "deep": deep})
        left -= 1
        if not left:
            return out
    raise AssertionError("too few deployments start")


def engine_part(words):
    """The engine's own words, without the start of a Ray cluster; None if a node only joins one."""
    if not any(word.endswith("ray_node.py") for word in words):
        return words
    return words[words.index("--") + 1 :] if "--" in words else None


def run(engine, words):
    """What the parser refuses, after it has read every line."""
    given = "".join(json.dumps(each) + "\n" for each in words)
    command = [python_with(engine), str(SCRIPT), engine]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-2000:]
    *refusals, counts = map(json.loads, done.stdout.splitlines())
    assert counts == {"lines": len(words), "refused": len(refusals)}
    return refusals


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engines_own_parser_takes_every_command_and_refuses_what_is_wrong(engine, folders):
    python_with(engine)
    for program, words in lines(engine, folders, RECIPES).items():
        assert run(program, words) == []
    flag = {"vllm": "--model", "sglang": "--model-path"}[engine]
    words = [flag, folders[MODELS[1]], "--tensor-paralel-size", "2"]
    (refused,) = run(engine, [{"argv": words}])
    assert "tensor" in refused["why"]
