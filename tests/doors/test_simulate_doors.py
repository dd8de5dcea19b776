"""Simulations through the API, agents and the command line: jobs, their owners, their errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from recipe_core.base import budget
from recipe_core.base.documents import to_yaml
from recipe_core.doors import public
from recipe_core.doors.api import create_api
from recipe_core.doors.jobs import Jobs
from recipe_core.doors.mcp import create_mcp, http_app
from recipe_core.doors.pool import Pool
from recipe_core.doors.settings import ServerSettings
from recipe_core.scaling.result import OverTimeAnswer
from recipe_core.views.catalog import document_schema
from tests.fixtures.agents import answered, asked, error_of
from tests.fixtures.command_line import recipe
from tests.fixtures.over_time import ANSWER
from tests.fixtures.rows import table

OVER_TIME = {"rates": [1.0, 4.0, 2.0], "days": 1}
REQUEST: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "workload": {"input_tokens": 1024, "output_tokens": 256, "over_time": OVER_TIME},
    "objective": {"limits": {"ttft_ms": 2000, "tpot_ms": 50}},
}


class Simulation:
    """In place of a simulation: two of four steps, what happens meanwhile, and the answer."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.meanwhile: Callable[[], object] = lambda: None
        self.ended = False

    def __call__(self, *_: Any, **options: Any) -> OverTimeAnswer:
        self.options = options
        with budget.track_task(4):
            budget.count_step()
            budget.count_step()
            self.meanwhile()
            budget.spend()
        self.ended = True
        return ANSWER


class Desk(TestClient):
    """The API, whose jobs run when they are told to."""

    def __init__(self, **settings: Any) -> None:
        self.waiting: list[Callable[[], None]] = []
        pool = Pool(ServerSettings(workers=0, **settings))
        jobs = Jobs(pool, start=self.waiting.append)
        super().__init__(create_api(folders=False, pool=pool, jobs=jobs))

    def begun(self, **body: Any) -> str:
        """The path of a job that waits."""
        answer = self.post("/simulate", json={"request": REQUEST, **body})
        assert answer.status_code == 202, answer.text
        assert answer.headers["location"] == answer.json()["links"]["self"]
        assert answer.json()["status"] == "queued"
        return str(answer.headers["location"])

    def look(self, job: str) -> Any:
        return self.get(job).json()

    def ended(self, **body: Any) -> Any:
        job = self.begun(**body)
        self.waiting.pop()()
        return self.look(job)


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    simulation = Simulation()
    monkeypatch.setattr(public, "simulate", simulation)
    return simulation


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_job_is_begun_looked_at_and_fetched(desk: Desk, simulated: Simulation) -> None:
    job, seen = desk.begun(), list[dict[str, Any]]()
    simulated.meanwhile = lambda: seen.append(desk.look(job))
    desk.waiting.pop()()
    assert (seen[0]["status"], seen[0]["progress"]) == (
        "running",
        {"done": 2, "steps": 4, "stage": ""},
    )
    assert "result" not in seen[0]
    state = desk.look(job)
    assert (state["status"], state["result"]) == ("done", json.loads(json.dumps(ANSWER.to_json())))
    job = desk.begun()  # one that is cancelled ends its calculation
    simulated.ended = False
    simulated.meanwhile = lambda: desk.delete(job)
    desk.waiting.pop()()
    state = desk.look(job)
    assert (state["status"], "result" in state, simulated.ended) == ("cancelled", False, False)


def test_what_is_wrong_is_told_before_a_job_begins(desk: Desk) -> None:
    assert desk.post("/simulate", json={}).json()["error"]["field"] == "request"
    for part, field in table("doors", "simulate_errors"):
        body = part | {"request": REQUEST | part.get("request", {})}
        answer = desk.post("/simulate", json=body)
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)
    assert not desk.waiting


def test_a_job_passes_on_what_is_asked_and_tells_what_fails(
    desk: Desk, simulated: Simulation
) -> None:
    def refuse() -> None:
        raise public.InputError("bounds no time.", field="objective.limits")

    assert desk.ended(policies=["keda", "fixed", "keda"], days=3)["status"] == "done"
    options = simulated.options
    assert (options["policies"], options["days"]) == (("keda", "fixed"), 3.0)
    simulated.meanwhile = refuse
    state = desk.ended()
    assert (state["status"], state["error"]["field"]) == ("failed", "objective.limits")


