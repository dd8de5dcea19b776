"""What the attack must see, and bodies that no random draw has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from recipe_core.base import texts
from recipe_core.targets import by_hand, compose, node_script, pod
from tests.fixtures.rows import over
from tests.fixtures.serve import Server, recipe_serve
from tests.nightly.attack import api, injection, load
from tests.nightly.attack.readers import Shell
from tests.nightly.attack.texts import CASES, fields


def named(case: str, name: str, payload: str) -> injection.Try:
    return CASES[case], fields(CASES[case])[name], payload


BARE, POD, COMPOSE = (
    replace(syntax, text=str)
    for syntax in (node_script.IN_SHELL, node_script.IN_KUBERNETES, node_script.IN_COMPOSE)
)


@over(
    "module, name, bare, place, says",
    [
        (node_script, "IN_SHELL", BARE, "environment", "ran: ['INJECTED']"),
        (by_hand, "IN_SHELL", BARE, "environment", "ran: ['INJECTED']"),
        (pod, "IN_KUBERNETES", POD, "option", "llminferenceservice"),
        (compose, "IN_COMPOSE", COMPOSE, "option", "Invalid interpolation"),
        (texts, "quote_go_template", str, "option", "llminferenceservice"),
    ],
)
def test_a_text_without_quotes_is_seen(module, name, bare, place, says, tmp_path, monkeypatch):
    monkeypatch.setattr(module, name, bare)
    attack = injection.Attack(shell=Shell(tmp_path))
    attack.attempt(*named("vllm", place, "{{ .Values }} $(HF_TOKEN) ${HOME} `touch INJECTED`"))
    attack.check_compose()
    assert any(says in failure for failure in attack.findings), attack.findings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with recipe_serve(folder, "--workers", "1", "--queue", "2") as running:
        yield running


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
