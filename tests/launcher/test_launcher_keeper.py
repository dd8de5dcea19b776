"""A keeper and real processes: what fails is restarted, left for a fallback, or explained."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher import procs
from tests.fixtures.bundles import FAKE_SERVER, Bundle, usual_signals, with_variable
from tests.fixtures.kept import (
    Client,
    happened,
    keeper,
    kept,
    kill,
    kinds,
    page,
    runs,
    servers,
    serves,
    status,
    until,
)

Make = Callable[..., Bundle]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A word in this file tells every fake server what to do."""
    return tmp_path / "orders"


def marked(bundle: Bundle) -> list[int]:
    return with_variable(procs.MARK, bundle.state()["mark"])


def second(bundle: Bundle) -> Bundle:
    """Another replica, a group of its own."""

    def change(data: dict[str, Any]) -> None:
        first = data["processes"][0]
        data["processes"].append(first | {"name": "server-1", "port_offset": 1, "group": 1})

    bundle.edit(change)
    return bundle


def test_a_server_that_is_killed_is_restarted(bundle, capsys):
    assert kept(bundle).run("up") == 0
    before = servers(bundle)["server-0"]
    assert status(bundle, capsys)["supervision"] == "supervised"
    kill(before)
    until(lambda: serves(bundle, 1))
    answer = status(bundle, capsys)
    assert answer["state"] == "up"
    assert answer["restarts"] == 1
    assert answer["choice"] == "first"
    assert answer["last_event"]["event"] == "ready"
    assert answer["last_failure"]["event"] == "died"
    assert (answer["keeper"]["alive"], answer["keeper"]["pid"]) == (True, keeper(bundle))
    assert servers(bundle)["server-0"] != before
    assert (bundle.root / "run" / "server-0.log.1").is_file()
    assert bundle.run("down") == 0
    assert not runs(answer["keeper"]["pid"])
    wanted = ["start", "ready", "keeper_start", "died", "restart", "start", "ready"]
    assert kinds(bundle)[:7] == wanted


def test_a_crash_of_its_own_child_has_its_signal_and_log(make_bundle, orders):
    bundle = kept(make_bundle("--orders", str(orders)))
    bundle.run("up")
    for count in (1, 2):  # the first server is another process's child, the second the keeper's
        orders.write_text("exit")
        until(lambda count=count: serves(bundle, count))
    first, last = happened(bundle, "died")
    assert last["reason"] == "server-0 was ended by signal 9"
    assert first["reason"] == "server-0 ended"


def test_a_stopped_process_is_a_hang(bundle):
    assert kept(bundle, hang_s=2).run("up") == 0
    before = servers(bundle)["server-0"]
    kill(before, signal.SIGSTOP)
    until(lambda: serves(bundle, 1))
    (event,) = happened(bundle, "hung")
    assert event["cause"] == "hang"
    assert event["reason"].startswith("no answer for ")
    assert not runs(before)


def test_requests_without_new_tokens_are_a_hang(make_bundle, orders):
    bundle = kept(make_bundle("--metrics", "--orders", str(orders)), hang_s=2)
    bundle.run("up")
    orders.write_text("stuck")
    client = Client(bundle.port)
    client.start()
    until(lambda: happened(bundle, "hung"))
    orders.unlink()
    until(lambda: serves(bundle, 1))
    client.stop()
    assert happened(bundle, "hung")[0]["reason"].startswith("1 request, no new token for ")


def test_a_slow_server_is_restarted_once(make_bundle, orders):
    bundle = kept(make_bundle("--metrics", "--orders", str(orders)), hang_s=30)
    bundle.run("up")
    orders.write_text("slow")  # 20 ms a token; the band ends at 4
    client = Client(bundle.port)
    client.start()
    until(lambda: len(happened(bundle, "slow")) == 2)
    client.stop()
    assert serves(bundle, 1)
    assert [e["cause"] for e in happened(bundle, "restart")] == ["slow"]
    assert runs(servers(bundle)["server-0"])  # no choice is left: slow is better than stopped


def test_a_budget_that_is_spent_takes_the_fallback_then_stops(make_bundle, tmp_path, capsys):
    """The first choice dies at every start, the fallback after a while."""
    bundle = make_bundle("--behave", "die-later")
    kept(bundle)

    def change(data: dict[str, Any]) -> None:
        data["processes"][0]["argv"][-1] = "ok"

    bundle.add_fallback("1-lower-context", change)
    assert bundle.run("up") == 0
    until(lambda: serves(bundle) and bundle.state()["choice"] == "1-lower-context")
    (event,) = happened(bundle, "fallback")
    assert (event["from"], event["to"]) == ("first", "1-lower-context")
    answer = status(bundle, capsys)
    assert answer["choice"] == "1-lower-context"
    assert answer["state"] == "up"
    assert len(happened(bundle, "restart")) == 3


