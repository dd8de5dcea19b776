"""Speed of the host: a small serving loop like an engine's, timed as a client sees it.

A thread runs decoder layers so small that their time is Python and the framework; an event loop in
another thread takes requests and sends a chunk of JSON for every token; a process reads them. What
such a loop costs on a busy machine is neither that of its kernels nor of its bytecode: threads wait
for the interpreter's lock and for a processor. Its times per layer, token and request over those on
the reference machine are what an engine's overheads are scaled by.
"""

from __future__ import annotations

import asyncio
import json
import math
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.errors import NoAnswer
from recipe_core.hardware.microbench.points import Deadline, log_spread

if TYPE_CHECKING:
    import torch

# Seconds of the loop, by part, on the machine on which the overheads of
# ``engines/serving/transformers.yaml`` were measured: there as on any machine they are a certain
# share of the engine's own (benchmarks/loop.py shows which).
REFERENCE = {"step_s": 0.12e-3, "layer_s": 0.40e-3, "sequence_s": 0.26e-3, "request_s": 3.5e-3}

LAYERS, SEQUENCES = (2, 8), (1, 4)
HIDDEN, HEADS, CONTEXT = 64, 2, 160
_CLIENT = Path(__file__).with_name("token_client.py")
_CHUNK = {
    "id": "cmpl-0",
    "object": "text_completion",
    "created": 0,
    "model": "reference",
    "choices": [{"index": 0, "text": " kitchen", "logprobs": None, "finish_reason": None}],
}
# Times that a chunk is read and written as JSON, about what a server's validating, copying and
# framing take: how long threads wait for the lock depends on how long each holds it.
_SERIALISED = 16
# Times that a request is read: servers route, validate and tokenise it.
_TAKEN_IN = 300


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Seconds of a step by layers and sequences, and of a request before its first step.

    ``spread``: of the logarithms of a step's time over rounds.
    """

    steps: dict[tuple[int, int], float]
    request_s: float
    spread: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Ratios:
    """Times of the loop over those of the reference: a layer's, a token's, a request's."""

    layers: float
    sequences: float
    requests: float


# How hard the ratios of a layer and of a token are held to that of whole steps, over the relative
# error of one step: a few noisy steps hardly tell them apart, and would give one of them all.
PULL = 0.3


def host_ratios(times: HostTimes) -> Ratios:
    """Return how slow this host is, part by part, by least squares over the steps.

    With ``c`` the mean ratio of whole steps, ``L`` and ``S`` solve ``step = c·step_s +
    L·layer_s·layers + S·sequence_s·sequences`` in relative errors, with a pull of both to ``c``.
    """
    base_s, layer_s, token_s = (REFERENCE[name] for name in ("step_s", "layer_s", "sequence_s"))
    cells = list(times.steps)
    measured = np.array([times.steps[cell] for cell in cells])
    layers, tokens = np.array(cells, dtype=float).T
    reference = base_s + layer_s * layers + token_s * tokens
    common = float(np.exp(np.mean(np.log(measured / reference))))
    rows = np.stack([layer_s * layers, token_s * tokens], axis=1) / measured[:, None]
    sides = 1 - common * base_s / measured
    rows = np.concatenate([rows, np.eye(2) * PULL / common])
    sides = np.concatenate([sides, np.full(2, PULL)])
    solved = np.linalg.lstsq(rows, sides, rcond=None)[0]
    slow, late = np.clip(solved, common / 3, common * 3)
    # one wait for a processor is most of a request's time: what steps show of it counts as much
    requests = math.sqrt(common * times.request_s / REFERENCE["request_s"])
    return Ratios(float(slow), float(late), requests)


