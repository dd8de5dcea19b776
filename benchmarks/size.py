"""Time and memory of sizing a model on every device that a company can rent, and of edits of it.

    python benchmarks/size.py [ROUNDS]                    default 5
    python benchmarks/size.py --write docs/reference/performance.md

Every data-centre device with an offer, every engine whose times are fitted on it, two weight
formats, every count from 1 to 64 and every split of it. Prints one JSON object: medians over rounds
in one process, the first one of a fresh process (which reads all files), and of ``recipe size`` as
a whole process, as text and as JSON; the peak of its memory. Then seconds of processor time of the
whole answer as a page asks for it, in parts, and of edits one after another. Exits with 1 over a
limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIMITS = {"in_process_s": 1.0, "process_s": 2.0, "peak_gib": 1.0, "another_limit_cpu_s": 0.8}
LIMITS |= {"another_filter_cpu_s": 0.8}
BEGIN, END = "<!-- sized -->", "<!-- end of sized -->"
WORKLOAD = {"mode": "closed", "input_tokens": 2048, "output_tokens": 256, "concurrency": 128}
MODELS = ("meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b")


def request(model: str) -> dict[str, Any]:
    """A buyer's request over everything."""
    return {
        "model": model,
        "hardware": "any",
        "workload": WORKLOAD,
        "objective": {"limits": {"tpot_ms": 40, "ttft_ms": 3000}, "confidence": 0.9},
        "options": {"weight_dtypes": ["auto", "fp8"]},
    }


def in_process(model: str, rounds: int) -> dict[str, float]:
    """Seconds of the first sizing in this process, and the median of the next."""
    from recipe_core.request.size import SizeRequest
    from recipe_core.sizing.answer import Answer
    from recipe_core.sizing.size import size_devices

    size_request = SizeRequest.parse(request(model))
    sizing_s, answer_s = [], []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        sizing = size_devices(size_request)
        ranked = sizing.devices
        sizing_s.append(time.perf_counter() - start)
        Answer(sizing).to_json()
        answer_s.append(time.perf_counter() - start)
    return {
        "first_s": round(sizing_s[0], 3),
        "in_process_s": round(statistics.median(sizing_s[1:]), 3),
        "with_answer_s": round(statistics.median(answer_s[1:]), 3),
        "splits": sum(len(sized_device.plan) for sized_device in sizing.sized),
        "devices": len(sizing.sized),
        "holding": len(ranked),
    }


def as_edited(model: str) -> dict[str, float]:
    """Seconds of processor time of an answer in parts, and of edits: each from the first one."""
    from recipe_core.sizing.answer import answer_in_parts

    def asked(part: str = "", **fields: Any) -> dict[str, Any]:
        values = request(model) | {"hardware": {"any": {}}}
        return values | ({part: values[part] | fields} if part else {})

    edits = {
        "first_cpu_s": asked(),
        "another_limit_cpu_s": asked(
            "objective", limits={"tpot_ms": 30, "ttft_ms": 3000}, confidence=0.9
        ),
        "another_load_cpu_s": asked("workload", concurrency=160),
        "another_traffic_cpu_s": asked("workload", output_tokens=300),
        "another_filter_cpu_s": asked("hardware", any={"vendors": ["nvidia"]}),
    }
    out = {}
    for name, values in edits.items():
        start, parts, shares = time.process_time(), 0, {"sized": 0, "of": 1}
        while shares["sized"] < shares["of"]:
            parts += 1
            shares = answer_in_parts(values, parts)
        out[name] = round(time.process_time() - start, 3)
    return out


def as_process(model: str, rounds: int) -> dict[str, float]:
    """Median seconds of ``recipe size`` as a process, and its peak memory."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(request(model), file)
        file.flush()
        words = (sys.executable, "-m", "recipe_core", "size", file.name)
        out = {}
        for name, more in (("process_s", ()), ("process_json_s", ("--json",))):
            seconds = []
            for _ in range(rounds + 1):
                start = time.perf_counter()
                subprocess.run(
                    [*words, *more],
                    check=False,
                    stdout=subprocess.DEVNULL,
                    cwd=ROOT,
                    env=os.environ,
                )
                seconds.append(time.perf_counter() - start)
            out[name] = round(statistics.median(seconds[1:]), 3)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 << 20)
    return {**out, "peak_gib": round(peak, 3)}


def table(measured: dict[str, dict[str, float]]) -> str:
    """The figures as a table."""
    head = (
        "| model | devices | splits | in process | with ladders | `recipe size` | `--json` | peak |"
    )
    rows = [
        f"| {model} | {m['devices']} | {m['splits']:,} | {m['in_process_s']:.2f} s | "
        f"{m['with_answer_s']:.2f} s | {m['process_s']:.2f} s | {m['process_json_s']:.2f} s | "
        f"{m['peak_gib']:.2f} GiB |"
        for model, m in measured.items()
    ]
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows])


def main() -> int:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    measured = {
        model: in_process(model, arguments.rounds)
        | as_edited(model)
        | as_process(model, arguments.rounds)
        for model in MODELS
    }
    print(json.dumps(measured, indent=1))
    if arguments.write:
        text = arguments.write.read_text()
        before, rest = text.split(BEGIN)
        arguments.write.write_text(
            f"{before}{BEGIN}\n\n{table(measured)}\n\n{END}{rest.split(END)[1]}"
        )
    first = measured[MODELS[0]]
    return int(any(first[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
