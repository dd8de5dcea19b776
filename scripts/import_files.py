"""Read a folder of files of other programs, and count what each importer made of them.

    python scripts/import_files.py FOLDER

For files that are not in the repository: published results, logs of one's own machines. Prints how
many measurements of each format were read, an example of each, and every other answer by its count.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from recipe_core.base.documents import to_json
from recipe_core.base.errors import RecipeError
from recipe_core.calibration.importers.formats import import_file


def main() -> None:
    """Read the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for path in sorted(parser.parse_args().folder.rglob("*")):
        if not path.is_file():
            continue
        try:
            for run in import_file(path):
                counts[run.format] += 1
                examples.setdefault(
                    run.format, f"{path.name} {to_json(run.to_json(), indent=None)}"
                )
        except RecipeError as error:
            answer = error.message.replace(str(path), "FILE")[:100]
            counts[answer] += 1
            examples.setdefault(answer, path.name)
    for name, count in counts.most_common():
        print(f"{count:6,}  {name}\n        {examples[name][:400]}")


if __name__ == "__main__":
    main()
