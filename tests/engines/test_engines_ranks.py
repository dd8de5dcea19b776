"""vLLM's ranks by user options (external or hybrid balancer, Ray) start what was estimated."""

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from recipe_core.base.errors import NoAnswer
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
from tests.fixtures.patience import PATIENCE, comes
from tests.fixtures.ports import free_port
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

EXTERNAL, HYBRID = "data_parallel_external_lb", "data_parallel_hybrid_lb"
RAY = "distributed_executor_backend"
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


@pytest.mark.parametrize("count", [120, pytest.param(400, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", ASKED)
def test_every_way_says_what_was_estimated(way, count):
    seen = Counter()
    for deployment, started in drawn(way, count):
        candidate = deployment.candidate
        check_places(deployment, started)
        pools = {"server": candidate.split, "decode": candidate.split, "prefill": candidate.prefill}
        ranks, answered = Counter(), {p.group: p.role for p in started.processes if p.answers}
        for process in started.processes:
            words = engine_words(process)
            if process.role == "router" or words is None:
                continue
            told, own = read_command("vllm", words, {}), options(words)
            pool = pools[answered[process.group]]
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
            first = processes[numbers.index(0)]
            assert address == f"${{node{first.node}}}"
            assert all(process.answers for process in processes)
            checked += 1
    assert checked > 5


def asked(model, split, nodes=1, device="h100-sxm", **engine_options):
    options = {"engine_options": engine_options}
    return make_request(model, device, 8, nodes, candidate=split, options=options)


def test_replicas_of_a_dense_model_need_no_rank_to_be_balanced_outside():
    split = {"tp": 2, "pp": 1, "dp": 4}
    recipe = make_recipe(asked("Qwen/Qwen3-32B", split, **{EXTERNAL: True}))
    started = relaunch(recipe)
    assert [process.devices for process in started.processes] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert all("--data-parallel-rank" not in process.argv for process in started.processes)
    assert recipe.engine.options[EXTERNAL] is True
    assert recipe.provenance[f"options.{EXTERNAL}"] == "user"


def two_nodes(**engine_options):
    """Shared experts over two nodes."""
    split = {"tp": 1, "pp": 1, "dp": 16, "ep": 16}
    return relaunch(make_recipe(asked("Qwen/Qwen3-30B-A3B", split, 2, **engine_options)))


def test_a_hybrid_balancer_has_a_server_on_every_node():
    started = two_nodes(**{HYBRID: True})
    places = [(p.node, p.role, p.port_offset) for p in started.processes]
    assert places == [(0, "server", 0), (1, "server", 0)]
    told = [options(engine_words(process)) for process in started.processes]
    names = ("node_rank", "data_parallel_size", "data_parallel_size_local")
    found = [[own[name] for name in names] for own in told]
    assert found == [["0", "16", "8"], ["1", "16", "8"]]


def test_ray_has_one_engine_and_the_other_nodes_join():
    split = {"tp": 8, "pp": 2, "dp": 1}
    request = asked("meta-llama/Llama-3.1-70B-Instruct", split, 2, **{RAY: "ray"})
    started = relaunch(make_recipe(request))
    head, other = started.processes
    program = ("python3", "${root}/engine/ray_node.py")
    assert head.argv[:8] == (*program, "head", "2", "${node0}", "6379", "8", "--")
    assert other.argv == (*program, "join", "${head}", "6379", "${node1}", "8")
    assert {"--nnodes", "--node-rank", "--master-addr", "--headless"}.isdisjoint(head.argv)
    assert other.env["VLLM_HOST_IP"] == "${node1}"
    assert "ray" in started.requires
    assert set(started.files) == {"engine/ray_node.py"}
    # it places replicas too
    head, _ = two_nodes(**{RAY: "ray"}).processes
    own = options(engine_words(head))
    names = ("backend", "size_local", "size")
    assert [own[f"data_parallel_{name}"] for name in names] == ["ray", "8", "16"]


@over("engine, given, field, says", table("engines_ranks", "refused"))
def test_what_cannot_be_asked_is_refused_by_its_field(engine, given, field, says):
    alone = (d for d in deployments(engine, 100, seed=1) if d.candidate.prefill is None)
    deployment = next(d for d in alone if d.candidate.devices == 2)
    error = refusal(launch, replace(deployment, engine_options=given))
    assert (error.field, says in str(error)) == (f"options.engine_options.{field}", True)


@over("way", ["external", "hybrid"])
def test_a_rank_over_several_nodes_has_no_server_of_its_own(way):
    split = {"tp": 16, "pp": 1, "dp": 2, "ep": 32}
    request = asked("deepseek-ai/DeepSeek-V3", split, 4, **ASKED[way])
    error = refusal(make_recipe, request, kind=NoAnswer)
    assert "tp 16 × pp 1 = 16 devices spans nodes" in str(error)


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
