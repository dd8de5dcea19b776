"""Write the JSON Schemas of requests, recipes, manifests and estimates to ``docs/schema/``.

python scripts/schemas.py            # write them
python scripts/schemas.py --check    # exit 1 when one is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from recipe_core.base.documents import to_json
from recipe_core.views.catalog import NAMES, document_schema

FOLDER = Path(__file__).parent.parent / "docs" / "schema"


def files() -> dict[Path, str]:
    """Return what the files should hold."""
    return {FOLDER / f"{name}.schema.json": to_json(document_schema(name)) + "\n" for name in NAMES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when a file is stale"
    )
    check = parser.parse_args().check
    stale = [
        path
        for path, text in files().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"{'stale' if check else 'wrote'}: {path.relative_to(FOLDER.parent.parent)}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
