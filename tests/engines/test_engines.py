import random
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.commands.verdict import judge_request
from recipe_core.engines.release import ContainerImage
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.estimates.rules import placement
from recipe_core.estimates.rules.rules import place_rules, serving_refusals
from recipe_core.launch.serving.groups import _pack_groups
from recipe_core.launch.start import launch_deployment
from recipe_core.payload.launcher.plan import Filler, Parameters
from recipe_core.plans.plans import estimate_batch, plan_candidate, plan_cases, plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.serving_candidates import stated_serving_case
from recipe_core.plans.splits import row_reasons
from recipe_core.recipe import make_recipe, row_deployment
from recipe_core.request.candidate import CandidateRequest
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.deployments import ALONE, DEVICES, EMBEDDING
from tests.fixtures.launch_words import options as flags
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import holds, over, table

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def planned(*args, options=None, workload=None, **candidate):
    parts = {"options": options or {}, "workload": workload or {}}
    split = {"pp": 1, "dp": 1} | candidate
    return plan_candidate(make_request(*args, candidate=split, **parts))


def launched(*args, **parts):
    table, row = planned(*args, **parts)
    assert row_reasons(table, row) == []
    return launch_deployment(row_deployment(table, row))


@over("name", engine_names())
def test_engines_containers_and_metrics_are_pinned_and_sourced(name):
    spec = engine(name)
    assert re.fullmatch(r"\d+\.\d+\.\d+|b\d+", spec.version)  # llama.cpp numbers its builds
    assert "latest" not in spec.install
    for image in (image for images in spec.images.values() for image in images):
        assert spec.version.lstrip("b") in image.reference or "tritonserver" in image.reference
        assert image.source in spec.sources
    assert set(spec.images) <= set(spec.runtimes)
    assert spec.metrics is None or spec.metrics.source in spec.sources


def test_containers_differ_by_architecture_and_have_no_tag_that_moves():
    names = ("gfx942", "gfx950", "gfx1100")
    older, newer, missing = (engine("sglang").image("rocm", name) for name in names)
    assert older.reference != newer.reference
    assert missing is None
    with pytest.raises(ValidationError, match="latest moves"):
        ContainerImage(reference="vllm/vllm-openai:latest", source="x")
    # each runtime has one engine
    usual = [(runtime, name) for name in engine_names() for runtime in engine(name).default_on]
    assert sorted(usual) == sorted((runtime, default_engine(runtime).name) for runtime, _ in usual)
    assert {("cuda", "vllm"), ("rocm", "vllm"), ("cpu", "transformers")} <= set(usual)
    # a wrapper has the figures of what it wraps
    vllm, dynamo = engine("vllm"), engine("dynamo")
    assert (dynamo.wraps, dynamo.wrapped_version) == ("vllm", "0.31.0")
    assert (dynamo.memory, dynamo.overheads) == (vllm.memory, vllm.overheads)
    assert dynamo.metrics != vllm.metrics


@over("stated", table("engines", "launches"))
def test_launches_are_as_stated(stated):
    """More of what they are told, test_engines_meaning reads back."""
    started = launched(*stated["place"], **stated["asked"])
    for process, wanted in zip(started.processes, stated["processes"], strict=True):
        begins, ends = tuple(wanted.pop("begins", ())), tuple(wanted.pop("ends", ()))
        argv, own = process.argv, {"flags": flags(process.argv), "env": process.env}
        for name in own.keys() & wanted.keys():
            expected = wanted.pop(name)
            assert {key: own[name].get(key) for key in expected} == expected
        found = {name: getattr(process, name) for name in wanted}
        assert {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()} == wanted
        assert (argv[: len(begins)], argv[len(argv) - len(ends) :]) == (begins, ends)
        assert all(" " not in word and word for word in argv)  # each is one argument
    assert list(started.requires) == stated.get("requires", [])
    for path, places in stated.get("documents", {}).items():
        assert places == {} or holds(yaml.safe_load(started.files[path]), places)
        assert path in started.files


def test_options_are_typed_and_known():
    argv = engine("vllm").argv
    for values, says in (
        ({"tensor_paralel_size": 2}, "tensor_parallel_size"),
        ({"max_num_seqs": "8"}, "takes int"),
        ({"dtype": "fp9"}, "bfloat16"),
        ({"kv_transfer_config": {"kv_conector": "NixlConnector"}}, "kv_conector"),
    ):
        assert says in str(refusal(argv, values))
    draft = {"speculative": {"tokens": 2, "acceptance": 0.7, "method": "eagle"}}
    error = refusal(launched, LLAMA_70B, "h200-sxm", tp=8, workload=draft)
    assert "checkpoint of its own" in str(error)


