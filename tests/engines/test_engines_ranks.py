"""vLLM's ranks by user options (external or hybrid balancer, Ray) start what was estimated."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.launch.serving.start import launch
from recipe_core.launch.serving.vllm_ranks import NODE
from recipe_core.recipe import make_recipe, relaunch
from tests.conftest import make_request
from tests.engines.test_engines_meaning import (
    check_places,
    check_server,
    expected,
    options,
    read_command,
)
from tests.fixtures.deployments import deployments

EXTERNAL, HYBRID, RAY = (
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "distributed_executor_backend",
)
ASKED = {"external": {EXTERNAL: True}, "hybrid": {HYBRID: True}, "ray": {RAY: "ray"}}


def engine_words(process):
    """The words of ``vllm serve``, also behind a Ray start; None for a node that only joins."""
    words = list(process.argv)
    if "vllm" not in words:
        return None
    return words[words.index("vllm") + 2 :]


def drawn(way, count, seed=5):
    """Launches of random deployments that are asked for in a way, of those that can be started."""
    for deployment in deployments("vllm", count, seed):
        asked = replace(deployment, engine_options=ASKED[way])
        try:
            yield asked, launch(asked)
        except NoAnswer:
            continue


@pytest.mark.parametrize("way", ASKED)
def test_every_way_says_what_was_estimated(way):
    seen = Counter()
    for deployment, started in drawn(way, 400):
        candidate = deployment.candidate
        check_places(deployment, started)
        pools = {"server": candidate.split, "decode": candidate.split, "prefill": candidate.prefill}
        ranks, answered = Counter(), {p.group: p.role for p in started.processes if p.answers}
        for process in started.processes:
            words = engine_words(process)
            if process.role == "router" or words is None:
                continue
            told, own, pool = (
                read_command("vllm", words, {}),
                options(words),
                pools[answered[process.group]],
            )
            check_server(deployment, told, expected(deployment, pool))
            seen.update(name for name in (EXTERNAL, HYBRID, RAY) if name in own)
            if EXTERNAL in own or HYBRID in own:  # a part of the ranks that the words count
                ranks[answered[process.group]] += int(own.get("data_parallel_size_local", 1))
                assert told["dp"] == pool.dp
                assert "headless" not in own
            elif process.answers:
                ranks[answered[process.group]] += told["dp"]
        roles = ("prefill", "decode") if candidate.prefill else ("server",)
        assert ranks == {role: pools[role].dp * pools[role].replicas for role in roles}
        seen["several nodes"] += started.nodes > 1
    assert seen["several nodes"] > 10
    assert seen[{"external": EXTERNAL, "hybrid": HYBRID, "ray": RAY}[way]] > 5


def test_every_external_rank_is_told_its_number_and_where_the_first_one_is():
    checked = 0
    for _, started in drawn("external", 300):
        groups = {}
        for process in started.processes:
            own = options(engine_words(process) or process.argv)
            if EXTERNAL in own:
                where = own["data_parallel_address"], own["data_parallel_rpc_port"]
                groups.setdefault(where, []).append((int(own["data_parallel_rank"]), process, own))
        assert len({port for _, port in groups}) == len(
            groups
        )  # engines that share a node meet at ports of their own
        for (address, _), ranks in groups.items():
            numbers, processes, owns = zip(*ranks, strict=True)
            assert sorted(numbers) == list(range(int(owns[0]["data_parallel_size"])))
            first = processes[numbers.index(0)]
            assert address == f"${{node{first.node}}}"
            assert all(process.answers for process in processes)
            checked += 1
    assert checked > 5


def test_replicas_of_a_dense_model_need_no_rank_to_be_balanced_outside():
    candidate = {"tp": 2, "pp": 1, "dp": 4}
    request = make_request(
        "Qwen/Qwen3-32B",
        "h100-sxm",
        8,
        candidate=candidate,
        options={"engine_options": {EXTERNAL: True}},
    )
    recipe = make_recipe(request)
    started = relaunch(recipe)
    assert [process.devices for process in started.processes] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert all("--data-parallel-rank" not in process.argv for process in started.processes)
    assert recipe.engine.options[EXTERNAL] is True
    assert recipe.provenance[f"options.{EXTERNAL}"] == "user"


def two_nodes(**asked):
    """Shared experts over two nodes."""
    candidate = {"tp": 1, "pp": 1, "dp": 16, "ep": 16}
    return make_request(
        "Qwen/Qwen3-30B-A3B",
        "h100-sxm",
        8,
        2,
        candidate=candidate,
        options={"engine_options": asked},
    )


def test_a_hybrid_balancer_has_a_server_on_every_node():
    started = relaunch(make_recipe(two_nodes(**{HYBRID: True})))
    assert [(p.node, p.role, p.port_offset) for p in started.processes] == [
        (0, "server", 0),
        (1, "server", 0),
    ]
    told = [options(engine_words(process)) for process in started.processes]
    assert [
        (o["node_rank"], o["data_parallel_size"], o["data_parallel_size_local"]) for o in told
    ] == [("0", "16", "8"), ("1", "16", "8")]


def test_ray_has_one_engine_and_the_other_nodes_join():
    request = make_request(
        "meta-llama/Llama-3.1-70B-Instruct", "h100-sxm", 8, 2, candidate={"tp": 8, "pp": 2, "dp": 1}
    )
    request = request.model_copy(
        update={"options": request.options.model_copy(update={"engine_options": {RAY: "ray"}})}
    )
    started = relaunch(make_recipe(request))
    head, other = started.processes
    assert head.argv[:8] == (
        "python3",
        "${root}/engine/ray_node.py",
        "head",
        "2",
        "${node0}",
        "6379",
        "8",
        "--",
    )
    assert other.argv == (
        "python3",
        "${root}/engine/ray_node.py",
        "join",
        "${head}",
        "6379",
        "${node1}",
        "8",
    )
    assert {"--nnodes", "--node-rank", "--master-addr", "--headless"}.isdisjoint(head.argv)
    assert other.env["VLLM_HOST_IP"] == "${node1}"
    assert "ray" in started.requires
    assert set(started.files) == {"engine/ray_node.py"}


def test_ray_places_replicas_too():
    head, _ = relaunch(make_recipe(two_nodes(**{RAY: "ray"}))).processes
    own = options(engine_words(head))
    assert (
        own["data_parallel_backend"],
        own["data_parallel_size_local"],
        own["data_parallel_size"],
    ) == ("ray", "8", "16")


@pytest.mark.parametrize(
    ("engine", "asked", "field", "says"),
    [
        ("vllm", {EXTERNAL: True, HYBRID: True}, EXTERNAL, "excludes"),
        ("vllm", {RAY: "ray", HYBRID: True}, RAY, "does not go with a balancer"),
        ("vllm", {RAY: "uni"}, RAY, "not supported"),
        ("vllm", {"data_parallel_rank": 1}, "data_parallel_rank", "by its place"),
        ("vllm", {"master_addr": "x"}, "master_addr", "by its place"),
        ("sglang", {"node_rank": 1}, "node_rank", "by its place"),
        ("dynamo", {HYBRID: True}, HYBRID, "is left to NVIDIA Dynamo"),
        ("triton", {RAY: "ray"}, RAY, "is left to Triton"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_field(engine, asked, field, says):
    deployment = next(
        d
        for d in deployments(engine, 100, seed=1)
        if d.candidate.devices == 2 and d.candidate.prefill is None
    )
    with pytest.raises(InputError, match=says) as caught:
        launch(replace(deployment, engine_options=asked))
    assert caught.value.field == f"options.engine_options.{field}"


@pytest.mark.parametrize("way", ["external", "hybrid"])
def test_a_rank_over_several_nodes_has_no_server_of_its_own(way):
    candidate = {"tp": 16, "pp": 1, "dp": 2, "ep": 32}
    request = make_request(
        "deepseek-ai/DeepSeek-V3",
        "h100-sxm",
        8,
        4,
        candidate=candidate,
        options={"engine_options": ASKED[way]},
    )
    with pytest.raises(NoAnswer, match="tp 16 × pp 1 = 16 devices spans nodes"):
        make_recipe(request)


# The program that makes a node part of a Ray cluster, with stand-ins for Ray

RAY_PROGRAM = """#!{python}
import json, socket, sys, time
words = sys.argv[1:]
open({log!r}, "a").write(json.dumps(words) + "\\n")
if "--head" in words:
    port = next(int(w.split("=")[1]) for w in words if w.startswith("--port="))
    server = socket.create_server(("127.0.0.1", port))
