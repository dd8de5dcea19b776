"""An engine without a model that fails as real ones do, when files in a folder say so.

It starts ranks as processes of their own: one that dies takes the server with it, one that is
stopped lets it answer without a new token, and none ends with its server. One request seems to run
all the time. Files in ``--conditions``: ``version`` (another than 1.0 does not know an option),
``devices`` (how many there are), ``slow-start`` (seconds), ``stuck``, ``slow``, ``deaf`` (as
``stuck``, but no request seems to run: its core hangs while idle), and those that are used up at
once: ``out-of-memory``, ``device-error``, ``end``, ``flood`` (as many MB into the log).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.fixtures import fake_server

STEP_S, SLOW_S = 0.02, 0.3
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


class Handler(fake_server.Handler):
    options = argparse.Namespace(metrics=True)

    def complete(self, _: object) -> None:
        before = fake_server.Handler.tokens
        while before == fake_server.Handler.tokens:  # one token, as soon as the ranks make any
            time.sleep(STEP_S)
        self.answer(200, {"choices": [{"text": "fine"}]})

    def log_message(self, *_: object) -> None:
        """Nothing: the disk may be full."""


def step(conditions: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Count tokens in lock step with the ranks, until something happens."""
    name, counts = f"(EngineCore pid={os.getpid()}) ERROR", fake_server.Handler
    while True:
        for condition, words in LAST_WORDS.items():
            if used_up(conditions / condition):
                say(f"{name} [core.py:710] {words}")
                os._exit(1)
        if used_up(conditions / "end"):
            os._exit(0)
        with suppress(OSError, ValueError):
            flood(int((conditions / "flood").read_text()))
            used_up(conditions / "flood")
        deaf = (conditions / "deaf").exists()
        counts.running = int(not deaf)
        if deaf or (conditions / "stuck").exists():
            time.sleep(STEP_S)
            continue
        began = time.monotonic()
        time.sleep(SLOW_S if (conditions / "slow").exists() else STEP_S)
        for rank in ranks:
            if not answers(rank):
                say(f"{name} Worker proc {rank.pid} died unexpectedly")
                os._exit(1)
        counts.seconds += time.monotonic() - began
        counts.tokens += 1


def flood(megabytes: int) -> None:
    """Lines of a hundred bytes, as fast as the disk takes them."""
    for _ in range(megabytes):
        say("\n".join(["flood " + "x" * 93] * 10_000))


def used_up(condition: Path) -> bool:
    try:
        condition.unlink()
    except OSError:
        return False
    return True


def answers(rank: subprocess.Popen[bytes]) -> bool:
    try:
        rank.stdin.write(b"x")
        return bool(rank.stdout.read(1))
    except OSError:
        return False


def be_rank() -> None:
    """Answer every step; without its server it stays, as a process that a device holds does."""
    while piece := sys.stdin.buffer.read(1):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    time.sleep(600)


def check(conditions: Path, model: Path, devices: int) -> None:
    """What engines look at before they serve; ends the process where it does not suit them."""
    if (conditions / "version").read_text().split()[-1] != "1.0":
        say("usage: engine serve [options]\nengine: error: unrecognized arguments: --ranks 2")
        sys.exit(2)
    if devices > len((conditions / "devices").read_text().split()):
        say("torch.AcceleratorError: CUDA error: invalid device ordinal")
        sys.exit(1)
    if (conditions / "slow-start").exists():
        time.sleep(random.uniform(0, float((conditions / "slow-start").read_text())))
    weights = (model / "model.safetensors").read_bytes()
    try:
        json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    except ValueError:
        say("Traceback (most recent call last):")
        say("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge")
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--conditions", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--devices", type=int)
    options = parser.parse_args()
    say("engine starts")
    check(options.conditions, options.model, options.devices)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    command = [sys.executable, __file__, "rank"]
    ranks = [subprocess.Popen(command, **pipes) for _ in range(options.ranks)]
    threading.Thread(target=step, args=(options.conditions, ranks), daemon=True).start()
    server = fake_server.Server(("127.0.0.1", options.port), Handler)
    say("Application startup complete.")
    server.serve_forever()


if __name__ == "__main__":
    be_rank() if sys.argv[1:] == ["rank"] else main()
