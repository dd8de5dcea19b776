"""Write counts and matrices of which formats run where into ``docs/compression-support.md``.

python scripts/support_table.py            # write them
python scripts/support_table.py --check    # exit 1 when they are stale
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from recipe_core.accuracy.families import families
from recipe_core.accuracy.knowledge import matrix, rows, runners
from recipe_core.accuracy.support import Support, Verdict

PAGE = Path(__file__).parent.parent / "docs" / "compression-support.md"
BEGIN, END = "<!-- tables -->", "<!-- end -->"
SIGNS: dict[Verdict, str] = {
    "native": "N",
    "weight-only kernel": "W",
    "emulated": "E",
    "memory only": "M",
    "refused": "–",
    "unknown": "?",
}
SHOWN = ("vllm", "sglang", "tensorrt-llm", "transformers", "llama-cpp", "tgi", "lmdeploy")
TECHNIQUES = (
    "fp8_w8a8",
    "int8_w8a8",
    "int8_weight_only",
    "int4_weight_only",
    "nf4_weight_only",
    "nvfp4_w4a4",
    "mxfp4_w4a4",
    "mxfp4_weight_only",
    "mxfp8_w8a8",
    "w4a8_fp8",
    "gguf_q4_k_m",
    "kv_fp8",
    "kv_int8",
    "kv_int4",
    "kv_fp4",
    "sparse_2_4",
)


def counts() -> list[str]:
    """Rows of each runner by verdict."""
    verdicts = list(SIGNS)
    lines = [f"| runner | rows | {' | '.join(verdicts)} |", "|---|--:" + "|--:" * 6 + "|"]
    for name in [*runners(), "any"]:
        found = Counter(row.verdict for row in rows(engine=name))
        if found:
            cells = " | ".join(str(found[verdict]) for verdict in verdicts)
            lines.append(f"| {name} | {found.total()} | {cells} |")
    every = Counter(row.verdict for row in rows())
    cells = " | ".join(f"**{every[verdict]}**" for verdict in verdicts)
    return [*lines, f"| all | **{every.total()}** | {cells} |"]


def sign(cell: Support) -> str:
    """A verdict in one letter; "~": inferred, or read of a wider group."""
    return SIGNS[cell.verdict] + ("~" if cell.inferred and cell.runs else "")


def table(engine: str) -> list[str]:
    """An engine's techniques by families of hardware, at the release that recipes install."""
    cells = matrix(engine)
    shown = [name for name in TECHNIQUES if name in cells]
    columns = list(cells[shown[0]])
    head = " | ".join(families()[name].title.removeprefix("NVIDIA ") for name in columns)
    lines = [f"| {runners()[engine].title} | {head} |", "|---" * (len(columns) + 1) + "|"]
    for name in shown:
        signs = " | ".join(sign(cells[name][column]) for column in columns)
        lines.append(f"| `{name}` | {signs} |")
    return lines


def written() -> str:
    """Everything between the marks."""
    tables = ["\n".join(table(engine)) for engine in SHOWN]
    return "\n\n".join(["\n".join(counts()), *tables])


def main() -> int:
    """Write the tables, or say that they are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when they are stale")
    check = parser.parse_args().check
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}\n{written()}\n{END}{after}"
    if check:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
