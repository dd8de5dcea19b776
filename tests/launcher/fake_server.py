# ruff: noqa: T201
"""A small OpenAI-compatible server without a model; the launcher's tests start it as the engine.

Every word of the prompt is a token, and five more stand for a chat template. Behaviour is chosen
on the command line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        print(format % args, flush=True)

    def do_GET(self) -> None:
        self.answer(503 if self.options.behave == "sick" else 200, {"status": "ok"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.options.behave == "refuse":
            return self.answer(400, {"error": {"message": "the model is asleep", "type": "bad"}})
        prompt = body.get("prompt") or body["messages"][0]["content"]
        tokens = len(prompt.split()) + 5
        if tokens > self.options.context:
            return self.answer(
                400, {"detail": f"{tokens} tokens is over the context of {self.options.context}"}
            )
        return self.stream(body, tokens)

    def answer(self, status: int, data: dict[str, Any]) -> None:
        payload = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def stream(self, body: dict[str, Any], prompt_tokens: int) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        wanted = body["max_tokens"]
        for index in range(wanted):
            time.sleep(self.options.delay)
            self.event({"choices": [{"index": 0, "text": f"w{index} ", "finish_reason": None}]})
        if self.options.behave == "flaky" and "cook" in body.get("prompt", "").split()[:10]:
            self.event({"error": {"message": "out of plates"}})
        else:
            usage = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": wanted,
                "total_tokens": prompt_tokens + wanted,
            }
            self.event(
                {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage}
            )
            self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, data: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(data).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--behave",
        default="ok",
        choices=["ok", "die", "hang", "sick", "refuse", "flaky", "die-later"],
    )
    parser.add_argument("--delay", type=float, default=0.002)
    parser.add_argument("--context", type=int, default=10_000)
    options = parser.parse_args()
    print("fake engine starting", flush=True)
    if options.behave == "die":
        sys.exit("fatal: no weights on this shelf")
    if options.behave == "hang":
        time.sleep(600)
    Handler.options = options
    server = Server(("127.0.0.1", options.port), Handler)
    if options.behave == "die-later":
        server.timeout = 0.2
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            server.handle_request()
        sys.exit("fatal: the oven went out")
    server.serve_forever()


if __name__ == "__main__":
    main()