time.sleep(60)
"""
RAY_MODULE = """
import time
_began = time.monotonic()
def init(address, log_to_driver): open({log!r}, "a").write('["init", "%s"]\\n' % address)
def nodes():
    alive = 1 if time.monotonic() - _began < 0.5 else 2
    return [{{"Alive": True}}] * alive + [{{"Alive": False}}]
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path / "modules"),
    }
    return (
        port,
        env,
        lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()],
    )


def test_the_head_starts_ray_waits_for_the_others_and_ends_with_the_engine(cluster):
    port, env, said = cluster
    engine = [
        sys.executable,
        "-c",
        "import os; print(os.environ['RAY_ADDRESS']); raise SystemExit(7)",
    ]
    words = [sys.executable, str(NODE), "head", "2", "127.0.0.1", port, "8", "--", *engine]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (7, f"127.0.0.1:{port}"), done.stderr
    started = [
        "start",
        "--head",
        "--node-ip-address=127.0.0.1",
        f"--port={port}",
        "--num-gpus=8",
        "--disable-usage-stats",
        "--block",
    ]
    assert said() == [started, ["init", f"127.0.0.1:{port}"]]


def test_the_head_takes_ray_and_the_engine_with_it(cluster):
    port, env, _ = cluster
    engine = [
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(60)",
    ]
    words = [sys.executable, str(NODE), "head", "2", "127.0.0.1", port, "8", "--", *engine]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as head:
        child = int(head.stdout.readline())
        head.terminate()
        assert head.wait(20) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_node_joins_as_soon_as_there_is_a_head(cluster):
    port, env, said = cluster
    words = [sys.executable, str(NODE), "join", "127.0.0.1", port, "10.0.0.2", "4"]
    with subprocess.Popen(words, env=env) as joined, socket.create_server(("127.0.0.1", int(port))):
        until = time.monotonic() + 20
        while time.monotonic() < until and not (log := said_or_none(said)):
            time.sleep(0.1)
        joined.kill()
    assert log == [
        [
            "start",
            f"--address=127.0.0.1:{port}",
            "--node-ip-address=10.0.0.2",
            "--num-gpus=4",
            "--disable-usage-stats",
            "--block",
        ]
    ]


def said_or_none(said):
    try:
        return said()
    except FileNotFoundError:
        return None