class Layers:
    """Decoder layers of one row per sequence, written as model code writes them."""

    def __init__(self, count: int) -> None:
        import torch

        self.torch = torch
        torch.manual_seed(0)
        linear = torch.nn.Linear
        self.layers = [
            {
                name: linear(HIDDEN, HIDDEN, bias=False, dtype=torch.bfloat16)
                for name in ("q", "k", "v", "o", "gate", "up", "down")
            }
            for _ in range(count)
        ]
        width = HIDDEN // HEADS
        slots = 8 * CONTEXT
        self.caches = [
            torch.zeros(2, slots, HEADS, width, dtype=torch.bfloat16) for _ in range(count)
        ]
        self.weight = torch.ones(HIDDEN, dtype=torch.bfloat16)
        self.head = linear(HIDDEN, 256, bias=False, dtype=torch.bfloat16)
        self.rows = torch.randn(8, HIDDEN, dtype=torch.bfloat16)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """Root mean square normalisation, in 32 bit as models do it."""
        wide = x.to(self.torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * self.torch.rsqrt(variance + 1e-6)).to(x.dtype)

    def rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotary embedding."""
        half = x.shape[-1] // 2
        turned = self.torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + turned * sin

    def step(self, sequences: int) -> list[int]:
        """One step of so many sequences; their next tokens."""
        torch = self.torch
        with torch.no_grad():
            x, width = self.rows[:sequences], HIDDEN // HEADS
            angles = torch.arange(sequences).unsqueeze(-1) * torch.ones(width)
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
            write = torch.arange(sequences)
            read = torch.arange(sequences * CONTEXT)
            mask = torch.zeros(1, 1, sequences, sequences * CONTEXT, dtype=x.dtype)
            for layer, cache in zip(self.layers, self.caches, strict=True):
                h = self.norm(x)
                q, k, v = (layer[name](h).view(sequences, HEADS, width) for name in "qkv")
                q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
                cache[0].index_copy_(0, write, k)
                cache[1].index_copy_(0, write, v)
                keys, values = cache[0].index_select(0, read), cache[1].index_select(0, read)
                out = torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(0, 1).unsqueeze(0),
                    keys.transpose(0, 1).unsqueeze(0),
                    values.transpose(0, 1).unsqueeze(0),
                    attn_mask=mask,
                )
                flat = out.squeeze(0).transpose(0, 1).contiguous().reshape(sequences, HIDDEN)
                x = x + layer["o"](flat)
                h = self.norm(x)
                gated = torch.nn.functional.silu(layer["gate"](h)) * layer["up"](h)
                x = x + layer["down"](gated)
            tokens: list[int] = self.head(self.norm(x)).argmax(dim=-1).tolist()
        return tokens


@dataclass
class _Sequence:
    tokens_left: int
    deliver: Callable[[int], None]


@dataclass
class TokenLoop:
    """The loop: an engine's thread and a server's thread, for one client at a time."""

    step: Callable[[int], list[int]]
    waiting: queue.Queue[_Sequence | None] = field(default_factory=queue.Queue)
    port: int = 0

    def __enter__(self) -> TokenLoop:
        ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._engine, daemon=True),
            threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.waiting.put(None)
        self._loop.call_soon_threadsafe(self._closed.set)
        for thread in self._threads:
            thread.join()

    def _engine(self) -> None:
        running: list[_Sequence] = []
        while True:
            while not running or not self.waiting.empty():
                arrived = self.waiting.get()
                if arrived is None:
                    return
                running.append(arrived)
            for sequence, token in zip(running, self.step(len(running)), strict=True):
                sequence.tokens_left -= 1
                self._loop.call_soon_threadsafe(sequence.deliver, token)
            running = [sequence for sequence in running if sequence.tokens_left > 0]

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._closed.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r")[0]))
        for _ in range(_TAKEN_IN):
            request = json.loads(json.dumps(json.loads(body)))
        tokens: asyncio.Queue[int] = asyncio.Queue()
        self.waiting.put(_Sequence(request["max_tokens"], tokens.put_nowait))
        for index in range(request["max_tokens"]):
            chunk: dict[str, Any] = {**_CHUNK, "created": index, "token": await tokens.get()}
            for _ in range(_SERIALISED):
                text = json.dumps(json.loads(json.dumps(chunk)))
            writer.write(b"data: " + text.encode() + b"\n")
            await writer.drain()
        writer.close()


def client_times(port: int, sequences: int, tokens: int, timeout_s: float) -> tuple[float, float]:
    """Seconds to the first token and between tokens, as a client in another process sees them.

    Raises:
        NoAnswer: when the client fails or takes longer than ``timeout_s`` seconds.
    """
    argv = [sys.executable, "-I", str(_CLIENT), *map(str, (port, sequences, tokens))]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        message = f"the client of the host's benchmark failed: {error}."
        raise NoAnswer(message, hint="Profile again when the machine is less busy.") from None
    first_s, token_s = map(float, done.stdout.split())
    return first_s, token_s


def measure_host(deadline: Deadline, seconds: float, tokens: int = 24) -> HostTimes:
    """Times of the token loop, in rounds for about ``seconds``; at least one round.

    A round times few and many layers, with one and with several sequences; a layer's time is what
    more layers add, a sequence's what more sequences add.
    """
    ends = deadline.spent_s + seconds
    models = {count: Layers(count) for count in LAYERS}
    rounds: list[dict[tuple[int, int], tuple[float, float]]] = []
    while not rounds or (deadline.spent_s < ends and len(rounds) < 12):
        times = {}
        for count, model in models.items():
            with TokenLoop(model.step) as loop:
                for sequences in SEQUENCES:
                    times[count, sequences] = client_times(loop.port, sequences, tokens, 300.0)
        rounds.append(times)
    return host_times(rounds)


def host_times(rounds: list[dict[tuple[int, int], tuple[float, float]]]) -> HostTimes:
    """Medians over rounds of the time to the first token and of a step, by layers and sequences."""
    steps = {cell: median(times[cell][1] for times in rounds) for cell in sorted(rounds[0])}
    # of a request alone and of several that come together, which wait for each other
    waits = [times[cell][0] - times[cell][1] for times in rounds for cell in steps]
    spreads = [log_spread([times[cell][1] for times in rounds]) for cell in steps]
    return HostTimes(steps, max(median(waits), 1e-6), median(spreads), len(rounds))


def merge_host_times(measurements: list[HostTimes]) -> HostTimes:
    """Several measurements as one: geometric means, weighted by their rounds."""
    weights = np.array([times.rounds for times in measurements], dtype=float)
    weights /= weights.sum()

    def mean(values: list[float]) -> float:
        return float(np.exp(weights @ np.log(values)))

    steps = {
        cell: mean([times.steps[cell] for times in measurements]) for cell in measurements[0].steps
    }
    request_s = mean([times.request_s for times in measurements])
    spread = max(times.spread for times in measurements)
    return HostTimes(steps, request_s, spread, sum(times.rounds for times in measurements))
