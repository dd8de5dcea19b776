# ruff: noqa: T201
"""A small OpenAI-compatible server without a model; the launcher's tests start it as the engine.

Every word of the prompt is a token, and five more stand for a chat template. Behaviour is chosen
on the command line, or later by a word in the file
``--orders``: ``exit``, ``sick`` (503), ``stuck`` (requests make no progress) or ``slow`` (ten times
the delay). With ``--metrics`` it publishes figures under vLLM's names.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Counts:
    """The figures of the engine; ``lock`` holds while they change."""

    lock = threading.Lock()
    running = 0
    tokens = 0
    seconds = 0.0

    @classmethod
    def text(cls) -> str:
        return (
            f"vllm:num_requests_running {cls.running}\n"
            "vllm:num_requests_waiting 0\n"
            f"vllm:generation_tokens_total {cls.tokens}\n"
            f"vllm:inter_token_latency_seconds_sum {cls.seconds}\n"
            f"vllm:inter_token_latency_seconds_count {cls.tokens}\n"
        )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        # One write: the end of the main thread must not come between a line and its end.
        os.write(sys.stdout.fileno(), f"{format % args}\n".encode())

    @property
    def order(self) -> str:
        path = self.options.orders
        return path.read_text().strip() if path and path.is_file() else ""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            text = Counts.text() if self.options.metrics else None
            return self.send_text(404 if text is None else 200, text or "")
        return self.answer(503 if "sick" in (self.options.behave, self.order) else 200, {})

    def send_text(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

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
        with Counts.lock:
            Counts.running += 1
        try:
            return self.stream(body, tokens)
        finally:
            with Counts.lock:
                Counts.running -= 1

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
        max_tokens = body["max_tokens"]
        for index in range(max_tokens):
            delay = self.options.delay * (10 if self.order == "slow" else 1)
            time.sleep(delay)
            while self.order == "stuck":
                time.sleep(0.05)
            with Counts.lock:
                Counts.tokens += 1
                Counts.seconds += delay
            self.event({"choices": [{"index": 0, "text": f"w{index} ", "finish_reason": None}]})
        if self.options.behave == "flaky" and "cook" in body.get("prompt", "").split()[:10]:
            self.event({"error": {"message": "out of plates"}})
        else:
            usage = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": max_tokens,
                "total_tokens": prompt_tokens + max_tokens,
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """As engines do: a client that hung up is no error, and leaves no traceback."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


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
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--orders", type=Path)
    parser.add_argument("--starts", type=Path, help="a file that counts starts by its letters")
    parser.add_argument("--dies-until", type=int, default=0, help="starts that fail")
    parser.add_argument("--worker", action="store_true", help="a child that shows no environment")
    options = parser.parse_args()
    if options.worker:
        # As engines do that name their processes: the kernel then shows no variables of theirs.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
    print("fake engine starting", flush=True)
    if options.starts:
        with options.starts.open("a") as file:
            file.write("x")
        if options.starts.stat().st_size <= options.dies_until:
            sys.exit("fatal: the oven is cold")
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
    if options.orders:
        threading.Thread(target=obey, args=[options.orders], daemon=True).start()
    server.serve_forever()


def obey(orders: Path) -> None:
    """End as a crashed program does once it is told to."""
    while True:
        if orders.is_file() and orders.read_text().strip() == "exit":
            orders.unlink()
            print("fatal: the oven exploded", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
