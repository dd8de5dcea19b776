"""What is launched is what was estimated: degrees, formats, lengths, limits and places are read
back out of every output.
"""

import json
from collections import Counter

import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.commands.arguments import read_arguments
from recipe_core.commands.meaning import meaning_of
from recipe_core.engines.spec import engine, engine_names
from recipe_core.launch.serving.start import launch
from tests.fixtures.deployments import deployments
from tests.fixtures.launch_words import CACHE, options, read_by_meaning
from tests.fixtures.rows import table
from tests.fixtures.sizes import examples

EACH = examples(300, least=60)
LIMITS = ("max_num_seqs", "max_batched_tokens", "memory_fraction")


ONE = dict.fromkeys(("tp", "pp", "dp", "ep"), 1)


def read_command(name, words, files):
    """The commands of vLLM, SGLang and TensorRT-LLM, read by the project's own reader."""
    meant = meaning_of(read_arguments(name, words))
    path = options(words).get("config", "").removeprefix("${root}/")
    config = yaml.safe_load(files[path]) if path else {}
    if config.get("enable_attention_dp"):
        meant.candidate |= {"tp": 1, "dp": meant.candidate["tp"]}
    stated = config.get("kv_cache_config", {}).get("dtype")
    cache = "fp8" if stated == "fp8" else meant.candidate.get("kv_dtype")
    draft = meant.draft or _draft_of(config.get("speculative_config"))
    told = {"kv": None if cache == "auto" else cache, "draft": draft and draft["tokens"]}
    return meant.candidate | {"context": meant.max_context} | told


def _draft_of(config):
    names = ("num_nextn_predict_layers", "max_draft_len")
    return config and {"tokens": config.get(names[0]) or config.get(names[1])}


def named(engine, values, number=lambda value: value):
    names = table("engines_meaning", engine).items()
    return ONE | {field: number(values[name]) for field, name in names}


def read_vllm_file(values):
    draft = values.get("speculative_config")
    told = named("vllm_file", values) | {
        "dp": values.get("data_parallel_size", 1),
        "kv": CACHE[values["kv_cache_dtype"]],
        "weight_dtype": values.get("quantization") or values["dtype"],
        "draft": draft and draft["num_speculative_tokens"],
    }
    return told | {"ep": told["tp"] if values.get("enable_expert_parallel") else 1}


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
            return read_vllm_file(json.loads(text))
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


def check_server(deployment, told, wanted):
    for name, value in wanted.items():
        if name not in told:
            continue
        if name == "kv":  # "auto": as the activations
            assert (told["kv"] or deployment.activation_dtype) == value
        elif name == "weight_dtype":
            assert TORCH.get(told[name], told[name]) == value
        else:
            assert told[name] == value, name


def check_places(deployment, started):
    """Every device is used once, within its node; ports of those that answer in a node differ."""
    cluster = deployment.setting.cluster
    places = Counter((p.node, device) for p in started.processes for device in p.devices)
    assert set(places.values()) == {1}
    assert len(places) == deployment.candidate.devices
    assert all(node < cluster.nodes and device < cluster.per_node for node, device in places)
    answering = [(p.node, p.port_offset) for p in started.processes if p.answers]
    assert len(answering) == len(set(answering))


@pytest.mark.parametrize("name", engine_names())
def test_every_output_says_what_was_estimated(name):
    seen = Counter()
    for deployment in deployments(name, EACH, seed=3):
        try:
            started = launch(deployment)
        except NoAnswer:
            seen["not started"] += 1
            continue
        candidate = deployment.candidate
        check_places(deployment, started)
        pools = {"server": candidate.split, "decode": candidate.split, "prefill": candidate.prefill}
        ranks = Counter()
        for process in started.processes:
            if process.role in ("worker", "router"):
                continue
            told = server(name, process, started.files)
            check_server(deployment, told, expected(deployment, pools[process.role]))
            ranks[process.role] += told["dp"]
        roles = ("prefill", "decode") if candidate.prefill else ("server",)
        assert ranks == {role: pools[role].dp * pools[role].replicas for role in roles}
        seen["pools"] += candidate.prefill is not None
        seen["several nodes"] += started.nodes > 1
    assert seen["not started"] < EACH / 2
    assert seen["several nodes"] or engine(name).split.over_nodes == "never"
    assert seen["pools"] or not engine(name).split.disaggregated
