"""A short draw of ``tests/nightly/attack/injection.py``, and that it sees what it looks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.sizes import examples
from tests.nightly.attack import injection
from tests.nightly.attack.injection import Attack
from tests.nightly.attack.readers import Shell
from tests.nightly.attack.texts import PAYLOADS, SERVING, TRAINING, Case, Field, fields

VLLM, TORCH = SERVING[0], TRAINING[0]


def named(case: Case, name: str) -> Field:
    return next(place for place in fields(case) if place.name == name)


def test_texts_arrive_as_they_are_or_are_refused_by_name() -> None:
    tries = injection.drawn(examples(40, least=4), seed=7)
    worst = ["$(touch INJECTED)", "--trust-remote-code", "${HF_TOKEN:-x}", "{{ .Values }}"]
    places = [(VLLM, "option"), (VLLM, "environment"), (VLLM, "hub id"), (TORCH, "folder")]
    tries += [
        (case, named(case, name), payload)
        for (case, name), payload in zip(places, worst, strict=True)
    ]
    attack = injection.run(tries)
    assert attack.failures == []
    assert attack.tried == len(tries)
    assert attack.built >= 4
    assert attack.scripts > 4
    assert attack.compose


@pytest.mark.parametrize("module", ["node_script", "by_hand"])
def test_a_script_without_quotes_is_seen(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipe_core import targets
    from recipe_core.targets import fill

    bare = replace(fill.IN_SHELL, text=str)
    injection._PLAIN.clear()
    __import__(f"recipe_core.targets.{module}")
    monkeypatch.setattr(getattr(targets, module), "IN_SHELL", bare)
    attack = Attack()
    injection.attempt(attack, VLLM, named(VLLM, "environment"), "`touch INJECTED`", Shell(tmp_path))
    injection._PLAIN.clear()
    assert any("ran: ['INJECTED']" in failure for failure in attack.failures)


@pytest.mark.parametrize("language", ["kubernetes", "compose", "go_template"])
def test_a_manifest_without_escapes_is_seen(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipe_core.base import quoting
    from recipe_core.targets import containers, fill, pod

    monkeypatch.setattr(quoting, language, str)
    monkeypatch.setattr(pod, "IN_KUBERNETES", replace(fill.IN_KUBERNETES, text=quoting.kubernetes))
    monkeypatch.setattr(containers, "IN_COMPOSE", replace(fill.IN_COMPOSE, text=quoting.compose))
    injection._PLAIN.clear()
    attack = Attack()
    payload = "{{ .Values }} $(HF_TOKEN) ${HOME}"
    injection.attempt(attack, VLLM, named(VLLM, "option"), payload, Shell(tmp_path))
    injection.check_compose(attack)
    injection._PLAIN.clear()
    assert attack.failures


def test_every_kind_of_text_is_tried() -> None:
    assert len(PAYLOADS) == len(set(PAYLOADS)) > 100
    assert {case.engine for case in SERVING} >= {"vllm", "sglang", "tensorrt-llm", "llama-cpp"}
    assert len(injection.every()) > 50_000
