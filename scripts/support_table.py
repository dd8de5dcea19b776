"""Matrices of which formats run where in ``docs/reference/formats.md``."""

from __future__ import annotations

from recipe_core.accuracy.lookup import ANY, support_entries, support_of
from recipe_core.accuracy.runners import Support, Verdict, covers, families, runner, runners
from recipe_core.accuracy.technique import techniques
from scripts.documents import REFERENCE, exchange

PAGE = REFERENCE / "formats.md"
SIGNS: dict[Verdict, str] = {
    "native": "N",
    "weight-only kernel": "W",
    "emulated": "E",
    "memory only": "M",
    "refused": "–",
    "unknown": "?",
}
SHOWN = ("vllm", "sglang", "tensorrt-llm", "llama-cpp")
TECHNIQUES = (
    "fp8_w8a8",
    "int8_w8a8",
    "int8_weight_only",
    "int4_weight_only",
    "nvfp4_w4a4",
    "mxfp4_w4a4",
    "mxfp4_weight_only",
    "gguf_q4_k_m",
    "kv_fp8",
    "kv_int8",
    "sparse_2_4",
)


def sign(cell: Support) -> str:
    """A verdict in one letter; "~": inferred, or read of a wider group."""
    return SIGNS[cell.verdict] + ("~" if cell.inferred and cell.runs else "")


def runner_matrix(engine: str) -> dict[str, dict[str, Support]]:
    """Techniques that a runner says anything of, by families of hardware that it speaks of."""
    entries = [entry for entry in support_entries() if entry.engine in runner_chain(engine)]
    spoken = {entry.row.hardware for entry in entries} - {ANY}
    columns = [name for name in families() if any(covers(hardware, name) for hardware in spoken)]
    names = {name for entry in entries for name in entry.names}
    return {
        name: {column: support_of(name, engine, column) for column in columns}
        for name in techniques()
        if name in names
    }


def runner_chain(engine: str) -> tuple[str, ...]:
    """The runner and the engines that it wraps, outermost first."""
    wraps = runner(engine).wraps
    return (engine, *(runner_chain(wraps) if wraps else ()))


def support_rows(engine: str) -> list[str]:
    """An engine's techniques by families of hardware, at the release that recipes install."""
    cells = runner_matrix(engine)
    shown = [name for name in TECHNIQUES if name in cells]
    columns = list(cells[shown[0]])
    head = " | ".join(families()[name].title.removeprefix("NVIDIA ") for name in columns)
    lines = [f"| {runners()[engine].title} | {head} |", "|---" * (len(columns) + 1) + "|"]
    for name in shown:
        signs = " | ".join(sign(cells[name][column]) for column in columns)
        lines.append(f"| `{name}` | {signs} |")
    return lines


def renewed(text: str) -> str:
    """The page with its tables written anew."""
    tables = ["\n".join(support_rows(engine)) for engine in SHOWN]
    return exchange(text, "tables", "\n\n".join(tables))
