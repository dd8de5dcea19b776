"""Real processes, once for each fact that only an operating system shows."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from recipe_core.payload.launcher import events, procs
from tests.fixtures.bundles import training_bundle, usual_signals, with_variable
from tests.fixtures.patience import PATIENCE, until
from tests.fixtures.ports import free_port
from tests.fixtures.serve import Server


def kept(bundle, **limits):
    """The bundle with quick limits; ``limits`` differ."""
    quick = {"window_s": 600, "stable_s": 600, "hang_s": 4, "slow_s": 1.5, "drain_s": 60}
    quick |= {"crash_budget": 3, "backoff_s": 0.05, "backoff_most_s": 0.2, "poll_s": 0.1}
    bundle.edit(lambda data: data.update(supervision=quick | limits))
    return bundle


def happened(bundle, kind):
    return [event for event in events.read_events(bundle.root / "run") if event["event"] == kind]


def kinds(bundle):
    return [event["event"] for event in events.read_events(bundle.root / "run")]


def servers(bundle):
    return {server["name"]: server["pid"] for server in bundle.state()["servers"]}


def keeper(bundle):
    return bundle.state()["keeper"]["pid"]


def runs(pid):
    stat = procs.read_stat(pid)
    return stat is not None and stat.state not in "ZX"


def worker_of(leader):
    """The other living process of its group."""
    (worker,) = {stat.pid for stat in procs.HERE.running() if stat.group == leader} - {leader}
    return worker


def serves(bundle, restarts):
    """Whether all is ready, after at least so many restarts."""
    return bundle.up and bundle.state()["ready"] and bundle.state()["restarts"] >= restarts


def page(bundle, path):
    port = bundle.state()["keeper"]["metrics_port"]
    try:
        status, body, _ = Server(port, process=None, log=None).ask("GET", path)
    except OSError:  # not yet
        return 0, ""
    return status, body.decode()


def kill_and_collect(pid):
    """End a process; what this test started ends only once it is collected."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: procs.reap(pid) is not None or not runs(pid))


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


def test_up_status_and_down(bundle):
    bundle.put_replicas()
    port = free_port()
    shown = bundle.says(0, "up", "--no-keep", "--port", str(port))
    assert f"http://127.0.0.1:{port}/v1/completions" in shown
    answer = bundle.answers("status")  # without --port: the state knows
    assert (answer["state"], answer["supervision"]) == ("up", "unsupervised")
    healthy = [(server["port"], server["healthy"]) for server in answer["servers"]]
    assert healthy == [(port, True), (port + 1, True)]
    before = servers(bundle)
    assert bundle.answers("--json", "up", "--no-keep", "--port", str(port))["already"] is True
    assert (servers(bundle), bundle.state()["keeper"]) == (before, None)
    kill_and_collect(before["server-1"])
    assert bundle.answers("status", code=1)["state"] == "degraded"
    assert bundle.run("up", "--no-keep") == 0  # what was left is replaced
    assert not runs(before["server-0"])
    pids = servers(bundle).values()
    assert bundle.run("up") == 0  # a keeper can be had later
    assert bundle.answers("status")["supervision"] == "supervised"
    assert list(servers(bundle).values()) == list(pids)
    assert bundle.run("down") == 0
    assert not any(runs(pid) for pid in pids)
    assert not bundle.up
    assert "nothing was running" in bundle.says(0, "down")
    assert bundle.answers("status", code=1)["state"] == "down"


