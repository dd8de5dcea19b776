"""The API key of the servers: read from its variable, sent by whoever asks, and found nowhere."""

import threading
from functools import partial
from http.server import ThreadingHTTPServer

import pytest

from recipe_core.payload.launcher import bench, rolling
from recipe_core.payload.launcher.api import Api, api_headers
from recipe_core.payload.launcher.checks import Situation, check_key
from recipe_core.payload.launcher.client import Endpoint
from recipe_core.payload.launcher.errors import InputError, RequestError
from recipe_core.payload.launcher.health import Observer
from recipe_core.payload.launcher.plan import load_plan
from recipe_core.payload.launcher.redact import Redactor
from tests.fixtures.fake_server import Answering
from tests.fixtures.rows import over, table

VARIABLE, KEY = "SERVER_API_KEY", "k3y-of-the-servers-0123456789"
ROWS = partial(table, "keys")
TEXT = [{"choices": [{"text": "a", "finish_reason": "stop"}]}, "[DONE]"]


class Keyed(Answering):
    """Answers whoever has the key, and repeats to others what they sent."""

    def do_POST(self):  # noqa: N802 - the name in the base class
        self.body()
        given = self.headers.get("Authorization", "nothing")
        if given == f"Bearer {KEY}" and self.path != "/embed":
            return self.stream(TEXT)
        said = (401, {"error": given}) if given != f"Bearer {KEY}" else (200, [[0.5, 0.25]])
        return self.answer(*said)

    def do_GET(self):  # noqa: N802
        self.answer(200 if self.headers.get("Authorization") == f"Bearer {KEY}" else 401, {})


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Keyed) as keyed:
        threading.Thread(target=keyed.serve_forever, args=(0.02,), daemon=True).start()
        yield keyed.server_address
        keyed.shutdown()


@over("held, hint", ROWS("held"))
def test_all_are_asked_with_the_key_or_say_what_to_set(held, hint, server, bundle, monkeypatch):
    bundle.edit(lambda data: data["api"].update(key_variable=VARIABLE))
    plan, observer = load_plan(bundle.root), Observer()
    if held:
        monkeypatch.setenv(VARIABLE, KEY if held == "K" else held)
    for path in ("/v1/completions", "/embed"):
        endpoint = Endpoint(*server, Api(path, "m", {}, VARIABLE))
        if hint is None:
            assert bench.send_prompt(endpoint, "words", 1).output_tokens == 1
            assert observer.get(plan, server[1], "/metrics") == "{}"
            assert rolling._ask_router(rolling.HERE, plan, server[1], "GET", "/workers")[0] == 200
            continue
        with pytest.raises(RequestError, match="HTTP 401") as caught:
            bench.send_prompt(endpoint, "words", 1)
        assert hint.replace("V", VARIABLE) in caught.value.hint
        assert str(held) not in str(caught.value)
    unknown = Endpoint(*server, Api("/embed", "m", {}))
    with pytest.raises(RequestError, match="this bundle does not know"):
        bench.send_prompt(unknown, "words", 1)


def test_a_key_that_no_header_carries_is_refused_without_a_word_of_it():
    for value in ("two words", "line-end\n", "schlüssel"):
        with pytest.raises(InputError, match=VARIABLE) as caught:
            api_headers(Api("/", "m", {}, VARIABLE), {VARIABLE: value})
        assert value.strip() not in str(caught.value)
    assert api_headers(Api("/", "m", {}, VARIABLE), {VARIABLE: ""}) == {}
    assert KEY not in Redactor({VARIABLE: KEY}).text(f"log: {KEY}")
    assert "123456789012" not in Redactor({VARIABLE: "123456789012"}).text("log: 123456789012")


@over("api, host, held, status, words", ROWS("checked"))
def test_nothing_starts_without_a_key_that_is_needed(api, host, held, status, words, bundle):
    said = {"key_variable": VARIABLE, "key_needed": False} | api
    bundle.edit(lambda data: data["api"].update(said))
    plan = load_plan(bundle.root, host=host)
    found = [*check_key(Situation(plan, None), {VARIABLE: held} if held else {})]
    assert [check.status for check in found] == ([status] if status else [])
    assert all(words.replace("V", VARIABLE) in f"{one.detail} {one.hint}" for one in found)
