"""The words that pages explain: whole, sourced, and the help of what they are about."""

from __future__ import annotations

from pathlib import Path

from recipe_core.base.data_files import DataFile
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
from tests.fixtures.refusals import refusal

NEEDED = ["TTFT", "TPOT", "ITL", "interactivity", "goodput", "throughput", "concurrency", "closed"]
NEEDED += ["open", "prefix", "KV", "GQA", "MLA", "MoE", "tp", "pp", "dp", "ep", "cp", "ZeRO"]
NEEDED += ["FSDP", "micro-batch", "recomputation", "MFU", "bubble", "speculative", "disaggregated"]
NEEDED += ["SLO", "percentile", "utilisation", "demand", "spot", "reserved", "cold start"]
NEEDED += ["attainment", "scale to zero", "burstiness", "stabilisation"]
"""Words that a reader of the pages meets and must find."""


def test_every_word_of_the_field_is_explained_in_the_file_and_the_document() -> None:
    texts = "\n".join(f"{term.title} {term.text}" for term in glossary().terms.values()).casefold()
    assert [word for word in NEEDED if word.casefold() not in texts] == []
    page = Path(PACKAGE).parent / "docs" / "glossary.md"
    assert page.read_text(encoding="utf-8") == markdown(), "run python scripts/glossary.py"


def test_fields_and_measures_of_terms_exist() -> None:
    columns = {*plan(DEFAULT).columns}
    columns |= {*plan(change(DEFAULT, {"workload.kind": "training"})).columns}
    columns |= {measure.column for measure in (*SERVING.values(), *TRAINING.values())}
    for name, term in glossary().terms.items():
        assert set(term.fields) <= set(FIELDS), name
        assert set(term.measures) <= columns, name
        assert term.text.count(". ") <= 2, f"{name} takes more than a few sentences"


def test_help_is_the_term_s_text() -> None:
    ttft, field = glossary().terms["ttft"].text, "objective.limits.ttft_ms"
    assert measure_help(SERVING["ttft"]) == ttft == term_help("ttft")
    assert field_help(field).startswith(describe_field(field))
    assert ttft in field_help(field)
    assert field_help("hardware.nodes") == describe_field("hardware.nodes")
    assert measure_help(SERVING["memory"]) == SERVING["memory"].help
    assert measure_help(SERVING["gpus"]) in (SERVING["gpus"].help, SERVING["gpus"].title)


def test_a_mistake_in_the_file_is_named() -> None:
    file = DataFile(FILE, "glossary")
    source = file.read()["terms"]["tp"]["source"]
    for wrong, message in (
        ({"group": "spilts"}, "unknown group 'spilts'"),
        ({"fields": ["candidate.pp"]}, "'candidate.pp' has two terms"),
        ({"source": source | {"url": "http://x"}}, "source.url"),
        ({"txet": "…"}, "is not a field"),
    ):
        document = file.read()
        document["terms"]["tp"].update(wrong)
        assert message in str(refusal(file.validated, document, Glossary))
