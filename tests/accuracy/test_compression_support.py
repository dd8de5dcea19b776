"""What runs where: every row is well made, and lookups say no more than rows do."""

import re

from recipe_core.accuracy.combinations import combination
from recipe_core.accuracy.lookup import support_entries, support_of, support_rows
from recipe_core.accuracy.runners import VOID, families, family_of, hardware_groups, runners
from recipe_core.accuracy.technique import techniques
from recipe_core.engines.options import FOLDER, option_table
from recipe_core.estimates.measured.runs import published_runs
from recipe_core.estimates.serving.accuracy import weights_refusal
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.serving_settings import requested_engine, serving_setting
from recipe_core.request.schema import PlanRequest
from scripts.support_table import runner_matrix
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

ENGINES = {
    "vllm": ("--quantization", "--kv-cache-dtype"),
    "sglang": ("--quantization", "--kv-cache-dtype"),
    "tgi": ("--quantize", "--kv-cache-dtype"),
}
"""Options of an engine's own parser that name formats of weights and of the cache."""


def parts(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def tables(engine, row):
    """Releases whose parsers are known and that a row holds for, with what the option takes."""
    files = FOLDER.glob(f"{engine}-[0-9]*.yaml")
    versions = [file.stem.removeprefix(f"{engine}-") for file in files]
    first, last = parts(row.min_version), parts(row.last_version or "9999")
    held = [version for version in versions if first <= parts(version) <= last]
    flag = ENGINES[engine][row.technique.startswith("kv_")]
    return [(version, option_table(engine, version).options[flag].choices) for version in held]


def test_there_are_many_rows_and_each_is_of_something_known():
    every = support_rows()
    assert len(every) >= 250
    assert len({row.engine for row in every}) >= 20
    assert {row.engine for row in every} <= {*runners(), "any"}
    assert {row.hardware for row in every} <= {*families(), *hardware_groups(), "any"}
    assert all(place.names <= set(techniques()) for place in support_entries())
    read = [row for row in every if not row.inferred]
    assert len(read) > 0.75 * len(every)
    assert not any("recall" in row.note.casefold() for row in every)
    assert [row for row in every if row.verdict == "unknown" and not row.note] == []
    refused = [row for row in every if row.verdict == "refused"]
    assert len(refused) > 150
    assert all(len(row.words) >= 3 and row.url.startswith("https://") for row in refused)
    placings = [(place.engine, place.row) for place in support_entries()]
    said = [(name, r.technique, r.variant, r.hardware, r.last_version) for name, r in placings]
    assert len(set(said)) == len(said)


def test_every_shipped_device_has_a_family():
    assert [name for name in device_names() if not family_of(name)] == []
    assert family_of(device_profile("h100-sxm")) == family_of("h100-sxm") == "hopper"
    # hardware that skips no zeros is a group; Trainium has patterns of its own
    dense = {name for name, family in families().items() if not family.sparse_2_4}
    assert dense - {"trainium"} == set(hardware_groups()["dense-only"].families)


@over("engine", ENGINES)
def test_formats_that_run_are_choices_of_the_engines_parser_and_unknown_ones_not(engine):
    runs, refused = 0, 0
    for row in support_rows(engine=engine):
        other = not row.variant or row.variant in ("fp8_inc", "weight_sparsity")
        if row.verdict not in VOID and not other:
            for version, choices in tables(engine, row):
                assert row.variant in choices, (row.technique, row.variant, version)
                runs += 1
        named = re.search(r"(?:method: |choice: ')(\w+)", row.words)
        if row.verdict == "refused" and row.hardware == "any" and named:
            for version, choices in tables(engine, row):
                assert named[1] not in choices, (row.words, version)
                refused += 1
    assert (runs > 20, refused > 0) == (True, True)


def test_the_words_of_a_parser_list_what_it_takes():
    [row] = [row for row in support_rows("kv_int8", "sglang") if row.hardware == "any"]
    listed = re.search(r"choose from (.+)\)", row.words)
    choices = option_table("sglang", "0.5.23").options["--kv-cache-dtype"].choices
    assert tuple(listed[1].split(", ")) == choices
    # an engine without quantisation lists the types that it takes
    [row] = [row for row in support_rows("int4_weight_only", "tei") if row.hardware == "any"]
    choices = option_table("tei", "1.9.3").options["--dtype"].choices
    assert f"[possible values: {', '.join(choices)}]" in row.words


@over("technique, engine, name, verdict", table("compression_support", "verdicts"))
def test_published_patterns_hold(technique, engine, name, verdict):
    """Also on edge devices, and of a format that left an engine, by older releases only."""
    engine, _, version = engine.partition(" ")
    release = {"version": version} if version else {}
    answer = support_of(technique, engine, device_profile(name), **release)
    assert answer.verdict == verdict
    assert answer.url.startswith("https://")


def test_an_engine_around_another_answers_as_that_one_does():
    inner = support_of("fp8_w8a8", "vllm", "l40s")
    outer = support_of("fp8_w8a8", "dynamo", "l40s")
    assert (outer.verdict, outer.words, outer.engine) == (inner.verdict, inner.words, "dynamo")
    assert "starts vLLM" in outer.note
    # two formats at once run as the worse of them
    both = support_of("nvfp4_w4a4_kv_fp8", "vllm", "h100-sxm")
    assert both.verdict == "weight-only kernel"
    assert "nvfp4_w4a4" in both.note
    # what an engine has no hardware for is refused, and what nobody says unknown
    refused = support_of("int4_weight_only", "tensorrt-llm", "mi300x")
    assert (refused.verdict, bool(refused.url)) == ("refused", True)
    assert "Hopper" in refused.words
    answer = support_of("int2_weight_only", "aiter", "gaudi3")
    assert (answer.verdict, answer.runs) == ("unknown", False)
    assert answer.note.endswith("was found.")
    assert "int4" in str(refusal(support_of, "int4", "vllm", "h100-sxm"))
    assert "vlm" in str(refusal(support_of, "kv_fp8", "vlm", "h100-sxm"))


def test_a_matrix_has_a_verdict_in_every_cell():
    cells = runner_matrix("vllm")
    columns = {tuple(row) for row in cells.values()}
    assert len(columns) == 1
    assert cells["fp8_w8a8"]["hopper"] == support_of("fp8_w8a8", "vllm", "hopper")
    # unstructured zeros save nothing anywhere
    for engine in ("vllm", "sglang", "transformers", "onnxruntime", "mlx"):
        for name in families():
            answer = support_of("sparse_unstructured", engine, name)
            assert answer.verdict in ("memory only", "refused"), (engine, name)
        note = support_of("sparse_unstructured", engine, "ampere").note
        assert "skip two zeros of four" in note
    assert "skip no zeros" in support_of("sparse_2_4", "executorch", "apple").note


def test_combinations_void_multiply_and_exclude():
    for first, second, engine, name, effect in table("compression_support", "effects"):
        said = combination(first, second, engine, name)
        assert said == combination(second, first, engine, name)
        assert said.effect == effect, (first, second, engine)
    said = combination("int4_weight_only", "kv_int8", "sglang", "h100-sxm")
    assert "invalid choice" in said.sentence


def test_no_published_run_is_of_what_its_engine_is_said_to_refuse():
    runs = {
        (run.model, run.device, run.engine, run.weight_dtype or "auto", run.kv_dtype or "auto")
        for run in published_runs()
    }
    refused = []
    for model, name, engine, weights, cache in sorted(runs):
        hardware = {"device": name, "per_node": 1}
        values = {"model": model, "hardware": hardware, "workload": {"concurrency": 1}}
        problem = resolve_problem(PlanRequest.parse(values))
        spec = requested_engine(engine, problem.cluster)
        if (answer := weights_refusal(serving_setting(problem, spec, weights, cache))) is not None:
            refused.append((model, name, engine, answer.technique, answer.words))
    assert len(runs) > 20
    assert refused == []