@over("name, program", [("vllm", "vllm-router"), ("sglang", "sglang_router.launch_router")])
def test_pools_stand_behind_a_router(name, program):
    pools = {"tp": 4, "replicas": 2, "prefill": {"tp": 2, "replicas": 3}}
    started = launched(LLAMA_70B, "h100-sxm", 8, 2, engine=name, **pools)
    router, *servers = started.processes
    assert program in router.argv
    assert router.devices == ()
    assert [p.role for p in servers] == ["prefill"] * 3 + ["decode"] * 2
    for p in servers:
        assert f"http://${{node{p.node}}}:${{port{p.port_offset}}}" in router.argv
    assert len({p.port_offset for p in started.processes}) == 6


@over("place, asked, reason", table("engines", "cannot_start"))
def test_what_cannot_start_is_refused(place, asked, reason):
    found, row = planned(*place, **asked)
    assert reason in " ".join(row_reasons(found, row))
    if reason == "do not fit into 2 nodes":
        assert reason in str(refusal(launch_deployment, row_deployment(found, row), kind=NoAnswer))


@over("options, says", table("engines", "options_that_contradict_or_leak_are"))
def test_options_that_contradict_or_leak_are_refused(options, says):
    request = ("Qwen/Qwen3-32B", "h100-sxm")
    assert says in str(refusal(launched, *request, tp=4, options=options))


def test_the_file_of_pools_is_filled_when_they_start(tmp_path):
    """By the program in the bundle, with the launcher's values: addresses and ports of servers."""
    split = {"tp": 2, "replicas": 2, "prefill": {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "replicas": 3}}
    found = launched(LLAMA_8B, "h100-sxm", 4, 2, engine="tensorrt-llm", **split)
    for name, text in found.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    fill = Filler(Parameters("m", "0.0.0.0", 8000, "10.0.0.1,10.0.0.2"), tmp_path)
    words = [fill.text(word) for word in found.processes[0].argv]
    end = words.index("--")
    command = [sys.executable, *words[1:end], "--", sys.executable, "-c", "print('started')"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "started\n", done.stderr
    content = yaml.safe_load((tmp_path / "run/pools.yaml").read_text())
    assert (content["hostname"], content["port"]) == ("0.0.0.0", 8000)
    for role, name, count in (("prefill", "context", 3), ("decode", "generation", 2)):
        pool = [p for p in found.processes if p.role == role]
        urls = [f"10.0.0.{1 + p.node}:{8000 + p.port_offset}" for p in pool]
        assert content[f"{name}_servers"] == {"num_instances": count, "urls": urls}
    assert {p.node for p in found.processes} == {0, 1}


MODELS = (
    *("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-30B-A3B"),
    *("deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"),
)
SIZES = ((1, 1), (6, 1), (8, 1), (5, 2), (3, 3), (4, 2), (8, 2), (8, 3), (7, 3))
TOP = 20


def asked(draw):
    """A random request of one engine."""
    name = draw.choice(engine_names())
    device = draw.choice([d for runtime in engine(name).runtimes for d in DEVICES[runtime]])
    per_node, nodes = (1, 1) if device in ALONE else draw.choice(SIZES)
    per_node = 4 if device == "gb200" else per_node
    can_split = per_node * nodes <= 9 and engine(name).split.disaggregated
    options = {
        "engines": [name],
        "weight_dtypes": draw.choice((["auto"], ["auto", "fp8"], ["fp16"])),
        "kv_dtypes": draw.choice((["auto"], ["auto", "fp8"], ["bf16", "fp16"])),
        "disaggregated": can_split and draw.random() < 0.3,
    }
    model = draw.choice(MODELS if "generate" in engine(name).tasks else EMBEDDING)
    workload = {"concurrency": draw.choice((4, 64, 400))}
    return make_request(model, device, per_node, nodes, options=options, workload=workload)


@over("seed", range(12), share=12)
def test_every_feasible_split_at_the_top_of_a_plan_starts(seed):
    draw, started = random.Random(seed), Counter()
    for _ in range(26):
        request = asked(draw)
        table = plan_splits(request)
        for row in map(int, table.order[:TOP]):
            other = table.setting(row).needs_other_checkpoint
            assert any("Needs a checkpoint" in note for note in table.estimate(row).notes) == other
            if other:
                continue
            processes = launch_deployment(row_deployment(table, row)).processes
            placed = [(p.node, d) for p in processes for d in p.devices]
            assert len(placed) == len(set(placed)) == table.columns["gpus"][row]
            started[table.setting(row).engine.name] += 1
    assert sum(started.values()) > 20


@over("seed, count", [(0, 200), (0, 600), (1, 600), (2, 600)], share=4)
def test_a_stated_split_is_refused_with_the_words_of_its_launch(seed, count):
    """What an estimate says of a split's place is what its launch says, and an estimate without it
    is one that starts.
    """
    draw, seen = random.Random(seed), Counter()
    for _ in range(count):
        engine = draw.choice(("vllm", "vllm", "sglang", "tensorrt-llm"))
        degrees = draw.choice((1, 2, 4)), draw.randint(1, 7), draw.randint(1, 6)
        split = dict(zip(("tp", "pp", "dp"), degrees, strict=True))
        model, place = draw.choice(MODELS), draw.choice(((6, 2), (5, 3), (3, 3), (7, 2)))
        found = resolve_problem(make_request(model, "b200-sxm", *place))
        chosen, cases = stated_serving_case(found, CandidateRequest(engine=engine, **split))
        broken = any(rule.broken[0] for rule in serving_refusals(chosen, cases))
        if broken or chosen.needs_other_checkpoint or not chosen.cache_can_be_had:
            continue
        table = plan_cases(found, chosen, cases)
        placed = [rule.say(0) for rule in place_rules(chosen, cases) if rule.broken[0]]
        assert set(placed) <= set(row_reasons(table, 0))
        if not placed:
            assert launch_deployment(row_deployment(table, 0)).processes
            seen["starts"] += 1
            continue
        error = refusal(launch_deployment, row_deployment(table, 0), kind=NoAnswer)
        said, _, fix = placed[0].partition("; ")
        assert (error.message, error.hint) == (f"{said}.", f"{fix.capitalize()}.")
        seen["refused"] += 1
    assert min(seen["starts"], seen["refused"]) > count / 120


def test_an_estimate_a_check_and_a_recipe_say_that_a_split_finds_no_room():
    split = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 3}
    fits, request = (
        make_request("openai/gpt-oss-120b", "h100-sxm", per_node, 2, candidate=split)
        for per_node in (8, 6)
    )
    assert estimate_batch([fits.to_json()])[0]["feasible"]
    answer, verdict = estimate_batch([request.to_json()])[0], judge_request(request)
    (said,) = answer["reasons"]
    assert said.startswith("3 servers of 4 devices do not fit into 2 nodes of 6; use fewer")
    assert (answer["feasible"], "serving" in answer) == (False, False)
    assert (verdict["ok"], said in verdict["reasons"]) == (False, True)
    error = refusal(make_recipe, request, kind=NoAnswer)
    assert "do not fit into 2 nodes of 6" in str(error)


