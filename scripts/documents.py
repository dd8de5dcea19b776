"""Write the generated parts of the documents, from the code and the data files.

    python scripts/documents.py                # all of them
    python scripts/documents.py restarts cli   # some

Each module of ``MODULES`` has ``PAGE`` and ``renewed(text)``: the page with its generated parts
made anew. ``tests/project/test_documents.py`` holds every page to them.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MODULES = (
    "api_reference",
    "cli_reference",
    "glossary",
    "life_matrix",
    "not_modelled",
    "published_evidence",
    "request_reference",
    "restarts",
    "support_table",
    "worked_example",
)
REFERENCE = ROOT / "docs" / "reference"


def exchange(text: str, name: str, body: str) -> str:
    """The page with ``body`` between ``<!-- name -->`` and ``<!-- end of name -->``.

    Raises:
        SystemExit: naming the mark that the page lacks.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"the page lacks {begin} … {end}")
    return pattern.sub(lambda _: f"{begin}\n\n{body.strip()}\n\n{end}", text, count=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MODULES, []], metavar="NAME")
    for name in parser.parse_args().names or MODULES:
        module = importlib.import_module(f"scripts.{name}")
        text = module.PAGE.read_text(encoding="utf-8")
        new = module.renewed(text)
        if new != text:
            module.PAGE.write_text(new, encoding="utf-8")
            print(f"wrote {module.PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
