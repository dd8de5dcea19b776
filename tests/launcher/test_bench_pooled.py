"""Measuring servers of vectors and scores: each API is asked as it wants to be, and timed."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recipe_core.launcher.bench import ask
from recipe_core.launcher.client import Endpoint
from recipe_core.launcher.errors import RequestError
from recipe_core.launcher.plan import Api
from recipe_core.launcher.pooled import pool, question_of

ANSWERS = {
    "/v1/embeddings": {"data": [{"embedding": [0.1] * 8}], "usage": {"prompt_tokens": 5}},
    "/score": {"data": [{"score": 0.5}], "usage": {"prompt_tokens": 9}},
    "/embed": [[0.1] * 8],
    "/rerank": [{"index": 0, "score": 0.5}],
    "/v2/models/a/infer": {
        "outputs": [{"name": "embedding", "data": [0.1] * 8}, {"name": "tokens", "data": [7]}]
    },
    "/v2/models/odd/infer": {"outputs": []},
}
TOKENS = {"/v1/embeddings": 5, "/score": 9, "/embed": 4, "/rerank": 4, "/v2/models/a/infer": 7}


@pytest.fixture(scope="module")
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = json.dumps(ANSWERS[self.path]).encode()
            self.send_response(400 if b"bad" in body else 200)
            if self.path in ("/embed", "/rerank"):
                self.send_header("x-compute-tokens", "4")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.server_address
    made.shutdown()
    made.server_close()


def test_one_text_is_one_result_with_the_servers_own_count_of_tokens(server):
    for path, tokens in TOKENS.items():
        endpoint = Endpoint(*server, Api(path, "a", {}))
        sample = pool(endpoint, "some words", clock=iter([1.0, 3.0]).__next__)
        assert (sample.prompt_tokens, sample.output_tokens) == (tokens, 1), path
        assert (sample.ttft_s, sample.latency_s, sample.tpot_s) == (2.0, 2.0, None)
        assert ("score" in sample.text) == ("score" in json.dumps(ANSWERS[path]))


def test_a_refusal_and_an_answer_without_numbers_are_errors(server):
    with pytest.raises(RequestError, match="HTTP 400"):
        ask(Endpoint(*server, Api("/embed", "a", {})), "bad", 1)
    with pytest.raises(RequestError, match="the server sent"):
        ask(Endpoint(*server, Api("/v2/models/odd/infer", "a", {})), "words", 1)


def test_what_a_text_is_scored_against_is_an_input_of_its_own():
    asked = question_of(Api("/v2/models/a/infer", "a", {"query": "why"}), "because")
    assert [(place["name"], place["data"]) for place in asked["inputs"]] == [
        ("query", ["why"]),
        ("text", ["because"]),
    ]
