"""Write how far each training bundle is held into ``docs/training-bundles.md``: framework, method
and target.

python scripts/life_matrix.py            # write it
python scripts/life_matrix.py --check    # exit 1 when it is stale
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.life.matrix import STATES, TARGETS, Cell, cells  # noqa: E402 - tests are no package

PAGE = ROOT / "docs" / "training-bundles.md"
BEGIN, END = "<!-- lives -->", "<!-- end of lives -->"
MARKS = {"started": "**started**", "parsed": "parsed", "schema": "schema", "refused": "–"}


def table(every: Sequence[Cell]) -> list[str]:
    """A row for each method that a framework launches, a column for each target, and the counts."""
    counts = Counter(cell.state for cell in every)
    said = ", ".join(f"{counts[state]} {state}" for state in STATES)
    lines = [f"{len(every)} cells: {said}.", ""]
    lines += [f"| framework | method | {' | '.join(TARGETS)} |", "|---" * (2 + len(TARGETS)) + "|"]
    for (framework, method), group in groupby(every, lambda c: (c.framework, c.method)):
        row = list(group)
        if all(cell.state == "refused" for cell in row):
            continue
        marks = " | ".join(MARKS[cell.state] for cell in row)
        lines.append(f"| `{framework}` | {method} | {marks} |")
    return lines


def renewed(text: str) -> str:
    """The page with what stands between its marks made anew."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{PAGE.name} lacks {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n" + "\n".join(table(cells())) + f"\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    new = renewed(text)
    if new != text:
        print(f"{'stale' if check else 'wrote'}: {PAGE.name}")
        if not check:
            PAGE.write_text(new, encoding="utf-8")
    return int(check and new != text)


if __name__ == "__main__":
    sys.exit(main())
