"""Write the worked example of ``docs/physics.md``: one estimate by plain arithmetic.

    python scripts/worked_example.py            # write it
    python scripts/worked_example.py --check    # exit 1 when it is stale

Every number is computed here with Python floats from the data files (``hw_profiles/``,
``recipe_core/engines/serving/``, ``recipe_core/model/catalog/``): nothing of
``recipe_core/physics`` is called, only three constants of it are read.
``tests/test_worked_example.py`` holds the results against the library's estimate of the same
request. The formulas are those of a dense model on one device, in a closed loop; the script refuses
data for which they would not hold. It also counts the fitted numbers in the data files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from typing import Any

from recipe_core.base.documents import read_document, write_whole
from recipe_core.physics.serving.continuous_batching import ASTRAY, NODES, STEPS_AHEAD

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "physics.md"
PROFILES = ROOT / "hw_profiles"
ENGINES = ROOT / "recipe_core" / "engines" / "serving"
CATALOG = ROOT / "recipe_core" / "model" / "catalog"

MODEL, DEVICE, ENGINE = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", "vllm"
INPUT, OUTPUT, REQUESTS = 1024, 256, 16
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "hardware": {"device": DEVICE, "per_node": 1},
    "workload": {"input_tokens": INPUT, "output_tokens": OUTPUT, "concurrency": REQUESTS},
    "candidate": {"engine": ENGINE, "tp": 1, "pp": 1, "dp": 1},
}
B = 2  # bytes of a bf16 value
GIB = 2**30
CONTEXT_STEP = 1024  # the longest request is rounded up to a multiple of this
LAUNCHED = 9  # kernels of a dense layer: five of attention, four of the feed-forward
EXACT = 1e-12  # of a share of R: where the search ends


@dataclass(frozen=True)
class Model:
    """Llama's shape, in the notation of the page."""

    h: int
    f: int
    L: int
    n: int
    k: int
    d: int
    V: int


@dataclass(frozen=True)
class Roofline:
    """The four numbers of an operator family, and the engine's own time over the device's."""

    compute_efficiency: float
    memory_efficiency: float
    overhead_s: float
    smoothing: float
    engine: float
    source: str


@dataclass(frozen=True)
class Data:
    """All that is read."""

    model: Model
    memory_bytes: float
    reserved_bytes: float
    bandwidth: float
    peak: float
    rooflines: Mapping[str, Roofline]
    fraction: float
    context_bytes: float
    bytes_per_logit: float
    block: int
    max_tokens: int
    max_sequences: int
    overheads: Mapping[str, float]
    host: float