def test_jobs_of_others_are_there_for_who_has_the_token(desk: Desk) -> None:
    def seen(by: Desk) -> list[int]:
        job, other = by.begun(), TestClient(by.app, client=("10.1.2.3", 5000))
        return [other.request(method, job).status_code for method in ("GET", "DELETE")]

    assert seen(desk) == [404, 404]
    assert desk.get("/jobs/nothing").json()["error"]["code"] == "http"
    assert seen(Desk(token="a-token-of-sixteen")) == [200, 200]


def test_too_many_jobs_of_one_caller_and_too_large_traces_are_refused(desk: Desk) -> None:
    statuses = [desk.post("/simulate", json={"request": REQUEST}).status_code for _ in range(6)]
    assert statuses == [202] * 4 + [429] * 2
    desk = Desk()
    long = "x" * (5 << 20)
    assert desk.post("/plan", json={"trace": long}).status_code == 413
    assert desk.begun(trace={"text": long})
    assert desk.post("/trace", content=b" " * (33 << 20)).status_code == 413


def test_agents_get_the_answer_without_its_series_and_see_progress() -> None:
    told: list[tuple[float, float | None]] = []

    async def report(done: float, steps: float | None, _: str | None) -> None:
        told.append((done, steps))

    async def question(agent: Any) -> Any:
        body = {"request": REQUEST, "policies": ["keda"]}
        return await agent.call_tool("simulate", body, progress_callback=report)

    answer = asked(question).structured_content
    assert answer["best"] == ANSWER.best
    assert all("series" not in policy for policy in answer["policies"])
    assert (2.0, 4.0) in told
    whole = answered("simulate", request=REQUEST, series=True)
    assert whole == json.loads(json.dumps(ANSWER.to_json()))
    assert error_of("simulate", request=REQUEST, policies=["kedaa"])["field"] == "policies"


def test_simulations_of_agents_are_long_questions_of_their_address() -> None:
    asked_for: list[dict[str, Any]] = []

    class Asked(Pool):
        async def ask(self, *_: Any, **options: Any) -> Any:
            asked_for.append(options)
            return {"policies": [], "bounds": {}, "load": {"rates_per_s": []}}

    agents = http_app(create_mcp(folders=False, pool=Asked(ServerSettings(workers=0))))
    headers = {"Accept": "application/json", "MCP-Protocol-Version": "2025-06-18"}
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    with TestClient(agents, client=("10.1.2.3", 5000)) as agent:
        for name in ("simulate", "estimate"):
            call = message | {"params": {"name": name, "arguments": {"request": {}}}}
            assert agent.post("/mcp", json=call, headers=headers).status_code == 200
    assert asked_for == [{"client": "10.1.2.3", "long": True}, {"client": "10.1.2.3"}]


def simulate(*words: str, request: dict[str, Any] = REQUEST) -> Any:
    return recipe("simulate", "-", *words, stdin=to_yaml(request), columns=200)


def test_the_text_shows_policies_bounds_and_the_choice() -> None:
    done = simulate()
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[0]
    assert first.startswith("Cheapest is KEDA: $")
    assert "99.5 % within the limits" in first
    for words in ("Always at peak", "Clairvoyant", "Target of requests at once: 24 a replica"):
        assert words in done.stdout


def test_where_no_policy_reaches_the_share_the_exit_code_is_1(monkeypatch, tmp_path) -> None:
    none = ANSWER.model_copy(update={"best": None})
    monkeypatch.setattr(public, "simulate", lambda *_, **__: none)
    done = simulate("--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["best"] is None
    assert simulate().stdout.startswith("No policy keeps the limits for 99 % of the requests.")
    path = tmp_path / "out.yaml"
    assert simulate("-o", str(path)).returncode == 1
    assert not path.exists()


def test_the_answer_is_as_its_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(ANSWER.to_json(), document_schema("simulate"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(ANSWER.to_json() | {"surprise": 1}, document_schema("simulate"))
