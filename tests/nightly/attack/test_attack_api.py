"""The attacks on the API in short; ``python -m tests.nightly.attack.api`` and ``…load`` in full."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fixtures.patience import comes
from tests.fixtures.serve import Server, recipe_serve
from tests.fixtures.sizes import examples
from tests.nightly.attack import api, load


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with recipe_serve(folder, "--workers", "1", "--queue", "2") as running:
        yield running


def test_hostile_bodies_are_answered(server: Server) -> None:
    found = api.attack(server, examples(3000, least=60), seed=7)
    assert found.failures == []
    assert found.statuses[422]


def deep(field: str) -> dict[str, object]:
    inside: object = 1
    for _ in range(400):
        inside = {"device": inside}
    return {"document": load.LIGHT | {field: {"device": inside, "engine_options": inside}}}


REFUSED: list[tuple[str, object]] = [  # half a character, and documents that are deep
    ("check", {"command": "vllm serve \ud800/x", "hardware": "h100-sxm"}),
    ("convert", {"document": {"argv": ["vllm"], "env": {"\ud800": "1"}}}),
    ("build", {"request": load.LIGHT, "environment": {"A": "\ud800"}}),
    ("recipe", load.LIGHT | {"options": {"environment": {"A": "\ud800"}}}),
    ("convert", deep("hardware")),
    ("convert", deep("options")),
]


def test_what_no_document_may_hold_is_refused_by_its_field(server: Server) -> None:
    for route, body in REFUSED:
        status, answer, headers = server.ask("POST", f"/api/v1/{route}", body)
        assert (status, api.judge(status, answer, headers)) == (422, None), (route, answer)


def test_generated_cases_pass_every_check(server: Server) -> None:
    if not shutil.which("schemathesis", path=str(Path(sys.executable).parent)):
        pytest.skip("schemathesis is not installed")
    code, text = api.generated(server, examples(100, least=4), seed=7, phases="examples,fuzzing")
    assert code == 0, text


def test_the_document_tells_every_status(server: Server) -> None:
    document = json.loads(server.ask("GET", "/api/v1/openapi.json")[1])
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            told = set(operation["responses"])
            assert told & {"200", "202"}, path
            assert {"401", "404", "421", "422"} <= told, path
            if method == "post":
                assert {"400", "409", "413", "429", "503"} <= told, path


def test_a_heavy_plan_delays_no_other_answer(server: Server) -> None:
    """The plan ends after many answers: were they behind it, none would come before."""
    statuses, seconds = load.answered_beside(server, [load.HEAVY])
    assert statuses == [200]
    assert len(seconds) > 5


def test_what_is_too_large_is_refused_before_it_is_made(server: Server) -> None:
    status, answer, _ = server.ask("POST", "/api/v1/plan", load.UNBOUNDED)
    problem = json.loads(answer)["error"]
    assert (status, problem["code"], problem["field"]) == (422, "limit", "options.loads")


def test_who_leaves_frees_the_worker(server: Server) -> None:
    """More leave than may wait: were they worked for, there would be no place for another."""
    for _ in range(4):
        load.leave(server)
    assert comes(lambda: load.plan(server, load.LIGHT) == 200)


def test_too_many_at_once_are_told_to_come_again(server: Server) -> None:
    def plan(_: int) -> int:
        status, answer, headers = server.ask("POST", "/api/v1/plan", load.HEAVY)
        assert api.judge(status, answer, headers) is None
        return status

    with ThreadPoolExecutor(8) as pool:
        statuses = set(pool.map(plan, range(8)))
    assert statuses <= {200, 429, 503}
    assert 200 in statuses
    assert statuses & {429, 503}
    assert comes(lambda: load.plan(server, load.LIGHT) == 200)
