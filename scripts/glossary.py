"""Write docs/glossary.md from ``recipe_core/views/glossary.yaml``.

python scripts/glossary.py            # write it
python scripts/glossary.py --check    # exit 1 when it is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from recipe_core.views.glossary import markdown

PAGE = Path(__file__).parent.parent / "docs" / "glossary.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != markdown()
    if parser.parse_args().check:
        return int(stale)
    if stale:
        PAGE.write_text(markdown(), encoding="utf-8")
        print(f"wrote: docs/{PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
