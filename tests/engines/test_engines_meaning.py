"""What is launched is what was estimated: degrees, formats, lengths, limits and places are read
back out of every output.
"""

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.option_meanings import Meant
from recipe_core.engines.spec import engine, engine_names
from recipe_core.launch.serving.vllm import NODE
from recipe_core.launch.start import launch_deployment
from recipe_core.recipe import make_recipe
from tests.conftest import make_request
from tests.fixtures.deployments import ASKED, EXTERNAL, HYBRID, RAY, deployments, drawn
from tests.fixtures.launch_words import CACHE, options, read_by_meaning
from tests.fixtures.patience import PATIENCE, comes
from tests.fixtures.ports import free_port
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

EACH = examples(300, least=60)
LIMITS = ("max_num_seqs", "max_batched_tokens", "memory_fraction")
ONE = dict.fromkeys(("tp", "pp", "dp", "ep"), 1)


def read_command(name, words, files):
    """The commands of vLLM, SGLang and TensorRT-LLM, read by the project's own reader."""
    meant = Meant(Arguments(name, words))
    path = options(words).get("config", "").removeprefix("${root}/")
    config = yaml.safe_load(files[path]) if path else {}
    if config.get("enable_attention_dp"):
        meant.candidate |= {"tp": 1, "dp": meant.candidate["tp"]}
    stated = config.get("kv_cache_config", {}).get("dtype")
    cache = "fp8" if stated == "fp8" else meant.candidate.get("kv_dtype")
    draft = meant.draft or _draft_of(config.get("speculative_config"))
    extra = {"kv": None if cache == "auto" else cache, "draft": draft and draft["tokens"]}
    return meant.candidate | {"context": meant.max_context} | extra


def _draft_of(config):
    names = ("num_nextn_predict_layers", "max_draft_len")
    return config and {"tokens": config.get(names[0]) or config.get(names[1])}


def named(engine, values, number=lambda value: value):
    names = table("engines_meaning", engine).items()
    return ONE | {field: number(values[name]) for field, name in names}


def read_llmapi_file(values):
    cache = values["kv_cache_config"]
    return named("llmapi_file", values) | {
        "ep": values.get("moe_expert_parallel_size", 1),
        "memory_fraction": cache["free_gpu_memory_fraction"],
        "kv": CACHE[cache["dtype"]],
        "draft": (_draft_of(values.get("speculative_config")) or {}).get("tokens"),
    }


def read_tgi(words, env):
    o = options(words)
    return named("tgi", o, int) | {
        "memory_fraction": float(env["TGI_WIGGLE_ROOM"]),
        "kv": CACHE[o.get("kv_cache_dtype", "auto")],
        "weight_dtype": o.get("quantize") or o.get("dtype"),
    }


def read_encoders(words, files):
    """One device a server; what its batches hold stands in the front's file."""
    batch = int(words[words.index("--max-batch") + 1])
    assert any(f"max_batch_size: {batch}\n" in text for text in files.values())
    return ONE


