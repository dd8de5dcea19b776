"""An engine without a model that fails as real ones do, when files in a folder say so.

``serve`` starts ranks as processes of their own: one that dies takes the server with it, one that
is stopped lets it answer without a new token, and none ends with its server. ``route`` stands
before several. Files in ``--conditions``: ``version`` (another than 1.0 does not know an option),
``devices`` (how many there are), ``slow-start`` (seconds), ``stuck``, ``slow``, and those that are
used up at once: ``out-of-memory``, ``device-error``, ``end``.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STEP_S = 0.02
SLOW_S = 0.3
LAST_WORDS = {
    "out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB",
    "device-error": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
}


def say(text: str) -> None:
    """A line of the log; the engine goes on where it cannot be written."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class Engine:
    """Counts tokens in lock step with its ranks."""

    def __init__(self, conditions: Path, ranks: int) -> None:
        self.conditions = conditions
        self.tokens, self.spent = 0, 0.0
        command = [sys.executable, __file__, "rank"]
        self.ranks = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            for _ in range(ranks)
        ]

    def run(self) -> None:
        """Step until something happens."""
        while True:
            for name, words in LAST_WORDS.items():
                if self._use_up(name):
                    say(f"(EngineCore pid={os.getpid()}) ERROR [core.py:710] {words}")
                    os._exit(1)
            if self._use_up("end"):
                os._exit(0)
            if (self.conditions / "stuck").exists():
                time.sleep(STEP_S)
                continue
            began = time.monotonic()
            time.sleep(SLOW_S if (self.conditions / "slow").exists() else STEP_S)
            for rank in self.ranks:
                self._step(rank)
            self.spent += time.monotonic() - began
            self.tokens += 1

    def _use_up(self, name: str) -> bool:
        try:
            (self.conditions / name).unlink()
        except OSError:
            return False
        return True

    def _step(self, rank: subprocess.Popen[bytes]) -> None:
        try:
            rank.stdin.write(b"x")
            answer = rank.stdout.read(1)
        except OSError:
            answer = b""
        if not answer:
            say(f"(EngineCore pid={os.getpid()}) ERROR Worker proc {rank.pid} died unexpectedly")
            os._exit(1)


def handler_of(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(Quiet):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                tpot = f"vllm:inter_token_latency_seconds_sum {engine.spent}\n"
                tpot += f"vllm:inter_token_latency_seconds_count {engine.tokens}\n"
                counts = f"vllm:generation_tokens_total {engine.tokens}\n"
                gauges = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
                return self.answer(200, (tpot + counts + gauges).encode())
            return self.answer(200, b"{}")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, json.dumps({"choices": [{"text": "fine"}]}).encode())

    return Handler


def router_of(ports: list[int]) -> type[BaseHTTPRequestHandler]:
    turns = itertools.cycle(ports)

    class Handler(Quiet):
        def do_GET(self) -> None:
            self.answer(200, b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for _ in ports:
                connection = http.client.HTTPConnection("127.0.0.1", next(turns), timeout=10)
                try:
                    connection.request("POST", self.path, body)
                    return self.answer(200, connection.getresponse().read())
                except (OSError, http.client.HTTPException):
                    continue
                finally:
                    connection.close()
            return self.answer(503, b"{}")

    return Handler


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def be_rank() -> None:
    """Answer every step; without its server it stays, as a process that a device holds does."""
    while piece := sys.stdin.buffer.read(1):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    time.sleep(600)


def check(options: argparse.Namespace) -> None:
    """What engines look at before they serve; ends the process where it does not suit them."""
    conditions: Path = options.conditions
    if (conditions / "version").read_text().split()[-1] != "1.0":
        say("usage: engine serve [options]\nengine: error: unrecognized arguments: --ranks 2")
        sys.exit(2)
    there = len((conditions / "devices").read_text().split())
    if options.devices > there:
        say("torch.AcceleratorError: CUDA error: invalid device ordinal")
        sys.exit(1)
    if (conditions / "slow-start").exists():
        time.sleep(float((conditions / "slow-start").read_text()))
    weights = (options.model / "model.safetensors").read_bytes()
    header = weights[8 : 8 + int.from_bytes(weights[:8], "little")]
    try:
        json.loads(header)
    except ValueError:
        say("Traceback (most recent call last):")
        say("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge")
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve", "route", "rank"])
    parser.add_argument("--port", type=int)
    parser.add_argument("--conditions", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--devices", type=int, default=0)
    parser.add_argument("--to", default="")
    options = parser.parse_args()
    if options.command == "rank":
        return be_rank()
    say("engine starts")
    if options.command == "route":
        handler = router_of([int(port) for port in options.to.split(",")])
    else:
        check(options)
        engine = Engine(options.conditions, options.ranks)
        threading.Thread(target=engine.run, daemon=True).start()
        handler = handler_of(engine)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), handler)
    server.daemon_threads = True
    say("Application startup complete.")
    server.serve_forever()
    return None


if __name__ == "__main__":
    main()
