"""The words that pages explain: whole, sourced, and the help of what they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import InputError
from recipe_core.base.resources import PACKAGE
from recipe_core.present.glossary import (
    FILE,
    Glossary,
    field_help,
    glossary,
    markdown,
    measure_help,
    term_help,
)
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, FIELDS
from recipe_core.request.schema import describe_field
from recipe_core.search.measures import SERVING, TRAINING
from recipe_core.search.plans import plan

NEEDED = [
    "TTFT",
    "TPOT",
    "ITL",
    "interactivity",
    "goodput",
    "throughput",
    "concurrency",
    "closed",
    "open",
    "prefix",
    "KV",
    "GQA",
    "MLA",
    "MoE",
    "tp",
    "pp",
    "dp",
    "ep",
    "cp",
    "ZeRO",
    "FSDP",
    "micro-batch",
    "recomputation",
    "MFU",
    "bubble",
    "speculative",
    "disaggregated",
    "SLO",
    "percentile",
    "utilisation",
    "demand",
    "spot",
    "reserved",
    "cold start",
    "attainment",
    "scale to zero",
    "burstiness",
    "stabilisation",
]
"""Words that a reader of the pages meets and must find."""


@pytest.mark.parametrize("word", NEEDED)
def test_a_word_of_the_field_is_explained(word: str) -> None:
    everything = [f"{term.title} {term.text}" for term in glossary().terms.values()]
    assert any(word.casefold() in text.casefold() for text in everything)


def test_fields_and_measures_of_terms_exist() -> None:
    plans = [plan(DEFAULT), plan(change(DEFAULT, {"workload.kind": "training"}))]
    columns = {name for one in plans for name in one.columns}
    columns |= {measure.column for measure in (*SERVING.values(), *TRAINING.values())}
    for name, term in glossary().terms.items():
        assert set(term.fields) <= set(FIELDS), name
        assert set(term.measures) <= columns, name
        assert term.text.count(". ") <= 2, f"{name} takes more than a few sentences"


def test_help_is_the_term_s_text() -> None:
    ttft = glossary().terms["ttft"].text
    assert measure_help(SERVING["ttft"]) == ttft == term_help("ttft")
    assert field_help("objective.limits.ttft_ms").startswith(
        describe_field("objective.limits.ttft_ms")
    )
    assert ttft in field_help("objective.limits.ttft_ms")
    assert field_help("hardware.nodes") == describe_field("hardware.nodes")
    assert measure_help(SERVING["memory"]) == SERVING["memory"].help
    assert measure_help(SERVING["gpus"]) in (SERVING["gpus"].help, SERVING["gpus"].title)


def test_the_document_is_what_the_file_says() -> None:
    page = Path(PACKAGE).parent / "docs" / "glossary.md"
    assert page.read_text(encoding="utf-8") == markdown(), "run python scripts/glossary.py"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda terms: terms["tp"].update(group="spilts"), "unknown group 'spilts'"),
        (lambda terms: terms["tp"].update(fields=["candidate.pp"]), "'candidate.pp' has two terms"),
        (lambda terms: terms["tp"]["source"].update(url="http://x"), "source.url"),
        (lambda terms: terms["tp"].update(txet="…"), "is not a field"),
    ],
)
def test_a_mistake_in_the_file_is_named(spoil: Any, message: str) -> None:
    document = DataFile(FILE, "glossary").read()
    spoil(document["terms"])
    with pytest.raises(InputError, match=message):
        DataFile(FILE, "glossary").validated(document, Glossary)
