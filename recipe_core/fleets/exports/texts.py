"""Templates of what a fleet writes as text: objects, configurations, scripts and the report.

In YAML every value is written by ``quoted``, in scripts by ``shell``; HTML escapes all of them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from recipe_core.base.documents import to_json
from recipe_core.base.texts import quote_markdown, quote_shell
from recipe_core.fleets.exports import labels

# Ends of lines of YAML 1.1, and controls, which its quoted texts hold as escapes alone.
_BREAKS = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff]")


def _quote_yaml(value: Any) -> str:
    """A value as JSON, which YAML 1.1 and 1.2 read alike."""
    return _BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", to_json(value, indent=None))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(("html.j2",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quoted": _quote_yaml, "shell": quote_shell, "markdown": quote_markdown}
    environment.globals["labels"] = labels
    return environment


def render_export(name: str, /, **values: Any) -> str:
    """Render a template of ``templates/``.

    Raises:
        jinja2.UndefinedError: for a value that it needs.
    """
    return _environment().get_template(name).render(**values)
