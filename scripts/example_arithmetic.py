"""One estimate by plain arithmetic, for the worked example of ``docs/method/physics.md``.

Every number is computed here with Python floats from the data files (``hw_profiles/``,
``recipe_core/engines/serving/``, ``recipe_core/models/catalog/``): nothing of
``recipe_core/estimates`` is called, only three constants of it are read.
``tests/estimates/test_worked_example.py`` holds the results against the library's estimates. The
formulas are those of a dense model on one device, in a closed loop; data for which they would not
hold are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, expm1, floor
from pathlib import Path
from typing import Any

from recipe_core.base.documents import read_document
from recipe_core.estimates.serving.continuous_batching import ASTRAY, NODES, STEPS_AHEAD

ROOT = Path(__file__).resolve().parent.parent
PROFILES = ROOT / "hw_profiles"
ENGINES = ROOT / "recipe_core" / "engines" / "serving"
CATALOG = ROOT / "recipe_core" / "models" / "catalog"

MODEL, DEVICE, ENGINE = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", "vllm"
INPUT, OUTPUT, REQUESTS = 1024, 256, 16
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "hardware": {"device": DEVICE, "per_node": 1},
    "workload": {"input_tokens": INPUT, "output_tokens": OUTPUT, "concurrency": REQUESTS},
    "candidate": {"engine": ENGINE, "tp": 1, "pp": 1, "dp": 1},
}
B = 2  # bytes of a bf16 value
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
    usable: float
    bandwidth: float
    peak: float
    rooflines: Mapping[str, Roofline]
    fraction: float
    context_bytes: float
    graph_bytes: float
    bytes_per_logit: float
    state_per_logit: float
    block: int
    max_tokens: int
    max_sequences: int
    overheads: Mapping[str, float]
    host: float
    request: float


def read() -> Data:
    """The data files; raises SystemExit where the arithmetic of this script would not hold."""
    device = read_document(PROFILES / f"{DEVICE}.yaml")
    engine = read_document(ENGINES / f"{ENGINE}.yaml")
    config = read_document(CATALOG / f"{MODEL.replace('/', '--')}.yaml")["config"]
    check_formulas(engine, config)
    runtime, architecture = device["runtime"], device["architecture"]
    usable = quantity(device, "memory_bytes") - quantity(device, "reserved_bytes")
    limits = max(
        (
            row
            for row in engine["batching"]
            if usable >= row["memory_at_least_bytes"] and architecture not in row.get("not_on", [])
        ),
        key=lambda row: float(row["memory_at_least_bytes"]),
    )
    times = engine.get("kernels", {}).get(architecture, {}).get("times", {})
    families = ("gemm", "attention_prefill", "attention_decode", "elementwise")
    overheads = {"launch_s": 0.0, "late_steps": 0.5, "bunched": 0.1, **engine["overheads"][runtime]}
    return Data(
        model=model_shape(config),
        usable=usable,
        bandwidth=quantity(device, "memory_bandwidth_bytes_per_s"),
        peak=quantity(device["peak_flops_per_s"], "bf16"),
        rooflines={family: roofline(family, device, times) for family in families},
        fraction=quantity(engine["memory"], "fraction"),
        context_bytes=quantity(engine["memory"], "context_single_bytes"),
        graph_bytes=float(engine["memory"]["graphs"]["bytes"]),
        bytes_per_logit=quantity(engine["memory"], "sampler_bytes_per_logit"),
        state_per_logit=quantity(engine["memory"], "sampler_state_bytes_per_logit"),
        block=int(engine["memory"]["block_tokens"]),
        max_tokens=int(limits["max_batched_tokens"]),
        max_sequences=int(limits["max_num_seqs"]),
        overheads={name: float(value) for name, value in overheads.items() if is_number(value)},
        host=float(times.get("host", {}).get("any", 1)),
        request=float(times.get("request", {}).get("any", 1)),
    )


def check_formulas(engine: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise SystemExit where the formulas below are not those of this engine and model."""
    needed(engine["memory"]["pool"] == "of-device", "vLLM's pool is a share of the device")
    needed(not engine["memory"].get("reserves", False), "vLLM admits by tokens so far")
    needed(engine["chunked_prefill"] and engine.get("mixes_prompts", True), "vLLM mixes prompts")
    needed(not config["tie_word_embeddings"], "embedding and head are two matrices")
    needed(config["vocab_size"] % 64 == 0, "the vocabulary needs no padding")


def quantity(row: Mapping[str, Any], name: str) -> float:
    return float(row[name]["value"])


