"""A model's config, asked of a hub that runs here and answers as no hub should."""

import json
import os
from functools import partial

import pytest
from huggingface_hub import constants

from recipe_core.base.errors import ModelError
from recipe_core.base.web import Deadline
from recipe_core.models import hub
from recipe_core.models.catalog import catalog_entry, load_model_spec
from recipe_core.models.hub import hub_config
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.web_servers import Clock, Handler, certificate_in, serving

TOKEN = "hf_of_nobody"
CONFIG = json.dumps(catalog_entry("Qwen/Qwen3-0.6B").config).encode()
TEXTS, PLACES, CODES = (table("hub", name) for name in ("texts", "places", "codes"))


class Hub(Handler):
    """How it answers is in the name of the model; ``asked``: what was asked, with which token."""

    def answer(self):
        self.asked.append((self.path, self.headers.get("Authorization")))
        name = self.path.split("/")[-4]
        if name in TEXTS:
            self.reply(200, TEXTS[name].encode("latin-1"))
        elif name in PLACES:
            self.reply(302, Location=PLACES[name])
        elif name in CODES:
            status, code = CODES[name]
            self.reply(status, b"not this", X_Error_Code=code)
        elif name == "away":
            self.reply(307, Location=f"https://{self.elsewhere}/v/owner/good/resolve/main/x")
        elif name == "cut":
            self.reply(200, CONFIG, Content_Length=str(len(CONFIG) + 9))
        elif name == "huge":
            self.reply(200, Content_Length=str(300 << 20))
        elif name == "endless":
            self.reply(200, b" " * (5 << 20), Content_Length="")
        elif name == "headers":
            self.reply(200, CONFIG, **{f"X-{number}": "1" for number in range(1000)})
        elif name == "dripping":
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
            self.drip(self.clock)
        elif name == "slow":
            self.drip(self.clock, b"H")
        else:
            self.reply(200, CONFIG, ETag='"../../../evil"', X_Repo_Commit="../../evil")


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What a hub was asked; it runs without TLS, and leads some of it to a server with TLS."""
    path = certificate_in(tmp_path)
    (tmp_path / "cache").mkdir()
    environment = {"SSL_CERT_FILE": str(path), "HF_TOKEN": TOKEN, "RECIPE_MODELS": ""}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(hub, "Deadline", partial(Deadline, clock=Clock()))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Hub, "asked", [], raising=False)
    monkeypatch.setattr(Hub, "clock", hub.Deadline.keywords["clock"], raising=False)
    hub_config.cache_clear()
    hub._SILENT.clear()
    with serving(Hub, path) as secure, serving(Hub) as address:
        monkeypatch.setattr(Hub, "elsewhere", secure, raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://{address}")
        yield Hub.asked
    hub_config.cache_clear()
    hub._SILENT.clear()


def test_a_config_comes_from_the_hub_and_leaves_nothing_on_the_disk(asked, tmp_path):
    for name in ("good", "renamed", "away"):
        assert load_model_spec(f"owner/{name}").parameters > 5e8
    load_model_spec("owner/good@refs/pr/1")
    load_model_spec("owner/good@refs/pr/1")
    assert [path for path, _ in asked] == [
        "/owner/good/resolve/main/config.json",
        "/owner/renamed/resolve/main/config.json",
        "/api/owner/good/config.json",
        "/owner/away/resolve/main/config.json",
        "/v/owner/good/resolve/main/x",
        "/owner/good/resolve/refs%2Fpr%2F1/config.json",
    ]
    tokens = [token for _, token in asked]
    assert tokens == [*[f"Bearer {TOKEN}"] * 4, None, f"Bearer {TOKEN}"]
    assert [*(tmp_path / "cache").iterdir()] == []
    assert hub_config("owner/constants") == {"a": None, "hidden_size": None}


@over("name, says", table("hub", "refused"))
def test_what_is_wrong_with_an_answer_is_said_by_name(name, says, asked):
    asked.clear()
    hub._SILENT.clear()
    error = refusal(load_model_spec, f"owner/{name}", kind=ModelError)
    assert says in str(error), str(error)
    assert error.field.startswith("model")
    assert (bool(error.hint), TOKEN in str(error)) == (True, False)
    # only where the name may be wrong are others proposed
    assert ("Available" in str(error)) == (name in ("gone", "bare", "private", "slow", "dripping"))
    assert len(asked) <= 6


def test_a_snapshot_answers_for_a_hub_that_does_not_and_a_silent_hub_is_left_alone(
    asked, monkeypatch, tmp_path
):
    folder = tmp_path / "cache" / "models--owner--down"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc" / "config.json").write_bytes(CONFIG)
    assert load_model_spec("owner/down").parameters > 5e8
    refusal(hub_config, "owner/dripping", kind=hub.NotOnHubError)
    before = len(asked)
    error = refusal(load_model_spec, "owner/good", kind=ModelError)
    assert "the hub cannot be reached: no whole answer within 10 s" in str(error)
    hub._SILENT.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refusal(load_model_spec, "owner/good", kind=ModelError)
    assert load_model_spec("owner/down").parameters > 5e8
    assert len(asked) == before
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert os.strerror(111) in str(refusal(load_model_spec, "owner/good", kind=ModelError))
