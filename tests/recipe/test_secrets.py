"""What is taken for a secret, and what of real engines and recipes is not."""

import json
from itertools import pairwise

import yaml

from recipe_core.base.resources import PACKAGE
from recipe_core.payload.launcher import redact
from recipe_core.payload.launcher.redact import Redactor
from recipe_core.recipe.secrets import is_secret, refuse_planted, refuse_secrets
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

HEX, MIXED = "0123456789abcdef" * 8, "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY" * 4


def filled(text):
    return text.format(mixed=MIXED, upper=MIXED.upper(), hex=HEX)


@over("form", table("secrets", "forms"))
def test_a_secret_is_known_by_its_form(form):
    text = filled(form)
    assert is_secret("environment.NOTE", text)
    redactor = Redactor({})
    left = redactor.text(text)  # what a bundle may not hold, no report shows
    assert redactor.count
    assert not any(part in left for part in (text, "swordfish", "c3dv", MIXED[:9], HEX[:9]))
    for value in (text, [{"deep": text}], {text: 1}):
        assert text not in str(refusal(refuse_secrets, {"request": value}))


@over("name", table("secrets", "names"))
def test_a_secret_is_known_by_its_name(name):
    assert is_secret(f"environment.{name}", "swordfish")
    assert "swordfish" not in Redactor({}).text(f"{name}=swordfish, next")
    assert "sword" not in Redactor({name: "sword-fish-1"}).text("logged sword-fish-1")
    values = {"environment": {name: "swordfish"}}
    error = refusal(refuse_secrets, values, by_name=("environment",))
    assert name in str(error)
    assert "swordfish" not in str(error)


def test_a_key_of_random_letters_is_a_secret_and_a_setting_or_option_is_none():
    for name in ("FERNET_KEY", "APP_KEY", "salt"):
        assert is_secret(f"environment.{name}", MIXED[:32])
        assert is_secret(f"environment.{name}", HEX[:32])
    settings = [(name, filled(text)) for name, text in table("secrets", "pass")]
    assert [pair for pair in settings if is_secret(f"environment.{pair[0]}", pair[1])] == []
    names = {}
    for path in sorted((PACKAGE / "engines" / "options").glob("*.yaml")):
        for name, option in (yaml.safe_load(path.read_text()).get("options") or {}).items():
            texts = {"/models/x", "128", "auto", *map(str, option.get("choices", ()))}
            switch = option.get("type") == "switch"
            names.setdefault(name.lstrip("-"), set()).update({"true"} if switch else texts)
    assert len(names) > 500
    taken = {
        name
        for name, texts in names.items()
        if any(is_secret(f"options.{name}", text) for text in texts)
    }
    assert taken == {*table("secrets", "options")}


def test_no_published_command_or_file_of_a_target_is_taken_for_a_secret():
    lines = (ROOT / "tests" / "data" / "commands.jsonl").read_text().splitlines()
    assert len(lines) > 10
    for command in (json.loads(line)["command"] for line in lines):
        assert not is_secret("command", command)
        for name, value in pairwise(command.replace("=", " ").split()):
            # a variable where a secret stands is left out, rightly
            known = value.startswith("$") or not is_secret(f"options.{name.strip('-')}", value)
            assert known, (name, value)
    files = [path for path in (ROOT / "tests" / "goldens").rglob("*") if path.is_file()]
    assert len(files) > 50
    for path in [*files, *sorted((ROOT / "docs").rglob("*.md")), *PACKAGE.rglob("*.yaml")]:
        for line in path.read_text().splitlines():
            assert not is_secret("line", line), (path, line)


def test_passwords_of_this_machine_are_found_and_words_not(monkeypatch):
    monkeypatch.setenv("PGPASS", "tr0ub4dor-and-3")
    error = refusal(refuse_planted, {"README.md": b"connect with tr0ub4dor-and-3"})
    assert "PGPASS" in str(error)
    assert "tr0ub4dor" not in str(error)
    monkeypatch.setenv("DB_PASSWORD", b"swordfish\xff".decode(errors="surrogateescape"))
    assert "DB_PASSWORD" in str(refusal(refuse_planted, {"file": b"swordfish\xff"}))
    monkeypatch.setenv("DESKTOP_SESSION", "kubernetes")
    monkeypatch.setenv("REGISTRY_AUTH", "required")
    monkeypatch.setenv("DISABLE_TOKEN", "disabled")
    refuse_planted({"README.md": b"kubernetes is required, nothing is disabled"})


@over("piece", table("secrets", "pieces"))
def test_a_long_text_is_read_to_its_end(piece):
    """Of 400 kB, which a quadratic pattern would read for hours; what follows is still seen."""
    text = piece * (400_000 // len(piece))
    assert redact.secret_kind(f"{text} {filled('hf_{mixed:.34}')}")