@over("seed", range(4))
def test_what_packs_by_count_packs_one_by_one(seed):
    """The rule of the search against placing every server, for one and two kinds of servers."""
    draw, seen = random.Random(seed), Counter()
    for _ in range(1000):
        per_node, nodes, kinds = draw.randint(1, 9), draw.randint(1, 4), []
        for _ in range(draw.choice((1, 2))):
            over = draw.choice((1, 1, 2))
            kinds.append((draw.randint(1, 6), over * draw.randint(1, per_node), over))
        servers = [placement.Servers(*map(np.asarray, kind)) for kind in kinds]
        place = np.asarray(per_node), np.asarray(nodes)
        fits = bool(placement.fits_in_nodes(servers, *place))
        sizes = [(devices, over) for count, devices, over in kinds for _ in range(count)]
        try:
            _pack_groups(sizes, per_node, nodes)
            assert fits, (kinds, per_node, nodes)
        except NoAnswer:
            assert not fits, (kinds, per_node, nodes)
        seen[fits] += 1
    assert min(seen[True], seen[False]) > 100


@over(
    "hardware, engine, degrees, kv, says",
    [
        (("h100-sxm", 4, 2), "vllm", (1, 5, 1), "auto", "= 5 devices cannot be spread evenly"),
        (("h100-sxm", 6, 2), "tensorrt-llm", (4, 1, 3), "auto", "do not fit into 2 nodes of 6"),
        (("h100-sxm", 2, 1), "tgi", (2, 1, 1), "fp16", "not support fp16 KV caches with bf16"),
    ],
)
def test_a_search_refuses_what_cannot_be_started(hardware, engine, degrees, kv, says):
    request = make_request("meta-llama/Llama-3.1-8B-Instruct", *hardware)
    changed = {"engines": (engine,), "kv_dtypes": (kv,)}
    options = request.options.model_copy(update=changed)
    table = plan_splits(request.model_copy(update={"options": options}))
    split = dict(zip(("tp", "pp", "dp"), degrees, strict=True))
    rows = [n for n in range(len(table)) if split.items() <= table.candidate(n).items()]
    assert rows
    assert all(any(says in reason for reason in row_reasons(table, n)) for n in rows)
    refusal(launch_deployment, row_deployment(table, rows[0]), kind=RecipeError)
