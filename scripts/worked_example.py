"""The worked example of ``docs/method/physics.md``, and its count of fitted numbers.

``example_arithmetic.py`` computes the example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recipe_core.base.documents import read_document
from scripts.documents import exchange
from scripts.example_arithmetic import (
    DEVICE,
    ENGINE,
    ENGINES,
    INPUT,
    LAUNCHED,
    MODEL,
    OUTPUT,
    PROFILES,
    REQUESTS,
    ROOT,
    B,
    Balance,
    Data,
    Loop,
    Memory,
    Served,
    is_number,
    launches_s,
    memory,
    read,
    served_figures,
    step_arithmetic,
)

PAGE = ROOT / "docs" / "method" / "physics.md"
GIB = 2**30


def digits(x: float, count: int = 4) -> str:
    """So many significant digits, without an exponent, thousands separated."""
    if x == 0:
        return "0"
    text = f"{x:.{count}g}"
    if "e" in text:
        text = f"{float(text):.20f}".rstrip("0")
    integer_part, _, rest = text.partition(".")
    return f"{int(integer_part):,}" + (f".{rest.rstrip('0')}" if rest.strip("0") else "")


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
        f"memory of a process {gib(data.usable)} "
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
        f"`late_steps` {digits(o['late_steps'])}, `w` of `request` {digits(data.request)} | "
        f"`{ENGINE}.yaml`, fitted",
        f"at most {data.max_tokens:,} tokens and {data.max_sequences:,} sequences a step, "
        f"share of the device {data.fraction:g}, {data.bytes_per_logit:g} B a logit while sampling "
        f"and {data.state_per_logit:g} kept, {data.context_bytes / GIB:.2f} GiB outside torch, "
        f"{data.graph_bytes / GIB:.2f} GiB for graphs "
        f"| `{ENGINE}.yaml`, published; the last two measured",
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
        ("kept", f"state_per_logit·S·V = {data.state_per_logit:g}·{data.max_sequences:,}·{s.V:,}",
         gib(m.sampler_state)),
        ("runtime", f"outside torch, graphs and kept = {digits(data.context_bytes / GIB)} + "
         f"{digits(data.graph_bytes / GIB)} + {digits(m.sampler_state / GIB)}", gib(m.runtime)),
        ("pool", f"M·fraction - weights - workspace - runtime = {data.fraction:g}·"
         f"{gib(data.usable)} - {digits(m.weights / GIB)} - {digits(m.workspace / GIB)} "
         f"- {digits(m.runtime / GIB)}", gib(m.pool)),
        ("a token", f"L·2·k·d·b = {s.L}·2·{s.k}·{s.d}·{B}", f"{m.token:,} B"),
        ("pool holds", f"floor(pool/({longest}·{m.token:,} B)·{longest})",
         f"{m.pool_tokens:,} tokens"),
        ("limit", f"min(floor({m.pool_tokens:,}/({INPUT:,} + {OUTPUT}/2)), "
         f"{data.max_sequences:,})", f"{m.limit} requests; {REQUESTS} are under way"),
    )  # fmt: skip


def product_lines(data: Data, state: Balance) -> list[str]:
    s, shape = data.model, data.rooflines["gemm"]
    up = next(
        row for row in step_arithmetic(data, state.decoding).operators if row.name == "gate, up"
    )
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
    alone = step_arithmetic(data, batch)
    both = step_arithmetic(data, batch, state.group, state.group * INPUT)
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
    both = step_arithmetic(data, batch, state.group, state.group * INPUT)
    host = "" if data.host == 1 else f"{digits(data.host)}·"
    return aligned(
        ("engine", f"w·(step_s + sequence_s·D + layer_s·L) = {host}({us(o['step_s'])} + "
         f"{us(o['sequence_s'])}·{digits(batch)} + {us(o['layer_s'])}·{s.L})", ms(both.engine_s)),
        ("launches", f"launch_s·{LAUNCHED}·L - device = {ms(launches_s(data))} - "
         f"{ms(both.device_s)}, at least 0", ms(both.launch_s)),
        ("Δ(D)", f"(step with g prompts - t(D))/g = ({ms(both.seconds)} - {ms(state.step_s)})/"
         f"{digits(state.group)}", ms(state.prompt_s)),
    )  # fmt: skip


def loop_lines(data: Data, loop: Loop, state: Balance) -> list[str]:
    o, other_share = data.overheads, f"{REQUESTS - 1}/{REQUESTS}"
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
        ("o, u", "s_out - 1 and (R - 1)/R", f"{steps} and {other_share}"),
        ("step", f"t(D) + u·D/o·Δ = {ms(state.step_s)} + {other_share}·{decoding}/{steps}·"
         f"{ms(state.prompt_s)}", ms(state.mean_s)),
        ("X", f"D/(o·step) = {decoding}/({steps}·{ms(state.mean_s)})",
         f"{digits(state.rate)} requests/s"),
        ("schedule", f"u/2·step = {other_share}/2·{ms(state.mean_s)}",
         ms(loop.others / 2 * state.mean_s)),
        ("ride", f"t(D) + Δ = {ms(state.step_s)} + {ms(state.prompt_s)}",
         ms(state.step_s + state.prompt_s)),
        ("G", f"T_max/s_in = {data.max_tokens:,}/{INPUT:,}",
         f"{digits(loop.per_step)} prompts fit into a step"),
        ("ahead", f"u·X·(schedule + ride - ride/2G)/(1 - u·X·Δ) = {digits(state.coming)}/s·"
         f"{ms(state.waiting / state.coming)}/(1 - {digits(load)})", f"{digits(ahead)} prompts"),
        ("queue", f"ahead·Δ = {digits(ahead)}·{ms(state.prompt_s)}{bounds}", ms(state.queue_s)),
        ("request", f"w·(request_s + input_token_s·s_in) = {digits(data.request)}·"
         f"({ms(o['request_s'])} + {us(o['input_token_s'])}·{INPUT:,})", ms(state.request_s)),
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
    state, memory_rows, s = loop.solve(), memory(data), data.model
    client, shared = served_figures(data, loop, state), []
    if not state.fixed_s:
        shared = [
            "Here one more prompt in a step costs no less than the first: sharing steps saves "
            "nothing, and `queue` is `ahead·Δ` itself."
        ]
    lines = [
        f"`{MODEL}` in bf16 on one `{DEVICE}` with vLLM, {REQUESTS} users at once, "
        f"{INPUT:,} tokens in and {OUTPUT} out.",
        f"The model: h {s.h:,}, f {s.f:,}, L {s.L}, n {s.n}, k {s.k}, d {s.d}, V {s.V:,}; b = {B}.",
        "Numbers are printed with four digits and computed with all of them.",
        "",
        *constants_table(data),
        "",
        "**Memory.** What a process can allocate is the driver's total less what the driver keeps.",
        "",
        *memory_lines(data, memory_rows),
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
        blocks = (file.get("direct") or {}, file.get("switch") or {})
        figures = (*file.values(), *(figure for block in blocks for figure in block.values()))
        fits += [path.stem for figure in figures if is_fitted(figure)]
    where = f"`hw_profiles/fabrics/*.yaml`: {len(set(fits))} fabrics, up to 3 numbers for the"
    return "links", f"{where} library, 3 for direct kernels, 2 for a switch", len(fits)


def fitted_engines() -> list[Row]:
    files = [read_document(path) for path in sorted(ENGINES.glob("*.yaml"))]
    overheads = [row for file in files for row in (file.get("overheads") or {}).values()]
    kernels = [row for file in files for row in (file.get("kernels") or {}).values()]
    overheads, kernels = [*filter(is_fitted, overheads)], [*filter(is_fitted, kernels)]
    folder = "`engines/serving/*.yaml`"
    own_numbers = sum(is_number(value) for row in overheads for value in row.values())
    times = sum(len(by_dtype) for row in kernels for by_dtype in row["times"].values())
    logits = [(file.get("memory") or {}).get("sampler_bytes_per_logit") for file in files]
    return [
        ("engines' own time", f"{folder}, `overheads`: {len(overheads)} × engine and runtime",
         own_numbers),
        ("engines' kernels", f"{folder}, `kernels`: {len(kernels)} × engine and generation of "
         "devices", times),
        ("hand-over between pools", f"{folder}, `handoff_s`",
         sum(is_fitted(file.get("handoff_s")) for file in files)),
        ("sampler buffers", f"{folder}, `sampler_bytes_per_logit`", sum(map(is_fitted, logits))),
    ]  # fmt: skip


def fitted() -> str:
    """The table of fitted numbers, counted in the data files."""
    code = ("in the code", "`SPREAD`, `SORT_TOKENS`, `STEPS_AHEAD`, `GRAPHED`, `DENSE`", 5)
    table = [fitted_operators(), fitted_links(), *fitted_engines(), code]
    rows = [f"| {subject} | {where} | {count} |" for subject, where, count in table]
    return "\n".join(["| what | where | numbers |", "|---|---|---|", *rows])


BLOCKS: Mapping[str, Callable[[], str]] = {"fitted numbers": fitted, "worked example": example}


def renewed(text: str) -> str:
    """The page with its blocks written anew."""
    for name, block in BLOCKS.items():
        text = exchange(text, name, block())
    return text