def test_a_server_that_is_killed_is_restarted_without_its_workers(make_bundle):
    bundle = kept(make_bundle("--worker"))
    assert bundle.run("up") == 0
    before = servers(bundle)["server-0"]
    worker = worker_of(before)
    until(lambda: page(bundle, "/healthz") == (200, "serving\n"))
    os.kill(before, signal.SIGKILL)
    until(lambda: serves(bundle, 1))
    answer = bundle.answers("status")
    assert (answer["state"], answer["supervision"]) == ("up", "supervised")
    assert (answer["choice"], answer["restarts"]) == ("first", 1)
    assert answer["last_event"]["event"] == "ready"
    assert answer["last_failure"]["event"] == "died"
    assert (answer["keeper"]["alive"], answer["keeper"]["pid"]) == (True, keeper(bundle))
    assert servers(bundle)["server-0"] != before
    assert not runs(worker)
    assert (bundle.root / "run" / "server-0.log.1").is_file()
    assert "server-0 died: server-0 ended" in (bundle.root / "run" / "keeper.log").read_text()
    assert bundle.run("down") == 0
    assert not runs(answer["keeper"]["pid"])
    wanted = ["start", "ready", "keeper_start", "died", "restart", "start", "ready"]
    assert kinds(bundle)[:7] == wanted


def test_a_stopped_server_is_a_hang_and_a_stopped_keeper_keeps_nobody_waiting(bundle):
    assert kept(bundle, hang_s=2).run("up") == 0
    before = servers(bundle)["server-0"]
    os.kill(before, signal.SIGSTOP)
    until(lambda: serves(bundle, 1))
    assert happened(bundle, "hung")[0]["cause"] == "hang"
    watcher = keeper(bundle)
    os.kill(watcher, signal.SIGSTOP)
    assert bundle.run("down") == 0
    assert not any(runs(pid) for pid in (before, watcher))


def test_servers_outlive_their_keeper_and_are_adopted(bundle):
    options = ("--hang", "77", "--crash-budget", "2", "--metrics-port", "0")
    kept(bundle.put_replicas()).run("up", *options)
    before, first = servers(bundle), keeper(bundle)
    words = Path(f"/proc/{first}/cmdline").read_text().split("\0")
    assert words[words.index("keep") :][:-1] == [
        *("keep", "--crash-budget", "2", "--hang", "77.0", "--metrics-port", "0")
    ]
    assert bundle.state()["keeper"]["metrics_port"] is None
    kill_and_collect(first)
    answer = bundle.answers("status")
    assert (answer["state"], answer["supervision"]) == ("up", "unsupervised")
    assert answer["keeper"]["alive"] is False
    kill_and_collect(before["server-1"])  # nobody is there to restart it
    assert bundle.run("up") == 0
    after = servers(bundle)
    assert changed(before, after) == {"server-1"}
    answer = bundle.answers("status")
    assert (answer["state"], answer["supervision"]) == ("up", "supervised")
    assert keeper(bundle) != first
    assert with_variable(procs.MARK, bundle.state()["mark"]) == sorted(after.values())


def test_a_foreground_takes_over_keeps_and_tells_systemd(bundle, tmp_path, monkeypatch):
    kept(bundle).run("up")
    before, first = servers(bundle), keeper(bundle)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [*bundle.stand_alone(), "up", "--foreground"]
        shown = subprocess.Popen(command, preexec_fn=usual_signals, **silent)
        words = set()

        def told(*wanted):
            words.update(systemd.recv(4096).decode().split("\n"))
            return set(wanted) <= words

        until(lambda: told("READY=1", "WATCHDOG=1"))
        assert (keeper(bundle), runs(first)) == (shown.pid, False)
        assert servers(bundle) == before
        os.kill(before["server-0"], signal.SIGKILL)
        until(lambda: serves(bundle, 1))
        shown.send_signal(signal.SIGTERM)
        until(lambda: told("STOPPING=1"))
        assert shown.wait(PATIENCE) == 0
    assert not bundle.up


def completion(bundle, tokens):
    url = f"http://127.0.0.1:{bundle.port}/v1/completions"
    body = json.dumps({"prompt": "a", "max_tokens": tokens}).encode()
    return urllib.request.urlopen(url, body, timeout=PATIENCE)


