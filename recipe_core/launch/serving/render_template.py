"""Fill a file that a program reads with values known only at the start, then become that program.

It travels in bundles, so it uses the standard library only: ``python3 render_template.py TEMPLATE
FILE NAME=VALUE … -- PROGRAM WORD …``. TEMPLATE is JSON; ``$NAME`` in its texts becomes the value,
and a text that is then a number becomes one. FILE is JSON again, which is YAML too.
"""

import json
import os
import sys
from pathlib import Path
from string import Template
from typing import Any


def fill_names(value: Any, names: dict[str, str]) -> Any:
    """A JSON value with the names in its texts replaced; raises KeyError for an unknown name."""
    if isinstance(value, dict):
        return {key: fill_names(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill_names(inner, names) for inner in value]
    if not isinstance(value, str):
        return value
    text = Template(value).substitute(names)
    return int(text) if text.isdecimal() else text


def main(words: list[str]) -> None:
    """Write the file and start the program in this process's place."""
    end = words.index("--")
    template, target, *pairs = words[:end]
    names = dict(pair.split("=", 1) for pair in pairs)
    content = fill_names(json.loads(Path(template).read_text(encoding="utf-8")), names)
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    program = words[end + 1 :]
    os.execvp(program[0], program)  # noqa: S606 - as the launcher starts all words of the bundle


if __name__ == "__main__":
    main(sys.argv[1:])
