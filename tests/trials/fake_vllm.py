# ruff: noqa: T201
"""A program that is called as `vllm serve` is and answers as it does, without a model.

Its outputs and its speed follow from its options and from variables:

* ``FAKE_BEST_SEQS``: the ``--max-num-seqs`` at which a token takes 4 ms; each doubling or halving
  away from it adds 24 ms.
* ``FAKE_NOISE``: ``batch`` changes answers while several requests run, unless
  ``VLLM_BATCH_INVARIANT`` is 1; ``always`` changes some in every request.
* ``FAKE_DIES_AT``: with this ``--max-num-seqs`` it ends before it is ready.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERSION = "0.32.0"


def option(name: str, default: str) -> str:
    words = sys.argv
    return words[words.index(name) + 1] if name in words else default


SEQS = int(option("--max-num-seqs", "16"))
DTYPE = option("--dtype", "bfloat16")
BEST = int(os.environ.get("FAKE_BEST_SEQS", "0")) or SEQS
DELAY = 0.004 + 0.024 * abs(math.log2(SEQS / BEST))
NOISE = os.environ.get("FAKE_NOISE", "")
INVARIANT = os.environ.get("VLLM_BATCH_INVARIANT") == "1"
IN_FLIGHT = itertools.count()
GATE = threading.Lock()
RUNNING: set[int] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class' name
        pass

    def do_GET(self) -> None:
        self.answer({"status": "ok"})

    def answer(self, data: Any) -> None:
        payload = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = next(IN_FLIGHT)
        with GATE:
            RUNNING.add(number)
        try:
            self.complete(body)
        finally:
            with GATE:
                RUNNING.discard(number)

    def complete(self, body: dict[str, Any]) -> None:
        if body.get("stream"):
            self.stream(body)
            return
        time.sleep(0.01)  # requests that are sent at once meet
        together = len(RUNNING) > 1
        noisy = NOISE == "always" or (NOISE == "batch" and together and not INVARIANT)
        tokens, logprobs = outputs(body, noisy)
        told = {
            "tokens": tokens,
            "token_logprobs": logprobs,
            "top_logprobs": [
                {token: logprob, "other": math.log1p(-math.exp(logprob))}
                for token, logprob in zip(tokens, logprobs, strict=True)
            ],
        }
        choice = {"index": 0, "text": "".join(tokens), "logprobs": told, "finish_reason": "length"}
        self.answer({"choices": [choice if body.get("logprobs") else {**choice, "logprobs": None}]})

    def stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        wanted, asked = body["max_tokens"], len(body["prompt"].split())
        for index in range(wanted):
            time.sleep(DELAY)
            self.event({"choices": [{"index": 0, "text": f"w{index} ", "finish_reason": None}]})
        usage = {"prompt_tokens": asked, "completion_tokens": wanted}
        done = {"index": 0, "text": "", "finish_reason": "length"}
        self.event({"choices": [done], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, data: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(data).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def outputs(body: dict[str, Any], noisy: bool) -> tuple[list[str], list[float]]:
    """Tokens that follow from the prompt and the seed, and from nothing else where it is not noisy.

    A prompt that is read back is its own words. Another ``--dtype`` moves log-probabilities.
    """
    key = json.dumps([body["prompt"], body.get("seed"), body.get("temperature")])
    draw = random.Random(hashlib.sha256(key.encode()).digest())
    words = body["prompt"].split() if body.get("echo") else []
    tokens = [f"{word} " for word in words]
    tokens += [f"t{draw.randrange(100)} " for _ in range(body["max_tokens"])]
    if noisy:
        chaos = random.Random()
        if NOISE == "always" or chaos.random() < 0.5:
            tokens[len(tokens) // 2] = f"x{chaos.randrange(10**9)} "
    shift = 0.01 if DTYPE == "float32" else 0.0
    return tokens, [-0.5 - 0.001 * len(token) - shift for token in tokens]


def main() -> None:
    if "--version" in sys.argv:
        print(VERSION)
        return
    if os.environ.get("FAKE_DIES_AT") == str(SEQS):
        sys.exit("torch.OutOfMemoryError: CUDA out of memory")
    server = ThreadingHTTPServer(
        (option("--host", "127.0.0.1"), int(option("--port", "8000"))), Handler
    )
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