def test_a_drain_lets_a_request_finish(make_bundle, tmp_path):
    orders = tmp_path / "orders"
    bundle = kept(make_bundle("--orders", str(orders)), hang_s=600)
    bundle.run("up")
    pid = servers(bundle)["server-0"]
    until(lambda: page(bundle, "/healthz")[0] == 200)
    orders.write_text("stuck")  # the request runs until the word is gone
    with completion(bundle, 30) as answer, ExitStack() as stack:
        draining = subprocess.Popen([*bundle.stand_alone(), "down", "--drain", "90"])
        stack.callback(draining.wait, PATIENCE)
        until(lambda: happened(bundle, "drain"))
        assert page(bundle, "/healthz") == (503, "draining\n")
        assert runs(pid)
        orders.unlink()
        assert answer.read().rstrip().endswith(b"data: [DONE]")
    until(lambda: not bundle.up)
    assert happened(bundle, "drained")[0]["finished"] is True
    assert not runs(pid)


def test_replicas_are_restarted_without_a_failed_request(make_bundle):
    bundle = kept(make_bundle("--metrics", "--delay", "0.01").put_replicas(routed=True))
    assert bundle.run("up") == 0
    before, answers, ends = servers(bundle), [0, 0, 0], threading.Event()

    def asks(number):
        while not ends.is_set():
            with completion(bundle, 10) as answer:
                assert b"[DONE]" in answer.read()
            answers[number] += 1

    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        stack.callback(ends.set)
        clients = [pool.submit(asks, number) for number in range(3)]
        until(lambda: all(answers))
        assert "restarted server-0, server-1" in bundle.says(0, "restart")
        until(lambda: serves(bundle, 2))
        after, served = servers(bundle), list(answers)
        until(lambda: all(now > then for now, then in zip(answers, served, strict=True)))
    for client in clients:
        client.result()  # no request has failed
    assert changed(before, after) == {"server-0", "server-1"}
    assert not any(runs(before[name]) for name in ("server-0", "server-1"))
    drained = [(event["name"], event["finished"]) for event in happened(bundle, "drained")]
    assert drained == [("server-0", True), ("server-1", True)]


def test_what_outlives_its_server_is_seen_and_ended(make_bundle):
    bundle = make_bundle("--worker")

    def orphan():
        """The worker of a server that was killed while nobody kept it."""
        assert bundle.run("up", "--no-keep") == 0
        leader = servers(bundle)["server-0"]
        worker = worker_of(leader)
        kill_and_collect(leader)
        return worker

    worker = orphan()
    answer = bundle.answers("status", code=1)
    (left,) = answer["left_behind"]
    assert (answer["state"], left["pid"]) == ("degraded", worker)
    assert "time.sleep" in left["name"]
    second = orphan()  # `up` ended the first
    until(lambda: not runs(worker))
    assert bundle.answers("--json", "down")["stopped"] == [f"pid {second}"]
    assert "left_behind" not in bundle.answers("status", code=1)
    third = orphan()
    (bundle.root / "run" / "state.json").unlink()  # the logs still tell
    (left,) = bundle.answers("status", code=1)["left_behind"]
    assert left["pid"] == third
    assert f"pid {third}" in bundle.says(0, "down")
    until(lambda: not runs(third))


def test_a_worker_of_a_server_is_started_without_being_asked(bundle):
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    worker = {"name": "worker-1", "node": 1, "role": "worker", "argv": words}
    bundle.edit(lambda data: data["processes"].append(data["processes"][0] | worker))
    shown = bundle.says(0, "up", "--node", "1", "--head", "127.0.0.1")
    assert "started: worker-1" in shown
    assert "no server answers on node 1" in bundle.says(2, "bench", "--node", "1")
    assert bundle.run("down", "--node", "1") == 0


