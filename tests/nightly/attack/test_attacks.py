"""Short draws of what attacks try by the thousand: texts, bundles, signals, bodies and loads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from recipe_core.base import quoting
from recipe_core.targets import by_hand, containers, fill, node_script, pod
from tests.fixtures.needs import needs
from tests.fixtures.patience import comes
from tests.fixtures.rows import over
from tests.fixtures.serve import Server, recipe_serve
from tests.fixtures.sizes import FULL, examples
from tests.nightly.attack import api, bundles, injection, load, signals
from tests.nightly.attack.readers import Shell
from tests.nightly.attack.texts import CASES, fields


def named(case: str, name: str, payload: str) -> injection.Try:
    return CASES[case], fields(CASES[case])[name], payload


def test_texts_arrive_as_they_are_or_are_refused_by_name() -> None:
    tries = [
        *injection.drawn(examples(40, least=4), seed=7),
        named("vllm", "option", "$(touch INJECTED)"),
        named("vllm", "environment", "--trust-remote-code"),
        named("vllm", "hub id", "${HF_TOKEN:-x}"),
        named("torch", "folder", "{{ .Values }}"),
    ]
    attack = injection.run(tries)
    assert attack.failures == []
    assert attack.tried["requests"] == len(tries)
    assert attack.tried["built"] >= 4
    assert attack.tried["runs of scripts"] > 4
    assert attack.compose


BARE, POD, COMPOSE = (
    replace(syntax, text=str) for syntax in (fill.IN_SHELL, fill.IN_KUBERNETES, fill.IN_COMPOSE)
)


@over(
    "module, name, bare, place, says",
    [
        (node_script, "IN_SHELL", BARE, "environment", "ran: ['INJECTED']"),
        (by_hand, "IN_SHELL", BARE, "environment", "ran: ['INJECTED']"),
        (pod, "IN_KUBERNETES", POD, "option", "llminferenceservice"),
        (containers, "IN_COMPOSE", COMPOSE, "option", "Invalid interpolation"),
        (quoting, "go_template", str, "option", "llminferenceservice"),
    ],
)
def test_a_text_without_quotes_is_seen(module, name, bare, place, says, tmp_path, monkeypatch):
    monkeypatch.setattr(module, name, bare)
    attack = injection.Attack(shell=Shell(tmp_path))
    attack.attempt(*named("vllm", place, "{{ .Values }} $(HF_TOKEN) ${HOME} `touch INJECTED`"))
    attack.check_compose()
    assert any(says in failure for failure in attack.failures), attack.failures


def test_no_hostile_bundle_is_accepted_or_writes_elsewhere():
    tally = bundles.attack(bundles.cases(examples(250, least=25)), seed=7)
    assert tally.failures == []
    assert set(tally.tried) == set(bundles.FAMILIES)


def test_signals_at_random_moments_leave_nothing_behind():
    found = signals.drawn(300 if FULL else 12, seed=11)
    assert found.failures == []
    assert found.tried["met a live launcher"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with recipe_serve(folder, "--workers", "1", "--queue", "2") as running:
        yield running


def test_hostile_bodies_are_answered(server: Server) -> None:
    found = api.attack(server, examples(3000, least=60), seed=7)
    assert found.failures == []
    assert found.tried["422"]


def test_what_no_document_may_hold_is_refused_by_its_field(server: Server) -> None:
    """Half a character, and documents that are deep."""
    inside: object = 1
    for _ in range(400):
        inside = {"device": inside}
    deep = {"device": inside, "engine_options": inside}
    for route, body in (
        ("check", {"command": "vllm serve \ud800/x", "hardware": "h100-sxm"}),
        ("convert", {"document": {"argv": ["vllm"], "env": {"\ud800": "1"}}}),
        ("build", {"request": load.LIGHT, "environment": {"A": "\ud800"}}),
        ("recipe", load.LIGHT | {"options": {"environment": {"A": "\ud800"}}}),
        *(("convert", {"document": load.LIGHT | {name: deep}}) for name in ("hardware", "options")),
    ):
        answer = server.ask("POST", f"/api/v1/{route}", body)
        assert (answer[0], api.judge(*answer)) == (422, None), (route, answer)


@needs("generated cases", "schemathesis", extra="dev")
def test_generated_cases_pass_every_check(server: Server) -> None:
    code, text = api.generated(server, examples(100, least=4), seed=7, phases="examples,fuzzing")
    assert code == 0, text


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
        answer = server.ask("POST", "/api/v1/plan", load.HEAVY)
        assert api.judge(*answer) is None
        return answer[0]

    with ThreadPoolExecutor(8) as pool:
        statuses = set(pool.map(plan, range(8)))
    assert statuses <= {200, 429, 503}
    assert 200 in statuses
    assert statuses & {429, 503}
    assert comes(lambda: load.plan(server, load.LIGHT) == 200)
