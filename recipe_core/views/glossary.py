"""The words of the field (``glossary.yaml``), and the help of fields made of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.request.metrics import column_metric
from recipe_core.request.schema import describe_field
from recipe_core.views.plain import plain_help

FILE = Path(__file__).with_name("glossary.yaml")
Words = Annotated[str, Field(min_length=2, max_length=60, pattern=r"^[^\n]+$")]


class Reference(DataRow):
    """The field's own use of a word."""

    title: Annotated[str, Field(min_length=3, max_length=100)]
    url: Annotated[str, Field(pattern=r"^https://[^\s()]+$")]


class Term(DataRow):
    """A word and what it means; ``short``: its abbreviation, or what else people say.

    ``metric``: the column of the metric that it is, whose title and help are then the word's;
    ``fields``: fields of a request that are this.
    """

    term: Words
    short: Words | None = None
    group: str
    text: Annotated[str, Field(min_length=20, max_length=330, pattern=r"^[A-Z][^\n]+\.$")]
    source: Reference
    metric: str | None = None
    fields: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_metric(cls, values: dict[str, Any]) -> dict[str, Any]:
        column = values.get("metric")
        if column is None:
            return values
        metric = column_metric(column)
        limits = {"fields": (f"objective.limits.{metric.limit}",)} if metric.limit else {}
        metric_texts = {"term": metric.title, "short": metric.abbreviation, "text": metric.help}
        return {**metric_texts, **limits, **values}

    @property
    def title(self) -> str:
        """The word with its abbreviation: ``Time to first token (TTFT)``."""
        return f"{self.term} ({self.short})" if self.short else self.term


class Glossary(DataRow):
    """The shape of ``glossary.yaml``."""

    schema_version: Literal[1]
    groups: dict[str, str]
    terms: dict[str, Term]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name, term in self.terms.items():
            if term.group not in self.groups:
                raise ValueError(f"term {name!r} is of an unknown group {term.group!r}")
        if unused := set(self.groups) - {term.group for term in self.terms.values()}:
            raise ValueError(f"group {min(unused)!r} has no term")
        fields = [field for term in self.terms.values() for field in term.fields]
        if twice := {field for field in fields if fields.count(field) > 1}:
            raise ValueError(f"{min(twice)!r} has two terms")
        return self

    def by_group(self) -> dict[str, list[Term]]:
        return {
            title: [term for term in self.terms.values() if term.group == group]
            for group, title in self.groups.items()
        }


@cache
def glossary() -> Glossary:
    """The words this version explains.

    Raises:
        InputError: naming file, field and value, where the file does not fit its schema.
    """
    return DataFile(FILE, "glossary").read_as(Glossary)


@cache
def _by_field() -> dict[str, Term]:
    return {name: term for term in glossary().terms.values() for name in term.fields}


def field_help(field: str) -> str:
    """Say what a field of a request means, then the word of the field that it is about.

    Raises:
        LookupError: for a name that no request has.
    """
    described, term = plain_help(describe_field(field)), _by_field().get(field)
    return described if term is None else f"{described}\n\n**{term.title}**: {term.text}"


def term_help(name: str) -> str:
    """The text of a word, for the help of a heading; raises KeyError for an unknown name."""
    return glossary().terms[name].text


def glossary_page() -> str:
    lines = [
        "# Glossary",
        "",
        "The words of the pages, as the field uses them. `python scripts/documents.py` writes this",
        "page from `recipe_core/views/glossary.yaml`, where the pages take their help from, too.",
    ]
    for group, terms in glossary().by_group().items():
        lines += ["", f"## {group}", ""]
        for term in terms:
            lines.append(f"* **{term.title}.** {term.text} ([source]({term.source.url}))")
    return "\n".join(lines) + "\n"