def test_without_a_fallback_it_stops_with_a_diagnosis(make_bundle, capsys):
    bundle = kept(make_bundle("--behave", "die-later"), crash_budget=1)
    assert bundle.run("up") == 0
    watcher = keeper(bundle)
    mark = bundle.state()["mark"]
    until(lambda: not bundle.up)
    until(lambda: not runs(watcher))
    assert with_variable(procs.MARK, mark) == []
    (event,) = happened(bundle, "gave_up")
    assert any("the oven went out" in line for line in event["lines"])
    assert event["fix"]
    answer = status(bundle, capsys)
    assert answer["state"] == "down"
    assert answer["last_failure"]["event"] == "gave_up"
    assert "the oven went out" in (bundle.root / "run" / "keeper.log").read_text()


def test_a_cause_that_lasts_is_not_tried_again(make_bundle, tmp_path):
    """Weights that went missing: a restart cannot cure that."""
    starts = tmp_path / "starts"
    script = tmp_path / "engine.py"
    script.write_text(
        "import runpy, sys\n"
        f"sys.argv[0] = {str(FAKE_SERVER)!r}\n"
        f"if open({str(starts)!r}, 'a').write('x') and open({str(starts)!r}).read() > 'x':\n"
        "    sys.exit('api_server.py: error: unrecognized arguments: --no-such-flag')\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    bundle = kept(make_bundle())

    def change(data: dict[str, Any]) -> None:
        data["processes"][0]["argv"][1] = str(script)

    bundle.edit(change)
    assert bundle.run("up") == 0
    kill(servers(bundle)["server-0"])
    until(lambda: not bundle.up)
    (event,) = happened(bundle, "gave_up")
    assert any("unrecognized arguments" in line for line in event["lines"])
    assert starts.read_text() == "xx"


def test_only_the_group_that_failed_is_restarted(bundle, capsys):
    kept(second(bundle)).run("up")
    before = servers(bundle)
    kill(before["server-1"])
    until(lambda: serves(bundle, 1))
    after = servers(bundle)
    assert after["server-0"] == before["server-0"]
    assert after["server-1"] != before["server-1"]
    assert sorted(marked(bundle)) == sorted(after.values())
    assert happened(bundle, "died")[0]["name"] == "server-1"


def test_a_group_that_cannot_be_kept_leaves_the_others(make_bundle, capsys):
    bundle = make_bundle()

    def change(data: dict[str, Any]) -> None:
        second(bundle)
        data.update(json.loads((bundle.root / "launch.json").read_text()))
        data["processes"][1]["argv"] = [*data["processes"][1]["argv"], "--behave", "die-later"]

    bundle.edit(change)
    kept(bundle, crash_budget=1).run("up")
    before = servers(bundle)["server-0"]
    until(lambda: happened(bundle, "gave_up"))
    assert happened(bundle, "gave_up")[0]["name"] == "server-1"
    assert bundle.state()["parked"] == [1]
    assert servers(bundle) == {"server-0": before}
    assert status(bundle, capsys)["state"] == "degraded"
    assert page(bundle, "/healthz")[0] == 200
    assert bundle.run("up") == 0  # nothing is started twice, nor waited for
    assert servers(bundle) == {"server-0": before}


def test_servers_outlive_their_keeper_and_are_adopted(bundle, capsys):
    kept(second(bundle)).run("up")
    before, first = servers(bundle), keeper(bundle)
    kill(first)
    until(lambda: not runs(first))
    answer = status(bundle, capsys)
    assert (answer["state"], answer["supervision"]) == ("up", "unsupervised")
    assert answer["keeper"]["alive"] is False
    kill(before["server-1"])  # nobody is there to restart it
    until(lambda: not runs(before["server-1"]))
    assert bundle.run("up") == 0
    assert servers(bundle)["server-0"] == before["server-0"]
    assert servers(bundle)["server-1"] != before["server-1"]
    answer = status(bundle, capsys)
    assert (answer["state"], answer["supervision"]) == ("up", "supervised")
    assert keeper(bundle) != first


def test_a_keeper_killed_while_it_restarts_leaves_nothing_behind(make_bundle, tmp_path):
    starts = tmp_path / "starts"
    bundle = kept(make_bundle("--starts", str(starts)), backoff_s=3, backoff_most_s=3)
    bundle.run("up")
    mark, first = bundle.state()["mark"], keeper(bundle)
    kill(servers(bundle)["server-0"])
    until(lambda: happened(bundle, "restart"))
    kill(first)
    until(lambda: not runs(first))
    assert bundle.run("up") == 0
    assert len(with_variable(procs.MARK, bundle.state()["mark"])) == 1
    assert bundle.run("down") == 0
    assert with_variable(procs.MARK, mark) == []


def test_no_keep_leaves_no_keeper(bundle, capsys):
    assert kept(bundle).run("up", "--no-keep") == 0
    assert bundle.state()["keeper"] is None
    assert status(bundle, capsys)["supervision"] == "unsupervised"
    pid = servers(bundle)["server-0"]
    assert bundle.run("up") == 0  # later one can be had
    assert status(bundle, capsys)["supervision"] == "supervised"
    assert servers(bundle)["server-0"] == pid


def test_its_own_pages(make_bundle):
    bundle = kept(make_bundle("--metrics"), hang_s=1)
    bundle.run("up")
    until(lambda: page(bundle, "/healthz") == (200, "serving\n"))
    client = Client(bundle.port)
    client.start()
    until(lambda: "recipe_tokens_total" in page(bundle, "/metrics")[1])
    kill(servers(bundle)["server-0"])
    until(lambda: 'recipe_restarts_total{cause="' in page(bundle, "/metrics")[1])
    until(lambda: page(bundle, "/healthz")[0] == 200)
    client.stop()
    text = page(bundle, "/metrics")[1]
    assert "recipe_predicted_tpot_seconds 0.002" in text
    assert 'recipe_choice_info{recipe="fake-cpu",choice="first"} 1' in text


def test_a_port_for_metrics_that_is_taken_stops_nothing(bundle):
    kept(bundle)
    assert bundle.run("up", "--metrics-port", str(bundle.port)) == 0
    kill(servers(bundle)["server-0"])
    until(lambda: serves(bundle, 1))


@pytest.mark.parametrize("how", ["down", "signal", "unkept"])
@pytest.mark.parametrize("figures", [[], ["--metrics"]], ids=["connections", "figures"])
def test_a_drain_lets_requests_finish(make_bundle, orders, how, figures):
    bundle = kept(make_bundle("--orders", str(orders), *figures), hang_s=600)
    bundle.run("up", *(["--no-keep"] if how == "unkept" else []))
    url = f"http://127.0.0.1:{bundle.port}/v1/completions"
    body = json.dumps({"prompt": "a", "max_tokens": 30}).encode()
    pid = servers(bundle)["server-0"]
    orders.write_text("stuck")  # the request runs until the word is gone
    with urllib.request.urlopen(url, body, timeout=120) as answer, ExitStack() as stack:
        if how == "signal":
            kill(keeper(bundle), signal.SIGTERM)
        else:
            command = [sys.executable, "-c", DRAIN, str(bundle.root)]
            draining = subprocess.Popen(command)
            stack.callback(draining.wait, 120)
        until(lambda: happened(bundle, "drain"))
        if how == "down":
            assert page(bundle, "/healthz") == (503, "draining\n")
        assert runs(pid)
        orders.unlink()
        assert answer.read().rstrip().endswith(b"data: [DONE]")
    until(lambda: not bundle.up)
    assert happened(bundle, "drained")[0]["finished"] is True
    assert not runs(pid)


DRAIN = """
import sys
from pathlib import Path
from recipe_core.launcher.main import main
sys.exit(main(["down", "--drain", "90"], root=Path(sys.argv[1])))
"""


def test_a_drain_has_a_deadline(make_bundle):
    bundle = kept(make_bundle("--delay", "60"))
    bundle.run("up")
    url = f"http://127.0.0.1:{bundle.port}/v1/completions"
    body = json.dumps({"prompt": "a", "max_tokens": 100}).encode()
    with urllib.request.urlopen(url, body, timeout=120):
        assert bundle.run("down", "--drain", "0.5") == 0
    assert happened(bundle, "drained")[0]["finished"] is False


def test_in_the_foreground_it_keeps_and_tells_systemd(bundle, tmp_path):
    kept(bundle)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(90)
        command = [*bundle.stand_alone(), "up", "--foreground"]
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        shown = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            preexec_fn=usual_signals,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        words: set[str] = set()

        def told(*wanted: str) -> bool:
            words.update(systemd.recv(4096).decode().split("\n"))
            return set(wanted) <= words

        until(lambda: told("READY=1", "WATCHDOG=1"))
        assert keeper(bundle) == shown.pid
        kill(servers(bundle)["server-0"])
        until(lambda: serves(bundle, 1))
        shown.send_signal(signal.SIGTERM)
        until(lambda: told("STOPPING=1"))
        assert shown.wait(90) == 0
    assert not bundle.up


def test_a_foreground_takes_over_from_the_background(bundle):
    kept(bundle).run("up")
    before, first = servers(bundle), keeper(bundle)
    shown = subprocess.Popen(
        [*bundle.stand_alone(), "up", "--foreground"],
        preexec_fn=usual_signals,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: bundle.up and keeper(bundle) == shown.pid)
    assert not runs(first)
    assert servers(bundle) == before
    shown.send_signal(signal.SIGINT)
    assert shown.wait(90) == 0
    assert not bundle.up


def test_down_is_not_kept_waiting_by_a_stopped_keeper(bundle):
    kept(bundle).run("up")
    kill(keeper(bundle), signal.SIGSTOP)
    watcher = keeper(bundle)
    assert bundle.run("down") == 0
    assert not runs(watcher)


def test_a_port_that_somebody_took_is_named(bundle):
    kept(bundle, backoff_s=0.5, backoff_most_s=0.5).run("up")
    pid = servers(bundle)["server-0"]
    kill(pid, signal.SIGSTOP)
    until(lambda: happened(bundle, "hung"), 120)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def took() -> bool:
            try:
                taken.bind(("127.0.0.1", bundle.port))
            except OSError:
                return False
            taken.listen()
            return True

        until(took)
        until(lambda: happened(bundle, "died"))
    until(lambda: serves(bundle) or not bundle.up)
    assert happened(bundle, "died")[0]["cause"] != "unknown"
