"""Simulations through the API, agents and the command line: jobs, their owners, their errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client
from starlette.testclient import TestClient

from recipe_core.base import budget, progress
from recipe_core.base.documents import to_yaml
from recipe_core.doors import public
from recipe_core.doors.api import create_api
from recipe_core.doors.mcp import create_mcp
from recipe_core.doors.pool import Pool
from recipe_core.doors.settings import ServerSettings
from recipe_core.fleet.result import OverTimeAnswer
from recipe_core.present.schemas import schema
from tests.conftest import finished
from tests.doors.test_mcp import call, said
from tests.fixtures.command_line import recipe
from tests.fixtures.over_time_answers import ANSWER
from tests.fixtures.patience import comes

REQUEST = {
    "model": "Qwen/Qwen3-8B",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "workload": {
        "input_tokens": 1024,
        "output_tokens": 256,
        "over_time": {"rates": [1.0, 4.0, 2.0], "days": 1},
    },
    "objective": {"limits": {"ttft_ms": 2000, "tpot_ms": 50}},
}
GOES_ON = threading.Event()


def simulated(*_: Any, **options: Any) -> OverTimeAnswer:
    """Half of a simulation at once, the rest when it may go on."""
    with progress.task(4):
        progress.step()
        progress.step()
        while not GOES_ON.wait(0.01):
            budget.spend()
    simulated.options = options  # type: ignore[attr-defined]
    return ANSWER


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    GOES_ON.set()
    monkeypatch.setattr(public, "simulate", simulated)
    yield
    GOES_ON.set()


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(create_api(folders=False, pool=Pool(ServerSettings(workers=0)))) as one:
        yield one


def begun(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/simulate", json={"request": REQUEST, **body})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == answer.json()["links"]["self"]
    job: dict[str, Any] = answer.json()
    return job


def look(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = client.get(job["links"]["self"]).json()
    return state


def test_a_job_is_begun_looked_at_and_fetched(client: TestClient) -> None:
    GOES_ON.clear()
    job = begun(client)
    assert comes(lambda: look(client, job)["progress"] == {"done": 2, "steps": 4})
    assert look(client, job)["status"] == "running"
    assert "result" not in look(client, job)
    GOES_ON.set()
    assert comes(lambda: look(client, job)["status"] == "done")
    assert look(client, job)["result"] == json.loads(json.dumps(ANSWER.to_json()))


def test_a_job_is_cancelled_and_its_calculation_ends(client: TestClient) -> None:
    GOES_ON.clear()
    job = begun(client)
    assert comes(lambda: look(client, job)["progress"]["done"] == 2)
    threads = [thread for thread in threading.enumerate() if thread.name == "job"]
    assert client.delete(job["links"]["self"]).json()["status"] == "cancelled"
    assert comes(lambda: not any(thread.is_alive() for thread in threads))
    assert look(client, job)["status"] == "cancelled"


def test_a_worker_that_is_cancelled_ends_its_call() -> None:
    """In a process of its own, where a signal ends the calculation."""
    pool = Pool(ServerSettings(workers=1, queue=4))
    heavy = {**REQUEST, "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 64}}
    with TestClient(create_api(folders=False, pool=pool)) as client:
        job = client.post("/simulate", json={"request": heavy}).json()
        assert comes(lambda: look(client, job)["status"] != "queued")
        client.delete(job["links"]["self"])
        plan = client.post("/plan", json={**REQUEST, "workload": {"concurrency": 8}})
        assert plan.status_code == 200
        assert look(client, job)["status"] in ("cancelled", "done", "failed")
    pool.close()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "request"),
        ({"request": REQUEST, "surprise": 1}, "surprise"),
        ({"request": {**REQUEST, "hardware": {}}}, "hardware.device"),
        ({"request": REQUEST, "policies": ["kedaa"]}, "policies"),
        ({"request": REQUEST, "policies": "keda"}, "policies"),
        ({"request": REQUEST, "policies": []}, "policies"),
        ({"request": REQUEST, "days": -1}, "days"),
        ({"request": REQUEST, "trace": {"text": 1}}, "text"),
        ({"request": REQUEST, "trace": {"name": "a"}}, "text"),
        ({"request": REQUEST, "trace": {"text": "a", "path": "/etc"}}, "path"),
    ],
)
def test_what_is_wrong_is_told_before_a_job_begins(
    client: TestClient, body: dict[str, Any], field: str
) -> None:
    answer = client.post("/simulate", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == field


def test_what_fails_later_is_told_by_the_job(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> OverTimeAnswer:
        raise public.InputError("bounds no time.", field="objective.limits")

    monkeypatch.setattr(public, "simulate", refuses)
    job = begun(client)
    assert comes(lambda: look(client, job)["status"] == "failed")
    assert look(client, job)["error"]["field"] == "objective.limits"


def test_policies_and_days_reach_the_simulation(client: TestClient) -> None:
    job = begun(client, policies=["keda", "fixed", "keda"], days=3)
    assert comes(lambda: look(client, job)["status"] == "done")
    options = simulated.options  # type: ignore[attr-defined]
    assert (options["policies"], options["days"]) == (("keda", "fixed"), 3.0)


def test_jobs_of_others_are_not_there(client: TestClient) -> None:
    job = begun(client)
    other = TestClient(client.app, client=("10.1.2.3", 5000))
    for method in ("GET", "DELETE"):
        answer = other.request(method, job["links"]["self"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "http")
    assert client.get("/jobs/nothing").status_code == 404


def test_who_has_the_token_sees_its_jobs_from_anywhere() -> None:
    settings = ServerSettings(workers=0, token="a-token-of-sixteen")
    app = create_api(folders=False, pool=Pool(settings))
    here, there = (TestClient(app, client=(host, 1)) for host in ("10.1.2.3", "10.1.2.4"))
    job = begun(here)
    assert there.get(job["links"]["self"]).status_code == 200


def test_too_many_jobs_of_one_caller_are_told_to_come_again(client: TestClient) -> None:
    GOES_ON.clear()
    statuses = [client.post("/simulate", json={"request": REQUEST}).status_code for _ in range(6)]
    assert statuses[:4] == [202] * 4
    assert statuses[-1] == 429


def test_a_large_trace_is_taken_and_a_larger_one_refused_unread(client: TestClient) -> None:
    long = "x" * (5 << 20)
    assert client.post("/plan", json={"trace": long}).status_code == 413
    taken = client.post("/simulate", json={"request": REQUEST, "trace": {"text": long}})
    assert taken.status_code == 202
    longer = client.post("/trace", content=b" " * (33 << 20))
    assert longer.status_code == 413


# Agents


def test_agents_get_the_answer_without_its_series_and_see_progress() -> None:
    told: list[tuple[float, float | None]] = []

    async def asked() -> Any:
        async def report(done: float, steps: float | None, _: str | None) -> None:
            told.append((done, steps))

        async with Client(create_mcp(folders=False)) as client:
            return await client.call_tool(
                "simulate", {"request": REQUEST, "policies": ["keda"]}, progress_callback=report
            )

    answer = finished(asked()).structured_content
    assert answer["best"] == ANSWER.best
    assert all("series" not in policy for policy in answer["policies"])
    assert (2.0, 4.0) in told
    whole = call("simulate", request=REQUEST, series=True).structured_content
    assert whole == json.loads(json.dumps(ANSWER.to_json()))
    assert said(call("simulate", request=REQUEST, policies=["kedaa"]))["field"] == "policies"


# The command line


def simulate(*words: str, request: dict[str, Any] = REQUEST) -> Any:
    return recipe("simulate", "-", *words, stdin=to_yaml(request), columns=200)


def test_the_text_shows_policies_bounds_and_the_choice() -> None:
    done = simulate()
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[0]
    assert first.startswith("keda keeps the limits for 99.5")
    assert "a month" in first
    for words in ("always_peak", "clairvoyant", "vs peak", "target of in-flight: 24 a replica"):
        assert words in done.stdout


def test_where_no_policy_reaches_the_share_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    none = ANSWER.model_copy(update={"best": None})
    monkeypatch.setattr(public, "simulate", lambda *_, **__: none)
    done = simulate("--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["best"] is None
    assert simulate().stdout.startswith("No policy keeps the limits for 99 % of requests.")
    path = tmp_path / "out.yaml"
    assert simulate("-o", str(path)).returncode == 1
    assert not path.exists()


def test_the_answer_is_as_its_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(ANSWER.to_json(), schema("simulate"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(ANSWER.to_json() | {"surprise": 1}, schema("simulate"))