@pytest.fixture
def train(tmp_path):
    """A training bundle; what runs of it at the end is ended."""
    made = []

    def make(steps, nodes=1, **scenario):
        found = training_bundle(tmp_path / "bundle", tmp_path, free_port(), steps, nodes=nodes)
        made.append(kept(found))
        (found.root / "run").mkdir()
        (found.root / "run" / "fake.json").write_text(json.dumps(scenario))
        return found

    yield make
    if made[0].up:
        made[0].run("down")


def test_a_run_is_restarted_and_its_keeper_ends_with_it(train):
    bundle = train(100_000, step_s=0.05, every=2)
    assert bundle.run("up") == 0
    shown = bundle.answers("status")
    assert (shown["state"], shown["supervision"], shown["world_size"]) == ("up", "supervised", 2)
    kill_and_collect(keeper(bundle))
    assert bundle.answers("status")["supervision"] == "unsupervised"
    before = servers(bundle)
    assert bundle.run("up") == 0
    assert servers(bundle) == before
    os.kill(before["trainer-0"], signal.SIGKILL)
    until(lambda: "restart" in kinds(bundle))
    watcher = keeper(bundle)
    (bundle.root / "run" / "stop").touch()
    until(lambda: procs.reap(watcher) is not None or not runs(watcher))
    assert kinds(bundle)[-4:] == ["died", "restart", "stopped", "keeper_stop"]
    assert bundle.answers("status", code=1)["state"] == "down"
    assert not bundle.up


def test_a_run_ends_with_a_checkpoint_from_which_the_next_goes_on(train):
    bundle = train(60, step_s=60)
    assert "up: step " in bundle.says(0, "up", "--data", "/tmp/mine.txt")
    assert "data: /tmp/mine.txt" in (bundle.root / "run" / "trainer-0.log").read_text()
    mark = bundle.state()["mark"]
    assert bundle.run("down", "--checkpoint") == 0
    assert "restart" not in kinds(bundle)
    assert with_variable(procs.MARK, mark) == []
    stopped = bundle.answers("status", code=1)
    place = bundle.root / "run" / "checkpoints" / f"step-{stopped['step']}"
    assert (stopped["state"], stopped["checkpoint"]) == ("down", str(place))
    (bundle.root / "run" / "fake.json").write_text('{"step_s": 0.001}')
    assert bundle.run("up") == 0
    until(lambda: bundle.answers("status", code=None)["state"] == "finished")
    shown = bundle.answers("status")
    assert (shown["step"], shown["steps"], shown["loss"]) == (60, 60, pytest.approx(5 / 60))
    assert shown["model"] == str(bundle.root / "run" / "model")
    assert shown["step"] > stopped["step"]


def test_bench_compares_steps_with_the_prediction(train):
    bundle = train(500)
    assert "step time, median" in bundle.says(0, "bench", "--steps", "6")
    data = bundle.read("measurement.json")
    assert data["metrics"]["step_s"] == 0.02
    assert data["ratio"].pop("peak_memory_bytes")
    rates = {"tokens_per_s": 2.0, "tokens_per_s_per_gpu": 2.0}
    assert data["ratio"] == {"step_s": 0.5, "mfu": None, **rates}
    assert data["steps"]["first"] > 2
    assert data["steps"]["count"] == 6
    assert not bundle.up
    assert list((bundle.root / "run" / "checkpoints").iterdir())


def test_each_node_starts_its_own_processes_and_knows_the_first(train):
    bundle = train(300, 2, step_s=60)
    assert bundle.run("up", "--node", "1", "--head", "127.0.0.1") == 0
    (process,) = bundle.answers("status", "--node", "1")["processes"]
    assert process["name"] == "trainer-1"
    command = Path(f"/proc/{process['pid']}/cmdline").read_text().split("\0")
    assert command[command.index("--master-addr") + 1] == "127.0.0.1"
    assert bundle.answers("status", "--node", "0", code=1)["processes"] == []
    assert bundle.run("down", "--node", "1") == 0
    assert not (bundle.root / "run" / "node-1" / "state.json").exists()