def read_llama(words):
    o = options(words)
    slots, context = int(o["parallel"]), int(o["ctx_size"])
    assert o["cache_type_k"] == o["cache_type_v"]
    assert context % slots == 0
    cache = {"context": context // slots, "kv": CACHE[o["cache_type_k"]], "slots": slots}
    stages = o.get("tensor_split", "1").count(",") + 1
    return ONE | {"pp": stages, "max_batched_tokens": int(o["batch_size"])} | cache


def read_dynamo(words):
    """The words of vLLM among those of its worker, without Dynamo's own."""
    own = engine("dynamo").options.by_spelling
    pairs = zip([None, *words], words, strict=False)
    kept = [word for before, word in pairs if word not in own and before not in own]
    return read_command("vllm", kept, {})


def server(name, process, files):
    """What one server is told; engines that are told in files, or in other terms, have readers."""
    words = list(process.argv)
    match name:
        case "vllm" | "sglang":
            return read_command(name, words[2:], {})
        case "tensorrt-llm":
            return read_command(name, words[words.index("trtllm-serve") + 1 :], files)
        case "dynamo":
            return read_dynamo(words[3:])
        case "triton":
            text = next(text for path, text in files.items() if path.endswith(".json"))
            values = json.loads(text)
            words = ["vllm", "serve", "m", *engine("vllm").argv(values)]
            return read_command("vllm", words[2:], {})
        case "triton-tensorrt-llm":
            return read_llmapi_file(yaml.safe_load(next(iter(files.values()))))
        case "tgi":
            return read_tgi(words, process.env)
        case "llama-cpp":
            return read_llama(words)
        case "tei":
            return named("tei", options(words), int)
        case "triton-onnxruntime" | "triton-openvino" | "triton-tensorrt":
            return read_encoders(words, files)
        case _:  # its table says what its options mean
            return read_by_meaning(engine(name), words)


def expected(deployment, pool):
    """What every server of a pool has to be told."""
    candidate, setting = deployment.candidate, deployment.setting
    wanted = {"tp": pool.tp, "pp": pool.pp, "ep": pool.ep, "context": deployment.max_context}
    wanted |= {name: getattr(candidate, name) for name in LIMITS}
    wanted["kv"] = candidate.kv_dtype
    wanted["draft"] = candidate.speculative and candidate.speculative.tokens
    if candidate.weight_dtype != setting.model.weight_dtype:
        wanted["weight_dtype"] = candidate.weight_dtype
    return wanted


TORCH = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def check_server(deployment, stated, wanted):
    for name, value in wanted.items():
        if name not in stated:
            continue
        if name == "kv":  # "auto": as the activations
            assert (stated["kv"] or deployment.activation_dtype) == value
        elif name == "weight_dtype":
            assert TORCH.get(stated[name], stated[name]) == value
        else:
            assert stated[name] == value, name


def check_places(deployment, started):
    """Every device is used once, within its node; ports of those that answer in a node differ."""
    cluster = deployment.setting.cluster
    places = Counter((p.node, device) for p in started.processes for device in p.devices)
    assert set(places.values()) == {1}
    assert len(places) == deployment.candidate.devices
    assert all(node < cluster.nodes and device < cluster.per_node for node, device in places)
    answering = [(p.node, p.port_offset) for p in started.processes if p.answers]
    assert len(answering) == len(set(answering))


def pools_of(candidate):
    """The split of every role that answers, and the ranks that the roles have."""
    splits = {"server": candidate.split, "decode": candidate.split, "prefill": candidate.prefill}
    roles = ("prefill", "decode") if candidate.prefill else ("server",)
    return splits, {role: splits[role].dp * splits[role].replicas for role in roles}


@pytest.mark.parametrize("name", engine_names())
def test_every_output_says_what_was_estimated(name):
    seen = Counter()
    for deployment in deployments(name, EACH, seed=3):
        try:
            started = launch_deployment(deployment)
        except NoAnswer:
            seen["not started"] += 1
            continue
        check_places(deployment, started)
        splits, wanted = pools_of(deployment.candidate)
        ranks = Counter()
        for process in started.processes:
            if process.role in splits:
                stated = server(name, process, started.files)
                check_server(deployment, stated, expected(deployment, splits[process.role]))
                ranks[process.role] += stated["dp"]
        assert ranks == wanted
        seen["pools"] += deployment.candidate.prefill is not None
        seen["several nodes"] += started.nodes > 1
    assert seen["not started"] < EACH / 2
    assert seen["several nodes"] or engine(name).split.over_nodes == "never"
    assert seen["pools"] or not engine(name).split.disaggregated


def engine_words(process):
    """The words of ``vllm serve``, also behind a Ray start; None for a node that only joins."""
    words = list(process.argv)
    return words[words.index("vllm") + 2 :] if "vllm" in words else None


@pytest.mark.parametrize("count", [120, pytest.param(400, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", ASKED)
def test_every_way_says_what_was_estimated(way, count):
    seen = Counter()
    for deployment, started in drawn(way, count):
        check_places(deployment, started)
        splits, wanted = pools_of(deployment.candidate)
        ranks, answered = Counter(), {p.group: p.role for p in started.processes if p.answers}
        for process in started.processes:
            words = engine_words(process)
            if process.role == "router" or words is None:
                continue
            stated, own = read_command("vllm", words, {}), options(words)
            role = answered[process.group]
            check_server(deployment, stated, expected(deployment, splits[role]))
            seen.update(name for name in (EXTERNAL, HYBRID, RAY) if name in own)
            if EXTERNAL in own or HYBRID in own:  # a part of the ranks that the words count
                ranks[role] += int(own.get("data_parallel_size_local", 1))
                assert (stated["dp"], "headless" in own) == (splits[role].dp, False)
            elif process.answers:
                ranks[role] += stated["dp"]
        assert ranks == wanted
        seen["several nodes"] += started.nodes > 1
    assert seen["several nodes"] > count / 40
    assert seen[next(iter(ASKED[way]))] > count / 80


def test_every_external_rank_is_told_its_number_and_where_the_first_one_is():
    checked = 0
    for _, started in drawn("external", 300):
        groups = {}
        for process in started.processes:
            own = options(engine_words(process) or process.argv)
            if EXTERNAL in own:
                where = own["data_parallel_address"], own["data_parallel_rpc_port"]
                groups.setdefault(where, []).append((int(own["data_parallel_rank"]), process, own))
        # engines that share a node meet at ports of their own
        assert len({port for _, port in groups}) == len(groups)
        for (address, _), ranks in groups.items():
            numbers, processes, owns = zip(*ranks, strict=True)
            assert sorted(numbers) == list(range(int(owns[0]["data_parallel_size"])))
            assert address == f"${{node{processes[numbers.index(0)].node}}}"
            assert all(process.answers for process in processes)
            checked += 1
    assert checked > 5


@over("engine, given, field, says", table("engines_meaning", "ranks_refused"))
def test_what_cannot_be_asked_is_refused_by_its_field(engine, given, field, says):
    alone = (d for d in deployments(engine, 100, seed=1) if d.candidate.prefill is None)
    deployment = next(d for d in alone if d.candidate.devices == 2)
    error = refusal(launch_deployment, replace(deployment, engine_options=given))
    assert (error.field, says in str(error)) == (f"options.engine_options.{field}", True)


@over("way", ["external", "hybrid"])
def test_a_rank_over_several_nodes_has_no_server_of_its_own(way):
    split = {"tp": 16, "pp": 1, "dp": 2, "ep": 32}
    given = {"candidate": split, "options": {"engine_options": ASKED[way]}}
    request = make_request("deepseek-ai/DeepSeek-V3", nodes=4, **given)
    error = refusal(make_recipe, request, kind=NoAnswer)
    assert "TP 16 × PP 1 = 16 devices spans nodes" in str(error)


# The program that makes a node part of a Ray cluster, with stand-ins for Ray

RAY_PROGRAM = """#!{python}
import json, signal, socket, sys
words = sys.argv[1:]
open({log!r}, "a").write(json.dumps(words) + "\\n")
if "--head" in words:
    port = next(int(w.split("=")[1]) for w in words if w.startswith("--port="))
    server = socket.create_server(("127.0.0.1", port))
signal.pause()
"""
RAY_MODULE = """
asked = []
def init(address, log_to_driver): open({log!r}, "a").write('["init", "%s"]\\n' % address)
def nodes():
    asked.append(None)
    return [{{"Alive": True}}] * min(len(asked), 2) + [{{"Alive": False}}]
def shutdown(): pass
"""


@pytest.fixture
def cluster(tmp_path):
    """Folders with a ``ray`` that notes its words, and a free port."""
    log = str(tmp_path / "log")
    program = tmp_path / "ray"
    program.write_text(RAY_PROGRAM.format(python=sys.executable, log=log))
    program.chmod(0o755)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "ray.py").write_text(RAY_MODULE.format(log=log))
    port = str(free_port())
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(tmp_path / "modules")}

    def said():
        lines = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
        return [json.loads(line) for line in lines]

    return port, env, said


def head_words(port, engine):
    command = [sys.executable, str(NODE), "head", "2", "127.0.0.1", port, "8", "--"]
    return [*command, sys.executable, "-c", engine]


def test_the_head_starts_ray_waits_for_the_others_and_ends_with_the_engine(cluster):
    port, env, said = cluster
    engine = "import os; print(os.environ['RAY_ADDRESS']); raise SystemExit(7)"
    words = head_words(port, engine)
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout.strip()) == (7, f"127.0.0.1:{port}"), done.stderr
    started = ["start", "--head", "--node-ip-address=127.0.0.1", f"--port={port}"]
    started += ["--num-gpus=8", "--disable-usage-stats", "--block"]
    assert said() == [started, ["init", f"127.0.0.1:{port}"]]


def test_the_head_takes_ray_and_the_engine_with_it(cluster):
    port, env, _ = cluster
    engine = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    words, pipe = head_words(port, engine), subprocess.PIPE
    with subprocess.Popen(words, env=env, stdout=pipe, text=True) as head:
        child = int(head.stdout.readline())
        head.terminate()
        assert head.wait(PATIENCE) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_node_joins_as_soon_as_there_is_a_head(cluster):
    port, env, said = cluster
    words = [sys.executable, str(NODE), "join", "127.0.0.1", port, "10.0.0.2", "4"]
    with subprocess.Popen(words, env=env) as joined, socket.create_server(("127.0.0.1", int(port))):
        assert comes(lambda: bool(said()))
        joined.kill()
    joining = ["start", f"--address=127.0.0.1:{port}", "--node-ip-address=10.0.0.2"]
    assert said() == [[*joining, "--num-gpus=4", "--disable-usage-stats", "--block"]]
