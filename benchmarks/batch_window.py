"""A real encoder behind a real batcher, beside what `batch_window` predicts.

A small BERT of random weights is exported to ONNX, its batches are timed with ONNX Runtime on this
machine, and a thread that fills batches as Triton does serves random arrivals. ``python -m
benchmarks.batch_window`` prints latency and mean batch for some rates and windows, measured and
predicted from what batches took in the same run (a line through their sizes): others' work on the
machine slows both. Needs torch, transformers, onnx, onnxscript and onnxruntime.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from recipe_core.estimates.serving.batch_window import (
    Service,
    Window,
    arriving_batches,
    latency_percentiles,
)
from recipe_core.launch.serving import encoder_export

MOST, TOKENS = 16, 64
NAMES = ("input_ids", "attention_mask")


class Batcher:
    """Takes requests from any thread and runs them in batches, as Triton's dynamic batcher does."""

    def __init__(
        self, run: Callable[[list[Any]], list[Any]], max_batch: int, window_s: float
    ) -> None:
        self.run, self.max_batch, self.window_s = run, max_batch, window_s
        self.sizes: list[int] = []
        self.seconds: list[float] = []
        self._queue: list[tuple[float, Any, Future[Any]]] = []
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def send(self, value: Any) -> Future[Any]:
        """Queue one request."""
        out: Future[Any] = Future()
        with self._changed:
            self._queue.append((time.perf_counter(), value, out))
            self._changed.notify()
        return out

    def close(self) -> None:
        """Stop once the queue is empty."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            self.sizes.append(len(batch))
            began = time.perf_counter()
            results = self.run([value for _, value, _ in batch])
            self.seconds.append(time.perf_counter() - began)
            for (_, _, out), result in zip(batch, results, strict=True):
                out.set_result(result)

    def _next(self) -> list[tuple[float, Any, Future[Any]]] | None:
        """The next batch: full, or whose oldest request has waited the window; None at the end."""
        with self._changed:
            while True:
                if not self._queue and not self._open:
                    return None
                if self._queue:
                    left = self._queue[0][0] + self.window_s - time.perf_counter()
                    if len(self._queue) >= self.max_batch or left <= 0 or not self._open:
                        break
                    self._changed.wait(left)
                else:
                    self._changed.wait()
            batch, self._queue = self._queue[: self.max_batch], self._queue[self.max_batch :]
            return batch


def small_bert(folder: Path, hidden: int = 128, layers: int = 3) -> None:
    """A BERT of random weights, as a checkpoint."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)


def session(folder: Path) -> Any:
    """ONNX Runtime with the exported checkpoint, on one thread."""
    import onnxruntime

    module = encoder_export.load_encoder(str(folder), "embed", "fp32")
    path = folder / "model.onnx"
    encoder_export.to_onnx(module, NAMES, encoder_export.OUTPUTS["embed"], path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def runner(session: Any) -> Callable[[list[Any]], list[Any]]:
    """Return what runs a batch of equally long texts."""

    def run(rows: list[Any]) -> list[Any]:
        ids = np.stack(rows)
        return list(session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0])

    return run


def timed(run: Callable[[list[Any]], list[Any]], repeats: int = 7) -> Service:
    """Seconds of batches of every size, each the median of some."""
    row = np.arange(TOKENS, dtype=np.int64) + 4
    seconds = [0.0]
    for size in range(1, MOST + 1):
        run([row] * size)
        durations_s = []
        for _ in range(repeats):
            began = time.perf_counter()
            run([row] * size)
            durations_s.append(time.perf_counter() - began)
        seconds.append(median(durations_s))
    table = np.array([seconds])
    return Service(np.zeros_like(table), table)


def measure(
    run: Callable[[list[Any]], list[Any]], rate: float, window_s: float, count: int
) -> tuple[list[float], list[int], list[float]]:
    """Latencies of ``count`` random arrivals; sizes and seconds of batches."""
    batcher = Batcher(run, MOST, window_s)
    row = np.arange(TOKENS, dtype=np.int64) + 4
    draw, due, ends, waiting = random.Random(1), time.perf_counter(), [], []
    for _ in range(count):
        due += draw.expovariate(rate)
        time.sleep(max(due - time.perf_counter(), 0.0))
        came, out = time.perf_counter(), batcher.send(row)
        out.add_done_callback(lambda _, came=came: ends.append(time.perf_counter() - came))
        waiting.append(out)
    for out in waiting:
        out.result()
    batcher.close()
    return ends, batcher.sizes, batcher.seconds


def service_of(sizes: list[int], seconds: list[float]) -> Service:
    """A line through what batches of each size took."""
    slope, start = np.polyfit(sizes, seconds, 1) if len(set(sizes)) > 1 else (0.0, fmean(seconds))
    table = np.maximum(start + slope * np.arange(MOST + 1), 1e-6)[None, :]
    return Service(np.zeros_like(table), table)


def main() -> int:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        small_bert(Path(scratch))
        run = runner(session(Path(scratch)))
    service = timed(run)
    alone, full = service.device_s[0, 1], service.device_s[0, MOST]
    sys.stdout.write(f"a batch of 1: {alone * 1e3:.2f} ms, of {MOST}: {full * 1e3:.2f} ms\n")
    sys.stdout.write("load  window  latency ms, p99 measured  predicted     batch  predicted\n")
    for load in (0.2, 0.5, 0.7):
        for factor in (0.0, 1.0, 3.0):
            rate, window_s = load * MOST / full, float(factor * alone)
            ends, sizes, seconds = measure(run, rate, window_s, count=int(min(4000, 8 * rate)))
            waiting = Window.of(np.array([window_s]), np.array([MOST]), np.array([1]))
            load_case = np.array([rate]), service_of(sizes, seconds), waiting
            means = arriving_batches(*load_case)
            tail = latency_percentiles(*load_case, (99.0,))[0, 0]
            latency = means.wait_s[0] + means.service_s[0]
            sys.stdout.write(
                f"{load:4.0%} {window_s * 1e3:5.1f} ms {fmean(ends) * 1e3:10.2f} "
                f"{np.percentile(ends, 99) * 1e3:8.2f}   {latency * 1e3:8.2f} {tail * 1e3:8.2f}   "
                f"{fmean(sizes):7.2f} {means.mean[0]:8.2f}\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
