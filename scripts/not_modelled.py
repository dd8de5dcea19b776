"""docs/reference/not-modelled.md: what of published collections this version does not model.

Everything in it is data of the package: models that make no text, fields of configs that are
refused, and options of engines that no estimate counts.
"""

from __future__ import annotations

from recipe_core.engines.frameworks import training_data
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine
from recipe_core.models.config.read import not_modelled
from recipe_core.models.supplements import other_kinds
from scripts.documents import REFERENCE

PAGE = REFERENCE / "not-modelled.md"
HEAD = """# What is not modelled

Written by `python scripts/documents.py` from the package's data; a test holds it to them. A
model, a field or an option that stands here is refused or named in an answer, never counted
silently.
"""


def renewed(text: str) -> str:
    """The whole page, whatever it was."""
    del text
    return "\n".join(
        [
            HEAD,
            *_models_without_text(),
            "",
            *_fields(),
            "",
            *_uncounted_options(),
            "",
            *_training(),
            "",
        ]
    )


def _models_without_text() -> list[str]:
    """Published models that make no text."""
    out = [
        "## Models that make no text",
        "",
        "`recipe check` of a command with one of these answers `unknown`, with the reason here",
        "(`recipe_core/models/other_kinds.yaml`).",
        "",
        "| they make | models | why they are not modelled |",
        "| --- | --- | --- |",
    ]
    for kind in other_kinds().values():
        names = ", ".join(f"`{name}`" for name in kind.models)
        out.append(f"| {kind.makes} | {names} | {kind.why} |")
    return out


def _training() -> list[str]:
    """Say what training runs do and no estimate counts."""
    out = [
        "## Training",
        "",
        "What published runs do and estimates do not count",
        "(`recipe_core/engines/training/frameworks.yaml`).",
        "",
        "| what | what comes of it |",
        "| --- | --- |",
    ]
    return [*out, *(f"| {name} | {why} |" for name, why in training_data().not_modelled.items())]


def _fields() -> list[str]:
    """Fields of a config that only architectures have which are refused."""
    out = [
        "## Architectures",
        "",
        "A `config.json` with one of these fields is refused, as its estimate would be wrong. So",
        "is a name that such models have, where no config is at hand",
        "(`recipe_core/models/other_kinds.yaml`).",
        "",
        "| field | why |",
        "| --- | --- |",
    ]
    return [*out, *(f"| `{name}` | {why} not modelled |" for name, why in not_modelled().items())]


def _uncounted_options() -> list[str]:
    """Options of engines that are read and not counted."""
    out = [
        "## Options of engines",
        "",
        "Options and variables that change memory or time and that an estimate leaves out: every",
        "answer names those that are set, and is less certain of what they move.",
        "",
        "| engine | option | what it does |",
        "| --- | --- | --- |",
    ]
    for name, grammar in grammars().items():
        spec = engine(name)
        for option, row in sorted(grammar.unmodelled.items()):
            flag = spec.options.by_name[option].flag
            out.append(f"| {spec.title} {spec.version} | `{flag}` | {row.what} |")
        for variable, row in sorted(grammar.variables.items()):
            out.append(f"| {spec.title} {spec.version} | `{variable}` | {row.what} |")
    return out