def model_shape(config: Mapping[str, Any]) -> Model:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    return Model(
        hidden,
        int(config["intermediate_size"]),
        int(config["num_hidden_layers"]),
        heads,
        int(config["num_key_value_heads"]),
        int(config.get("head_dim", hidden // heads)),
        int(config["vocab_size"]),
    )


def roofline(family: str, device: Mapping[str, Any], times: Mapping[str, Any]) -> Roofline:
    """A family's numbers of the device, else those of its kind, and the engine's own time."""
    family_numbers = device["roofline"].get(family, {})
    priors = read_document(PROFILES / "priors.yaml")["roofline"][device["runtime"]]
    row = family_numbers.get("bf16") or family_numbers.get("any") or priors[family]
    engines = times.get(family, {})
    where = f"{DEVICE}.yaml" if family_numbers else "priors.yaml"
    return Roofline(
        float(row["compute_efficiency"]),
        float(row["memory_efficiency"]),
        float(row["overhead_s"]),
        float(row["smoothing"]),
        # norms and copies have no kernel of an engine's own
        1.0 if family == "elementwise" else float(engines.get("bf16", engines.get("any", 1))),
        f"{where}, {row['status']}",
    )


def is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def needed(holds: bool, condition: str) -> None:
    if not holds:
        raise SystemExit(
            f"the data no longer say that {condition}: this arithmetic needs another term"
        )


# Memory


@dataclass(frozen=True)
class Memory:
    """Bytes of the one rank."""

    qkv: int
    o: int
    mlp: int
    norms: int
    weights: float
    layer_workspace: float
    sampler_workspace: float
    workspace: float
    sampler_state: float
    runtime: float
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
    layer = data.max_tokens * B * (3 * m.h + 3 * m.f)
    sampler = data.bytes_per_logit * data.max_sequences * m.V
    workspace = max(layer, sampler)
    state = data.state_per_logit * data.max_sequences * m.V
    runtime = data.context_bytes + data.graph_bytes + state
    pool = data.fraction * data.usable - weights - workspace - runtime
    token = m.L * 2 * m.k * m.d * B
    longest = ceil((INPUT + OUTPUT) / CONTEXT_STEP) * CONTEXT_STEP
    pool_tokens = floor(pool / (ceil(longest / data.block) * data.block * token) * longest)
    sequence = ceil((INPUT + OUTPUT) / data.block) * data.block * token
    limit = min(floor(pool_tokens / (INPUT + OUTPUT / 2)), data.max_sequences)
    needed(limit >= REQUESTS, f"the cache holds {REQUESTS} requests")
    return Memory(
        qkv, o, mlp, norms, weights, layer, sampler, workspace, state, runtime, pool, token,
        longest, pool_tokens, sequence, limit,
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
        busy_s = float((self.compute_s(data) ** r + self.memory_s(data) ** r) ** (1 / r))
        return shape.engine * (self.starts * shape.overhead_s + busy_s)

    def seconds(self, data: Data) -> float:
        return self.count * self.once_s(data)


def gemm_work(
    part: str, name: str, rows: float, inputs: int, outputs: int, count: int = 1
) -> Operator:
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
        gemm_work("qkv", "qkv", rows, m.h, (m.n + 2 * m.k) * m.d, m.L),
        gemm_work("o", "o", rows, m.n * m.d, m.h, m.L),
        gemm_work("mlp", "gate, up", rows, m.h, 2 * m.f, m.L),
        gemm_work("mlp", "down", rows, m.f, m.h, m.L),
        Operator("norms", "norms, residuals", "elementwise", values, values * B, m.L, 4),
        Operator("embedding", "embedding", "elementwise", 0, 2 * m.h * B * rows),
        gemm_work("head", "head", sampled, m.h, m.V),
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
    """Return what the host needs to launch all kernels of a step with prompts."""
    return data.overheads["launch_s"] * LAUNCHED * data.model.L


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


def step_arithmetic(
    data: Data, decoding: float, prompts: float = 0, prompt_tokens: float = 0
) -> Step:
    kernels = operators(data, decoding, prompts, prompt_tokens)
    device_s = sum(kernel.seconds(data) for kernel in kernels)
    launch_s = max(launches_s(data) - device_s, 0.0) if prompt_tokens else 0.0
    return Step(kernels, device_s, launch_s, engine_s(data, decoding))


# The closed loop

CHUNKS_NEEDED = "a prompt fits into one step"


@dataclass(frozen=True)
class Balance:
    """The balance of D sequences that decode, in a loop of R requests."""

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
    """R users at once, each with a request, and the next one when it is answered."""

    def __init__(self, data: Data) -> None:
        self.data, self.others = data, (REQUESTS - 1) / REQUESTS
        self.steps = OUTPUT - 1.0
        self.per_step = max(data.max_tokens / INPUT, 1.0)
        needed(data.max_tokens >= INPUT, CHUNKS_NEEDED)
        self.fullest = min(max(float(REQUESTS), 1.0), self.per_step)
        self.fullest_s = self.times(NODES[-1] * REQUESTS, REQUESTS)[1]

    def together(self, arriving: float) -> float:
        """Prompts in a step at ``arriving`` per decode step."""
        met = arriving / -expm1(-arriving) if arriving > 1e-9 else 1.0
        return min(max(met, 1.0), self.per_step)

    def times(self, decoding: float, arriving: float | None = None) -> tuple[float, float]:
        """Seconds of a decode step, and what a prompt adds to the step that it shares."""
        prompts = self.together(decoding / self.steps if arriving is None else arriving)
        batch = max(decoding, 1.0)
        alone = step_arithmetic(self.data, batch).seconds
        both = step_arithmetic(self.data, batch, prompts, prompts * INPUT).seconds
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

        highest = self.others * REQUESTS
        one_by_one_s = min(ahead(0.0, prompt_s), highest) * prompt_s
        count = max(
            min(ahead(0.0, fixed_s + added_s), ahead(STEPS_AHEAD * fixed_s + rest_s, added_s)),
            ahead(0.0, fixed_s / self.fullest + added_s),
        )
        count = min(count, highest)
        before = max(min(count, STEPS_AHEAD), count / self.fullest)
        most_s = rest_s + added_s * count + fixed_s * before
        queue_s = min(rest_s + one_by_one_s, most_s)
        own_s = overheads["request_s"] + overheads["input_token_s"] * INPUT
        request_s = self.data.request * own_s
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
            balance = self.balance(decoding)
            if abs(balance.resident - REQUESTS) <= ASTRAY * REQUESTS:
                return balance
            nodes[decoding] = balance.step_s, balance.prompt_s


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
    """The client's view, with what a loop's first, bunched prompts change."""

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


def served_figures(data: Data, loop: Loop, state: Balance) -> Served:
    share = data.overheads["bunched"]
    group = min(loop.per_step, REQUESTS)
    bunch_step_s = step_arithmetic(data, 0, group, group * INPUT).seconds
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