def read() -> Data:
    """The data files; raises SystemExit where the arithmetic of this script would not hold."""
    device = read_document(PROFILES / f"{DEVICE}.yaml")
    engine = read_document(ENGINES / f"{ENGINE}.yaml")
    config = read_document(CATALOG / f"{MODEL.replace('/', '--')}.yaml")["config"]
    needed(engine["memory"]["pool"] == "of-device", "vLLM's pool is a share of the device")
    needed(not engine["memory"].get("reserves", False), "vLLM admits by tokens so far")
    needed(engine["chunked_prefill"] and engine.get("mixes_prompts", True), "vLLM mixes prompts")
    needed(not config["tie_word_embeddings"], "embedding and head are two matrices")
    needed(config["vocab_size"] % 64 == 0, "the vocabulary needs no padding")
    runtime, architecture = device["runtime"], device["architecture"]
    memory_bytes = float(device["memory_bytes"]["value"])
    limits = max(
        (
            row
            for row in engine["batching"]
            if memory_bytes - float(device["reserved_bytes"]["value"])
            >= row["memory_at_least_bytes"]
            and architecture not in row.get("not_on", [])
        ),
        key=lambda row: float(row["memory_at_least_bytes"]),
    )
    times = engine.get("kernels", {}).get(architecture, {}).get("times", {})
    priors = read_document(PROFILES / "priors.yaml")["roofline"][runtime]

    def roofline(family: str) -> Roofline:
        own = device["roofline"].get(family, {})
        row = own.get("bf16") or own.get("any") or priors[family]
        engines = times.get(family, {})
        where = f"{DEVICE}.yaml" if own else "priors.yaml"
        return Roofline(
            float(row["compute_efficiency"]),
            float(row["memory_efficiency"]),
            float(row["overhead_s"]),
            float(row["smoothing"]),
            # norms and copies have no kernel of an engine's own
            1.0 if family == "elementwise" else float(engines.get("bf16", engines.get("any", 1))),
            f"{where}, {row['status']}",
        )

    families = ("gemm", "attention_prefill", "attention_decode", "elementwise")
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    overheads = {"launch_s": 0.0, "late_steps": 0.0, "bunched": 0.1, **engine["overheads"][runtime]}
    return Data(
        model=Model(
            hidden,
            int(config["intermediate_size"]),
            int(config["num_hidden_layers"]),
            heads,
            int(config["num_key_value_heads"]),
            int(config.get("head_dim", hidden // heads)),
            int(config["vocab_size"]),
        ),
        memory_bytes=memory_bytes,
        reserved_bytes=float(device["reserved_bytes"]["value"]),
        bandwidth=float(device["memory_bandwidth_bytes_per_s"]["value"]),
        peak=float(device["peak_flops_per_s"]["bf16"]["value"]),
        rooflines={family: roofline(family) for family in families},
        fraction=float(engine["memory"]["fraction"]["value"]),
        context_bytes=float(engine["memory"]["context_single_bytes"]["value"]),
        bytes_per_logit=float(engine["memory"]["sampler_bytes_per_logit"]["value"]),
        block=int(engine["memory"]["block_tokens"]),
        max_tokens=int(limits["max_batched_tokens"]),
        max_sequences=int(limits["max_num_seqs"]),
        overheads={name: float(value) for name, value in overheads.items() if _is_number(value)},
        host=float(times.get("host", {}).get("any", 1)),
    )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def needed(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"the data no longer say that {what}: this arithmetic needs another term")


# Memory


@dataclass(frozen=True)
class Memory:
    """Bytes of the one rank."""

    qkv: int
    o: int
    mlp: int
    norms: int
    weights: float
    usable: float
    layer_workspace: float
    sampler_workspace: float
    workspace: float
    pool: float
    token: float
    longest: int
    pool_tokens: int
    sequence: float
    limit: int


def memory(data: Data) -> Memory:
    m = data.model
    qkv, o = m.h * (m.n + 2 * m.k) * m.d, m.n * m.d * m.h
    mlp, norms = 3 * m.h * m.f, 2 * m.h
    weights = B * (m.L * (qkv + o + mlp + norms) + 2 * m.V * m.h)
    usable = data.memory_bytes - data.reserved_bytes
    layer = data.max_tokens * B * (3 * m.h + 3 * m.f)
    sampler = data.bytes_per_logit * data.max_sequences * m.V
    workspace = max(layer, sampler)
    pool = data.fraction * usable - weights - workspace - data.context_bytes
    token = m.L * 2 * m.k * m.d * B
    longest = ceil((INPUT + OUTPUT) / CONTEXT_STEP) * CONTEXT_STEP
    pool_tokens = floor(pool / (ceil(longest / data.block) * data.block * token) * longest)
    sequence = ceil((INPUT + OUTPUT) / data.block) * data.block * token
    limit = min(floor(pool_tokens / (INPUT + OUTPUT / 2)), data.max_sequences)
    needed(limit >= REQUESTS, f"the cache holds {REQUESTS} requests")
    return Memory(
        qkv, o, mlp, norms, weights, usable, layer, sampler, workspace, pool, token, longest,
        pool_tokens, sequence, limit,
    )  # fmt: skip


# One step


@dataclass(frozen=True)
class Operator:
    """A kernel, or a few alike: its work, how often a step runs it, and what it starts."""

    part: str
    name: str
    family: str
    flops: float
    moved: float
    count: int = 1
    starts: int = 1

    def compute_s(self, data: Data) -> float:
        return self.flops / (data.peak * data.rooflines[self.family].compute_efficiency)

    def memory_s(self, data: Data) -> float:
        return self.moved / (data.bandwidth * data.rooflines[self.family].memory_efficiency)

    def once_s(self, data: Data) -> float:
        shape = data.rooflines[self.family]
        r = shape.smoothing
        busy_s = (self.compute_s(data) ** r + self.memory_s(data) ** r) ** (1 / r)
        return shape.engine * (self.starts * shape.overhead_s + busy_s)

    def seconds(self, data: Data) -> float:
        return self.count * self.once_s(data)


def gemm(part: str, name: str, rows: float, inputs: int, outputs: int, count: int = 1) -> Operator:
    flops = 2 * rows * inputs * outputs
    moved = B * (inputs * outputs + rows * (inputs + outputs))
    return Operator(part, name, "gemm", flops, moved, count)


def operators(data: Data, decoding: float, prompts: float, prompt_tokens: float) -> list[Operator]:
    """All kernels of a step: ``decoding`` sequences, and chunks of prompts beside them."""
    m, rows = data.model, decoding + prompt_tokens
    sampled, kv = decoding + prompts, 2 * m.k * m.d * B  # bytes of a cached token in a layer
    context, prompt_context = INPUT + OUTPUT / 2, INPUT / 2
    cached, pairs, width = decoding * context, prompt_tokens * prompt_context, 2 * m.n * m.d
    values = (8 * m.h + 4 * m.n * m.d + 3 * m.f) * rows
    out = [
        gemm("qkv", "qkv", rows, m.h, (m.n + 2 * m.k) * m.d, m.L),
        gemm("o", "o", rows, m.n * m.d, m.h, m.L),
        gemm("mlp", "gate, up", rows, m.h, 2 * m.f, m.L),
        gemm("mlp", "down", rows, m.f, m.h, m.L),
        Operator("norms", "norms, residuals", "elementwise", values, values * B, m.L, 4),
        Operator("embedding", "embedding", "elementwise", 0, 2 * m.h * B * rows),
        gemm("head", "head", sampled, m.h, m.V),
    ]
    if decoding:
        flops, moved = 2 * width * cached, kv * cached + width * B * decoding
        name, family = "attention, cache", "attention_decode"
        out.insert(1, Operator("attention", name, family, flops, moved, m.L))
    if prompt_tokens:
        flops, moved = 2 * width * pairs, (width * B + 2 * kv) * prompt_tokens
        name, family = "attention, prompt", "attention_prefill"
        out.insert(1, Operator("attention", name, family, flops, moved, m.L))
    return out


def engine_s(data: Data, decoding: float) -> float:
    """The host's own time in a step."""
    o = data.overheads
    return data.host * (o["step_s"] + o["sequence_s"] * decoding + o["layer_s"] * data.model.L)


def launches_s(data: Data) -> float:
    """What the host needs to launch all kernels of a step with prompts."""
    return data.host * data.overheads["launch_s"] * LAUNCHED * data.model.L


@dataclass(frozen=True)
class Step:
    """A step: its kernels, their time together, what launching them adds, the engine's own time."""

    operators: Sequence[Operator]
    device_s: float
    launch_s: float
    engine_s: float

    @property
    def seconds(self) -> float:
        return self.device_s + self.launch_s + self.engine_s


def step(data: Data, decoding: float, prompts: float = 0, prompt_tokens: float = 0) -> Step:
    kernels = operators(data, decoding, prompts, prompt_tokens)
    device_s = sum(kernel.seconds(data) for kernel in kernels)
    launch_s = max(launches_s(data) - device_s, 0.0) if prompt_tokens else 0.0
    return Step(kernels, device_s, launch_s, engine_s(data, decoding))


# The closed loop

CHUNKS_NEEDED = "a prompt fits into one step"


@dataclass(frozen=True)
class Balance:
    """What follows from D sequences that decode, in a loop of R requests."""

    decoding: float
    step_s: float
    prompt_s: float
    interference_s: float
    mean_s: float
    rate: float
    group: float
    fixed_s: float
    added_s: float
    unqueued_s: float
    waiting: float
    coming: float
    least_s: float
    one_by_one_s: float
    most_s: float
    queue_s: float
    schedule_s: float
    request_s: float
    ttft_s: float
    resident: float


class Loop:
    """R requests in flight, each followed by the next one."""

    def __init__(self, data: Data) -> None:
        self.data, self.others = data, (REQUESTS - 1) / REQUESTS
        self.steps = OUTPUT - 1.0
        self.per_step = max(data.max_tokens / INPUT, 1.0)
        needed(data.max_tokens >= INPUT, CHUNKS_NEEDED)
        self.fullest = min(max(float(REQUESTS), 1.0), self.per_step)
        self.fullest_s = self.times(NODES[-1] * REQUESTS, REQUESTS)[1]

    def together(self, arriving: float) -> float:
        """Prompts in a step at ``arriving`` per decode step."""
        return min(max(arriving, 1.0), self.per_step)

    def times(self, decoding: float, arriving: float | None = None) -> tuple[float, float]:
        """Seconds of a decode step, and what a prompt adds to the step that it shares."""
        prompts = self.together(decoding / self.steps if arriving is None else arriving)
        batch = max(decoding, 1.0)
        alone = step(self.data, batch).seconds
        both = step(self.data, batch, prompts, prompts * INPUT).seconds
        return alone, (both - alone) / prompts

    def balance(self, decoding: float, times: tuple[float, float] | None = None) -> Balance:
        step_s, prompt_s = times or self.times(decoding)
        overheads = self.data.overheads
        interference_s = self.others * decoding / self.steps * prompt_s
        mean_s = step_s + interference_s
        rate = decoding / (self.steps * mean_s)
        ride_s = step_s + prompt_s
        unqueued_s = self.others / 2 * mean_s + ride_s
        coming = self.others * rate
        waiting = coming * (unqueued_s - ride_s / (2 * self.per_step))
        group = self.together(decoding / self.steps)
        if self.fullest > group:
            added_s = (self.fullest * self.fullest_s - group * prompt_s) / (self.fullest - group)
            added_s = min(max(added_s, 0.0), prompt_s)
        else:
            added_s = prompt_s
        fixed_s = group * (prompt_s - added_s)
        rest_s = self.others * (1 - 1 / group) * fixed_s

        def ahead(start_s: float, each_s: float) -> float:
            return (waiting + coming * start_s) / max(1 - coming * each_s, 1e-9)

        most = self.others * REQUESTS
        one_by_one_s = min(ahead(0.0, prompt_s), most) * prompt_s
        count = max(
            min(ahead(0.0, fixed_s + added_s), ahead(STEPS_AHEAD * fixed_s + rest_s, added_s)),
            ahead(0.0, fixed_s / self.fullest + added_s),
        )
        count = min(count, most)
        before = max(min(count, STEPS_AHEAD), count / self.fullest)
        most_s = rest_s + added_s * count + fixed_s * before
        queue_s = min(max(one_by_one_s, rest_s), most_s)
        request_s = overheads["request_s"] + overheads["input_token_s"] * INPUT
        schedule_s = (self.others / 2 + overheads["late_steps"]) * mean_s
        ttft_s = request_s + unqueued_s + queue_s + overheads["late_steps"] * mean_s
        return Balance(
            decoding, step_s, prompt_s, interference_s, mean_s, rate, group, fixed_s, added_s,
            unqueued_s, waiting, coming, rest_s, one_by_one_s, most_s, queue_s, schedule_s,
            request_s, ttft_s, rate * ttft_s + decoding,
        )  # fmt: skip

    def solve(self) -> Balance:
        """The D at which the loop holds R requests.

        Steps are interpolated between nodes; where that is astray, the solution is a node more.
        """
        nodes = {share * REQUESTS: self.times(share * REQUESTS) for share in NODES}
        while True:
            decoding = bisect(
                lambda d: self.balance(d, between(nodes, d)).resident - REQUESTS, REQUESTS
            )
            found = self.balance(decoding)
            if abs(found.resident - REQUESTS) <= ASTRAY * REQUESTS:
                return found
            nodes[decoding] = found.step_s, found.prompt_s


def between(nodes: Mapping[float, tuple[float, float]], at: float) -> tuple[float, float]:
    """Both times on the line between the nodes beside a place; the lowest line goes on to zero."""
    places = sorted(nodes)
    low, high = next(
        (pair for pair in pairwise(places) if at < pair[1]),
        (places[-2], places[-1]),
    )
    share = (at - low) / (high - low)
    step_s, prompt_s = (a + share * (b - a) for a, b in zip(nodes[low], nodes[high], strict=True))
    return max(step_s, 1e-12), max(prompt_s, 1e-12)


def bisect(excess: Callable[[float], float], high: float) -> float:
    low = 0.0
    while high - low > EXACT * REQUESTS:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high


# From the steady state to the client


@dataclass(frozen=True)
class Served:
    """What the client sees, with what a loop's first, bunched prompts change."""

    group: float
    bunch_step_s: float
    bunch_ahead_s: float
    behind_s: float
    together: float
    first_s: float
    schedule_s: float
    ahead_s: float
    request_s: float
    ttft_s: float
    decode_s: float
    interference_s: float
    tpot_s: float
    latency_s: float
    rate: float
    output_tokens_per_s: float


def served(data: Data, loop: Loop, state: Balance) -> Served:
    share = data.overheads["bunched"]
    group = min(loop.per_step, REQUESTS)
    bunch_step_s = step(data, 0, group, group * INPUT).seconds
    bunch_ahead_s = max((REQUESTS - group) / 2, 0.0) * bunch_step_s / group
    behind_s = min(bunch_ahead_s / loop.steps, state.interference_s)
    together = 1 - share + share * loop.times(REQUESTS)[0] / state.step_s
    first_s = (1 - share) * (state.step_s + state.prompt_s) + share * bunch_step_s
    schedule_s = (1 - share) * state.schedule_s
    ahead_s = (1 - share) * state.queue_s + share * bunch_ahead_s
    ttft_s = first_s + schedule_s + ahead_s + state.request_s
    decode_s = together * state.step_s
    interference_s = (1 - share) * state.interference_s + share * behind_s
    tpot_s = decode_s + interference_s
    latency_s = ttft_s + loop.steps * tpot_s
    rate = REQUESTS / latency_s
    return Served(
        group, bunch_step_s, bunch_ahead_s, behind_s, together, first_s, schedule_s, ahead_s,
        state.request_s, ttft_s, decode_s, interference_s, tpot_s, latency_s, rate, rate * OUTPUT,
    )  # fmt: skip


# The page


def digits(x: float, count: int = 4) -> str:
    """So many significant digits, without an exponent, thousands separated."""
    if x == 0:
        return "0"
    text = f"{x:.{count}g}"
    if "e" in text:
        text = f"{float(text):.20f}".rstrip("0")
    whole, _, rest = text.partition(".")
    return f"{int(whole):,}" + (f".{rest.rstrip('0')}" if rest.strip("0") else "")


def ms(seconds: float) -> str:
    return f"{digits(seconds * 1e3)} ms"


def us(seconds: float) -> str:
    return f"{digits(seconds * 1e6)} µs"


def gib(size: float) -> str:
    return f"{digits(size / GIB)} GiB"


def aligned(*rows: tuple[str, str, str]) -> list[str]:
    """Lines of code: what, its formula with numbers, the result."""
    width = max(len(name) for name, _, _ in rows)
    return ["```", *(f"{name:{width}}  {text}  =  {result}" for name, text, result in rows), "```"]


def constants_table(data: Data) -> list[str]:
    o = data.overheads
    rows = [
        f"`P_peak` {digits(data.peak / 1e12)} TFLOP/s, `BW` {digits(data.bandwidth / 1e12)} TB/s, "
        f"memory of a process {gib(data.memory_bytes - data.reserved_bytes)} "
        f"| `{DEVICE}.yaml`, datasheet; memory measured"
    ]
    for family, shape in data.rooflines.items():
        kernel = "" if shape.engine == 1 else f", `w` {digits(shape.engine)}"
        rows.append(
            f"`{family}`: `e_c` {digits(shape.compute_efficiency)}, "
            f"`e_m` {digits(shape.memory_efficiency)}, `t0` {us(shape.overhead_s)}, "
            f"`r` {digits(shape.smoothing)}{kernel} | `{shape.source.replace(', ', '`, ')}"
        )
    rows += [
        f"`step_s` {us(o['step_s'])}, `sequence_s` {us(o['sequence_s'])}, "
        f"`layer_s` {us(o['layer_s'])}, `launch_s` {us(o['launch_s'])}, "
        f"`w` of `host` {digits(data.host)} | `{ENGINE}.yaml`, fitted",
        f"`request_s` {ms(o['request_s'])}, `input_token_s` {us(o['input_token_s'])}, "
        f"`late_steps` {digits(o['late_steps'])}, `bunched` {digits(o['bunched'])} "
        f"| `{ENGINE}.yaml`, fitted",
        f"at most {data.max_tokens:,} tokens and {data.max_sequences:,} sequences a step, "
        f"share of the device {data.fraction:g}, {data.bytes_per_logit:g} B a logit, "
        f"{data.context_bytes / GIB:.2f} GiB outside torch "
        f"| `{ENGINE}.yaml`, published; the last two fitted and measured",
    ]
    return ["| constants | from |", "|---|---|", *(f"| {row} |" for row in rows)]


def memory_lines(data: Data, m: Memory) -> list[str]:
    s, longest = data.model, f"{m.longest:,}"
    layer = m.qkv + m.o + m.mlp + m.norms
    return aligned(
        ("qkv", f"h·(n + 2k)·d = {s.h:,}·({s.n} + 2·{s.k})·{s.d}", f"{m.qkv:,}"),
        ("o", f"n·d·h = {s.n}·{s.d}·{s.h:,}", f"{m.o:,}"),
        ("feed-forward", f"3·h·f = 3·{s.h:,}·{s.f:,}", f"{m.mlp:,}"),
        ("norms", f"2·h = 2·{s.h:,}", f"{m.norms:,}"),
        ("weights", f"b·(L·layer + 2·V·h) = {B}·({s.L}·{layer:,} + 2·{s.V:,}·{s.h:,})",
         f"{m.weights:,.0f} B = {gib(m.weights)}"),
        ("a layer", f"T_max·b·(3h + 3f) = {data.max_tokens:,}·{B}·(3·{s.h:,} + 3·{s.f:,})",
         gib(m.layer_workspace)),
        ("sampler", f"bytes_per_logit·S·V = {data.bytes_per_logit:g}·{data.max_sequences:,}"
         f"·{s.V:,}", gib(m.sampler_workspace)),
        ("workspace", "the larger of both", gib(m.workspace)),
        ("pool", f"M·fraction - weights - workspace - runtime = {data.fraction:g}·{gib(m.usable)} "
         f"- {digits(m.weights / GIB)} - {digits(m.workspace / GIB)} "
         f"- {digits(data.context_bytes / GIB)}", gib(m.pool)),
        ("a token", f"L·2·k·d·b = {s.L}·2·{s.k}·{s.d}·{B}", f"{m.token:,} B"),
        ("pool holds", f"floor(pool/({longest}·{m.token:,} B)·{longest})",
         f"{m.pool_tokens:,} tokens"),
        ("limit", f"min(floor({m.pool_tokens:,}/({INPUT:,} + {OUTPUT}/2)), "
         f"{data.max_sequences:,})", f"{m.limit} requests; {REQUESTS} are in flight"),
    )  # fmt: skip


def product_lines(data: Data, state: Balance) -> list[str]:
    s, shape = data.model, data.rooflines["gemm"]
    up = next(row for row in step(data, state.decoding).operators if row.name == "gate, up")
    rows, r = digits(state.decoding), digits(shape.smoothing)
    compute_s, memory_s = up.compute_s(data), up.memory_s(data)
    root = f"({digits(compute_s * 1e6)}^{r} + {digits(memory_s * 1e6)}^{r})^(1/{r})"
    formula, kernel = "t0 + (t_c^r + t_m^r)^(1/r)", ""
    if shape.engine != 1:
        formula, kernel = f"w·({formula})", f"{digits(shape.engine)}·"
    return aligned(
        ("F", f"2·T·h·2f = 2·{rows}·{s.h:,}·{2 * s.f:,}", f"{digits(up.flops / 1e9)} GFLOP"),
        ("Q", f"b·(h·2f + T·(h + 2f)) = {B}·({s.h:,}·{2 * s.f:,} + {rows}·{s.h + 2 * s.f:,})",
         f"{digits(up.moved / 1e6)} MB"),
        ("t_c", f"F/(P_peak·e_c) = {digits(up.flops / 1e9)}e9/({digits(data.peak / 1e12)}e12·"
         f"{digits(shape.compute_efficiency)})", us(compute_s)),
        ("t_m", f"Q/(BW·e_m) = {digits(up.moved / 1e6)}e6/({digits(data.bandwidth / 1e12)}e12·"
         f"{digits(shape.memory_efficiency)})", us(memory_s)),
        ("t", f"{formula} = {kernel}({digits(shape.overhead_s * 1e6)} + {root}) "
         "µs", us(up.once_s(data))),
    )  # fmt: skip


def step_table(data: Data, state: Balance) -> list[str]:
    batch = max(state.decoding, 1.0)
    alone = step(data, batch)
    both = step(data, batch, state.group, state.group * INPUT)
    beside = {kernel.name: kernel for kernel in alone.operators}
    rows = []
    for kernel in both.operators:
        decode = beside.get(kernel.name)
        work = [
            f"{digits(row.flops / 1e9)} | {digits(row.moved / 1e6)} | {us(row.once_s(data))} | "
            f"{digits(row.seconds(data) * 1e3)}"
            if row
            else "– | – | – | –"
            for row in (decode, kernel)
        ]
        rows.append(f"| {kernel.name} | {kernel.count} | {work[0]} | {work[1]} |")
    sums = [
        f"| device | | | | | {digits(alone.device_s * 1e3)} | | | | "
        f"{digits(both.device_s * 1e3)} |",
        f"| launches | | | | | – | | | | {digits(both.launch_s * 1e3)} |",
        f"| engine | | | | | {digits(alone.engine_s * 1e3)} | | | | "
        f"{digits(both.engine_s * 1e3)} |",
        f"| **step** | | | | | **{digits(alone.seconds * 1e3)}** | | | | "
        f"**{digits(both.seconds * 1e3)}** |",
    ]
    return [
        "| | × | GFLOP | MB | once | ms | GFLOP | MB | once | ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        *sums,
    ]


def host_lines(data: Data, state: Balance) -> list[str]:
    o, s = data.overheads, data.model
    batch = max(state.decoding, 1.0)
    both = step(data, batch, state.group, state.group * INPUT)
    host = "" if data.host == 1 else f"{digits(data.host)}·"
    return aligned(
        ("engine", f"w·(step_s + sequence_s·D + layer_s·L) = {host}({us(o['step_s'])} + "
         f"{us(o['sequence_s'])}·{digits(batch)} + {us(o['layer_s'])}·{s.L})", ms(both.engine_s)),
        ("launches", f"w·launch_s·{LAUNCHED}·L - device = {ms(launches_s(data))} - "
         f"{ms(both.device_s)}, at least 0", ms(both.launch_s)),
        ("Δ(D)", f"(step with g prompts - t(D))/g = ({ms(both.seconds)} - {ms(state.step_s)})/"
         f"{digits(state.group)}", ms(state.prompt_s)),
    )  # fmt: skip


def loop_lines(data: Data, loop: Loop, state: Balance) -> list[str]:
    o, others = data.overheads, f"{REQUESTS - 1}/{REQUESTS}"
    decoding, steps, load = (
        digits(state.decoding),
        f"{loop.steps:.0f}",
        state.coming * state.prompt_s,
    )
    ahead = state.one_by_one_s / state.prompt_s
    bounds = ""
    if state.fixed_s:
        bounds = f", between {digits(state.least_s * 1e3)} and {ms(state.most_s)}"
    return aligned(
        ("D", "from the search", f"{state.decoding:.6f}"),
        ("o, u", "s_out - 1 and (R - 1)/R", f"{steps} and {others}"),
        ("step", f"t(D) + u·D/o·Δ = {ms(state.step_s)} + {others}·{decoding}/{steps}·"
         f"{ms(state.prompt_s)}", ms(state.mean_s)),
        ("X", f"D/(o·step) = {decoding}/({steps}·{ms(state.mean_s)})",
         f"{digits(state.rate)} requests/s"),
        ("schedule", f"u/2·step = {others}/2·{ms(state.mean_s)}",
         ms(loop.others / 2 * state.mean_s)),
        ("ride", f"t(D) + Δ = {ms(state.step_s)} + {ms(state.prompt_s)}",
         ms(state.step_s + state.prompt_s)),
        ("G", f"T_max/s_in = {data.max_tokens:,}/{INPUT:,}",
         f"{digits(loop.per_step)} prompts fit into a step"),
        ("ahead", f"u·X·(schedule + ride - ride/2G)/(1 - u·X·Δ) = {digits(state.coming)}/s·"
         f"{ms(state.waiting / state.coming)}/(1 - {digits(load)})", f"{digits(ahead)} prompts"),
        ("queue", f"ahead·Δ = {digits(ahead)}·{ms(state.prompt_s)}{bounds}", ms(state.queue_s)),
        ("request", f"request_s + input_token_s·s_in = {ms(o['request_s'])} + "
         f"{us(o['input_token_s'])}·{INPUT:,}", ms(state.request_s)),
        ("late", f"late_steps·step = {digits(o['late_steps'])}·{ms(state.mean_s)}",
         ms(o["late_steps"] * state.mean_s)),
        ("W", "request + schedule + ride + queue + late", ms(state.ttft_s)),
        ("R", f"X·W + D = {digits(state.rate)}/s·{ms(state.ttft_s)} + {decoding}",
         f"{state.resident:.6f}; {REQUESTS} were asked for"),
    )  # fmt: skip


def client_lines(data: Data, loop: Loop, state: Balance, c: Served) -> list[str]:
    share, full_s, group = data.overheads["bunched"], loop.times(REQUESTS)[0], digits(c.group)
    bunched, spread = digits(share), digits(1 - share)
    return aligned(
        ("bunch", f"a step of min(G, R) = {group} prompts in which nothing decodes",
         ms(c.bunch_step_s)),
        ("before", f"(R - {group})/2·bunch/{group} = ({REQUESTS} - {group})/2·"
         f"{ms(c.bunch_step_s)}/{group}", ms(c.bunch_ahead_s)),
        ("behind", f"before/o = {ms(c.bunch_ahead_s)}/{loop.steps:.0f}, at most u·D/o·Δ",
         ms(c.behind_s)),
        ("first step", f"{spread}·ride + {bunched}·bunch = {spread}·"
         f"{ms(state.step_s + state.prompt_s)} + {bunched}·{ms(c.bunch_step_s)}", ms(c.first_s)),
        ("schedule", f"{spread}·(schedule + late) = {spread}·{ms(state.schedule_s)}",
         ms(c.schedule_s)),
        ("prompts ahead", f"{spread}·queue + {bunched}·before = {spread}·{ms(state.queue_s)} + "
         f"{bunched}·{ms(c.bunch_ahead_s)}", ms(c.ahead_s)),
        ("request", "as above", ms(c.request_s)),
        ("TTFT", "the sum of these four", ms(c.ttft_s)),
        ("decode", f"{spread}·t(D) + {bunched}·t(R) = {spread}·{ms(state.step_s)} + {bunched}·"
         f"{ms(full_s)}", ms(c.decode_s)),
        ("interference", f"{spread}·u·D/o·Δ + {bunched}·behind = {spread}·"
         f"{ms(state.interference_s)} + {bunched}·{ms(c.behind_s)}", ms(c.interference_s)),
        ("TPOT", "the sum of these two", ms(c.tpot_s)),
        ("latency", f"TTFT + o·TPOT = {ms(c.ttft_s)} + {loop.steps:.0f}·{ms(c.tpot_s)}",
         f"{digits(c.latency_s)} s"),
        ("throughput", f"R/latency·s_out = {REQUESTS}/{digits(c.latency_s)} s·{OUTPUT}",
         f"{digits(c.output_tokens_per_s)} tokens/s"),
    )  # fmt: skip


def example() -> str:
    """The block of the page."""
    data = read()
    loop = Loop(data)
    state, held, s = loop.solve(), memory(data), data.model
    client, shared = served(data, loop, state), []
    if not state.fixed_s:
        shared = [
            "Here one more prompt in a step costs no less than the first: sharing steps saves "
            "nothing, and `queue` is `ahead·Δ` itself."
        ]
    lines = [
        f"`{MODEL}` in bf16 on one `{DEVICE}` with vLLM, a closed loop of {REQUESTS} requests, "
        f"{INPUT:,} tokens in and {OUTPUT} out.",
        f"The model: h {s.h:,}, f {s.f:,}, L {s.L}, n {s.n}, k {s.k}, d {s.d}, V {s.V:,}; b = {B}.",
        "Numbers are printed with four digits and computed with all of them.",
        "",
        *constants_table(data),
        "",
        "**Memory.** What a process can allocate is the driver's total less what the driver keeps.",
        "",
        *memory_lines(data, held),
        "",
        f"**One product.** Gate and up projection of a decode step, T = D = "
        f"{digits(state.decoding)} rows:",
        "",
        *product_lines(data, state),
        "",
        f"**One step.** Left: D = {digits(state.decoding)} sequences decode at a context of "
        f"{INPUT:,} + {OUTPUT}/2 tokens. Right: the same beside g = "
        f"{digits(state.group)} prompt of {INPUT:,} tokens.",
        "Work and time of one kernel, how many a step runs, and their time together.",
        "",
        *step_table(data, state),
        "",
        *host_lines(data, state),
        "",
        "**The steady state.** Any D gives a rate, waits and a number of requests inside; the "
        "right D gives those asked for.",
        "The search interpolates t and Δ between three nodes, so it meets R closely rather than "
        "exactly.",
        *shared,
        "",
        *loop_lines(data, loop, state),
        "",
        f"**The client.** The share `bunched`, {digits(data.overheads['bunched'])}, of the "
        "prompts starts with the loop.",
        "",
        *client_lines(data, loop, state, client),
    ]
    return "\n".join(lines)


# How many numbers are fitted

ROOFLINE = (
    "compute_efficiency",
    "memory_efficiency",
    "overhead_s",
    "smoothing",
    "row_efficiency",
    "sort_s",
)
Row = tuple[str, str, int]


def is_fitted(row: Any) -> bool:
    return isinstance(row, Mapping) and row.get("status") == "fitted"


def fitted_operators() -> Row:
    """Each dtype of a family once: ``any`` repeats another where there are several."""
    fits = []
    for path in sorted(PROFILES.glob("*.yaml")):
        for by_dtype in (read_document(path).get("roofline") or {}).values():
            rows = {dtype: row for dtype, row in by_dtype.items() if dtype != "any"} or by_dtype
            fits += [(path.stem, row) for row in rows.values() if is_fitted(row)]
    devices = {device for device, _ in fits}
    where = f"`hw_profiles/*.yaml`, `roofline`: {len(fits)} families and dtypes of {len(devices)}"
    count = sum(name in row for _, row in fits for name in ROOFLINE)
    return "operators", f"{where} devices, 4 numbers each (`moe` 6)", count


def fitted_links() -> Row:
    fits = []
    for path in sorted((PROFILES / "fabrics").glob("*.yaml")):
        file = read_document(path)
        figures = (*file.values(), *(file.get("direct") or {}).values())
        fits += [path.stem for figure in figures if is_fitted(figure)]
    where = f"`hw_profiles/fabrics/*.yaml`: {len(set(fits))} fabrics, up to 3 numbers for the"
    return "links", f"{where} library and 3 for direct kernels", len(fits)


def fitted_engines() -> list[Row]:
    files = [read_document(path) for path in sorted(ENGINES.glob("*.yaml"))]
    overheads = [row for file in files for row in (file.get("overheads") or {}).values()]
    kernels = [row for file in files for row in (file.get("kernels") or {}).values()]
    overheads, kernels = [*filter(is_fitted, overheads)], [*filter(is_fitted, kernels)]
    folder = "`engines/serving/*.yaml`"
    own = sum(_is_number(value) for row in overheads for value in row.values())
    times = sum(len(by_dtype) for row in kernels for by_dtype in row["times"].values())
    logits = [(file.get("memory") or {}).get("sampler_bytes_per_logit") for file in files]
    return [
        ("engines' own time", f"{folder}, `overheads`: {len(overheads)} × engine and runtime", own),
        ("engines' kernels", f"{folder}, `kernels`: {len(kernels)} × engine and generation of "
         "devices", times),
        ("hand-over between pools", f"{folder}, `handoff_s`",
         sum(is_fitted(file.get("handoff_s")) for file in files)),
        ("sampler buffers", f"{folder}, `sampler_bytes_per_logit`", sum(map(is_fitted, logits))),
    ]  # fmt: skip


def fitted() -> str:
    """The table of fitted numbers, counted in the data files."""
    code = ("in the code", "`SPREAD`, `SORT_TOKENS`, `STEPS_AHEAD`", 3)
    table = [fitted_operators(), fitted_links(), *fitted_engines(), code]
    rows = [f"| {what} | {where} | {count} |" for what, where, count in table]
    return "\n".join(["| what | where | numbers |", "|---|---|---|", *rows])


BLOCKS: Mapping[str, Callable[[], str]] = {"fitted numbers": fitted, "worked example": example}


def renewed(text: str) -> str:
    """The page with its blocks written anew."""
    for name, block in BLOCKS.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise SystemExit(f"{PAGE.name} has no block between {begin} and {end}")
        text = f"{before}{begin}\n{block()}\n{end}{after}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    arguments = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    new = renewed(text)
    if arguments.check:
        if text != new:
            print(f"{PAGE.name} is stale: run python scripts/worked_example.py")
        return int(text != new)
    write_whole(PAGE, new.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
