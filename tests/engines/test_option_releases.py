"""Option tables by release: files of differences, which table judges a command, what took the place
of what is gone, and memory rules of the release that runs.
"""

import json
import os
import subprocess

import pytest
import yaml

from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command, check_commands
from recipe_core.engines import options
from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_changes import differences, laid_over
from recipe_core.engines.option_releases import (
    came,
    judged,
    left,
    memory_release,
    newest,
    pinned,
    releases,
    replacement,
    successor,
)
from recipe_core.engines.options import option_table
from recipe_core.engines.spec import engine
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.verdicts import assert_says, levels_of

READ = ["vllm", "sglang"]
GROUND = Ground.of(hardware="b200-sxm:8")
INDEXER = """--attention-config '{"use_fp4_indexer_cache": true}'"""
FLASH = f"deepseek-ai/DeepSeek-V4-Flash -tp 4 --kv-cache-dtype fp8 {INDEXER}"


def check(command, **ground):
    return check_command(command, Ground.of(**{"hardware": "b200-sxm:8"} | ground))


def in_image(image, words):
    return f"docker run --gpus all --ipc=host {image} {words}"


@over("name, version", [(name, version) for name in READ for version in releases(name)])
def test_tables_of_other_releases_are_small_and_hold(name, version):
    """Every table reads, has what commands mean, and names no option twice."""
    table, spec = option_table(name, version), engine(name)
    flags = [flag for option in table.options.values() for flag in option.spellings]
    assert len(flags) == len(set(flags)) > 200
    path = options.table_file(name, version).path
    assert version == spec.version or path.stat().st_size < 5_000
    required = set(grammars()[name].means) & set(spec.options.by_name)
    missing = required - set(table.by_name)
    assert missing <= {"spec_tokens", "spec_method", "spec_model", "attn_dp_size"}
    # the last six minor releases of both have tables
    assert releases("vllm")[-6:] == tuple(f"0.{minor}.0" for minor in range(28, 34))
    assert releases("sglang") == tuple(f"0.5.{patch}" for patch in range(18, 24))


def test_differences_that_do_not_fit_or_lead_back_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(options, "FOLDER", tmp_path)

    def refused(*, older, newer):
        for version, fields in (("1.0.0", older), ("2.0.0", newer)):
            document = {"schema_version": 1, "engine": "e", "version": version} | fields
            (tmp_path / f"e-{version}.yaml").write_text(yaml.safe_dump(document))
        return str(refusal(options.option_table.__wrapped__, "e", "1.0.0"))

    full = {"options": {"--a": {"type": "json", "keys": ["k"]}}}
    for changes in (
        {"drop": ["--missing"]},
        {"options": {"--a": {"type": "int"}}},
        {"change": {"--a": {"keys": {"drop": ["missing"]}}}},
        {"change": {"--missing": {"type": "int"}}},
    ):
        said = refused(older={"differs_from": "2.0.0"} | changes, newer=full)
        assert "does not fit e-2.0.0.yaml" in said
    said = refused(older={"differs_from": "2.0.0"}, newer={"differs_from": "1.0.0"})
    assert "leads back to itself" in said


@pytest.mark.parametrize("name", READ)
def test_tables_are_those_of_the_engines_own_parser(name):
    """With a Python that has any release of the engine of which there is a table."""
    variable = f"{name.upper()}_PYTHON"
    if not (python := os.environ.get(variable)):
        pytest.skip(f"{variable} names no Python that has {name}; see scripts/engine_options.py")
    script = ROOT / "scripts" / "engine_options.py"
    done = subprocess.run([python, script, name], capture_output=True, text=True, check=True)
    written = yaml.safe_load(done.stdout[done.stdout.index("schema_version:") :])
    ours = judged(name, written["version"])
    assert ours.exact
    theirs = type(ours.table).model_validate(written | {"same_in": ours.table.same_in})
    for flag, option in theirs.options.items():
        row = ours.table.options[flag]
        for field in type(option).model_fields:
            told, kept = getattr(option, field), getattr(row, field)
            same = set(told) == set(kept) if isinstance(told, tuple) else told == kept
            assert same, (flag, field, told, kept)
    assert set(theirs.options) == set(ours.table.options)


@over("name, version, table, exact", table("option_releases", "the_table_of_a_release_is_its_own"))
def test_the_table_of_a_release_is_its_own_or_the_nearest(name, version, table, exact):
    found = judged(name, version)
    assert (found.table.version, found.exact) == (table, exact)


@over("command, judged_on, wanted", table("option_releases", "answers"))
def test_answers_are_those_of_the_release(command, judged_on, wanted):
    assert_says(check(command.replace("FLASH", FLASH), **judged_on), wanted)


def test_the_pinned_and_the_newest_release_have_tables():
    assert pinned("vllm").table is engine("vllm").options
    assert newest("vllm").table.version == releases("vllm")[-1]
    option = option_table("vllm", "0.33.0").by_spelling["--disable-chunked-prefill"]
    assert option.flag == "--enable-chunked-prefill"
    # rules of memory are known for some releases; for others, those of the pinned one
    known = {"0.25.0": "0.25.0", "0.32.0": None, "0.33.0": "0.33.0", "0.40.0": None, "0.1.0": None}
    assert {version: memory_release(engine("vllm"), version) for version in known} == known
    assert memory_release(engine("vllm"), None) is None
    assert memory_release(engine("sglang"), "0.5.18") is None
    # what is no release is refused
    for version in ("latest", "0.25", " ", "0.25.0; rm", "9" * 50):
        error = refusal(Ground.of, hardware="h100-sxm", engine_version=version)
        assert (error.field, "not a release" in str(error)) == ("engine_version", True)


IMAGES = [
    *(f"vllm/vllm-openai:{tag}" for tag in ("v0.9.1", "v0.34.0", "nightly", "v0.25.0rc2")),
    *("vllm/vllm-openai@sha256:0123", "rocm/vllm:rocm7.0_vllm_0.32.0_20261101"),
    "registry.example/serving:2.1.0",
]


@over("image", IMAGES)
def test_a_release_without_a_table_makes_differences_warnings(image):
    words = f"vllm serve {FLASH} --not-yet-known 3 --dtype float8 --eplb-config.no-key 1"
    answer = check(in_image(f"--entrypoint '' {image}", words))
    assert answer["ok"], answer["reasons"]
    assert answer["judged_with"]["exact"] is False
    for code in ("key", "unknown", "value"):
        assert set(levels_of(answer, code)) == {"warning"}, code
    assert levels_of(answer, "version") == ["note"]


def test_many_commands_are_judged_each_by_its_release():
    commands = [in_image(f"vllm/vllm-openai:v{v}", FLASH) for v in ("0.25.0", "0.32.0")]
    first, second = (answers[0] for answers in check_commands(commands, GROUND))
    assert first["ok"]
    assert not second["ok"]
    assert first["candidate"]["engine_version"] == "0.25.0"
    assert "engine_version" not in second["candidate"]


@over(
    "command, releases_",
    [
        ("vllm serve Qwen/Qwen3-32B -tp 1 --max-model-len 8192", ("0.20.0", "0.27.0", "0.33.0")),
        ("sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp 8", ("0.5.18", "0.5.21")),
    ],
)
def test_a_better_command_is_one_of_its_release(command, releases_):
    for release in releases_:
        ground = {"hardware": "h200-sxm:8", "engine_version": release, "concurrency": 512}
        better = check(command, **ground)["better"]
        assert better is not None
        assert better["commands"], better.get("why_no_command")
        again = check(json.dumps(better["commands"][0]["argv"]), **ground)
        assert again["ok"], again["reasons"]
        for degree in ("tp", "pp", "dp"):
            assert again["candidate"][degree] == better["candidate"][degree]


def test_when_options_and_keys_came_and_went():
    assert left("vllm", "--attention-config", "use_fp4_indexer_cache") == "0.30.0"
    assert came("vllm", "--attention-config", "indexer_kv_dtype") == "0.24.0"
    assert came("sglang", "--attn-dp-size") == "0.5.22"
    assert left("sglang", "--nsa-prefill-backend") == "0.5.20"
    assert came("vllm", "--model") is None
    assert left("vllm", "--model") is None
    assert left("vllm", "--never-known") is None
    # what differs gives the older rows again
    newer, older, changes = table("option_releases", "differing").values()
    assert differences(newer, older) == changes
    assert laid_over(newer, changes) == older


def test_successors_of_what_is_gone():
    table, flag = engine("vllm").options, "--attention-config"
    cache = successor("vllm", flag, table, key="use_fp4_indexer_cache")
    assert (cache.option, cache.path) == ("attention_config", "indexer_kv_dtype")
    assert (cache.value(True), cache.value(False)) == ("mxfp4", None)
    older = option_table("vllm", "0.23.0")  # which has neither the successor nor a reason to use it
    assert successor("vllm", flag, older, key="use_fp4_indexer_cache") is None
    assert successor("vllm", "--calculate-kv-scales", table) is None  # left out
    mori = successor("vllm", "--all2all-backend", table, value="mori")
    assert mori.value("mori") == "mori_high_throughput"
    prefill = successor("sglang", "--nsa-prefill-backend", engine("sglang").options)
    assert (prefill.option, prefill.value("fa3")) == ("dsa_prefill_backend", "fa3")
    # gone values name their successor
    answer = check("vllm serve Qwen/Qwen3-30B-A3B -tp 4 --all2all-backend mori")
    (reason,) = [text for text in answer["reasons"] if "--all2all-backend" in text]
    assert "Use --all2all-backend (mori_high_throughput" in reason
    assert replacement("vllm", "--foo", engine("vllm").options) is None


@over("name", READ)
def test_every_successor_is_an_option_of_some_release(name):
    """And each gone key or value belongs to an option and is gone from the pinned release."""
    tables = [option_table(name, release) for release in releases(name)]
    table = engine(name).options
    for word, gone in grammars()[name].gone.items():
        if gone.use != "nothing":
            flag, _, path = gone.use.partition(".")
            rows = [t.by_spelling[flag] for t in tables if flag in t.by_spelling]
            assert rows, word
            assert not path or not rows[-1].keys or path in rows[-1].keys, word
            values = [value for value in gone.values.values() if rows[-1].choices and not path]
            assert set(values) <= set(rows[-1].choices), word
        flag, dot, key = word.partition(".")
        if dot:
            assert key not in table.by_spelling[flag].keys, word
        option, equals, value = word.partition("=")
        if equals:
            assert value not in table.by_spelling[option].choices, word


SGLANG = "sglang serve --model-path Qwen/Qwen3-30B-A3B --tp 4"
DOTTED = f"{FLASH.split(' --att')[0]} --attention-config.use_fp4_indexer_cache=true"


@over(
    "command, starts",
    [
        (f"vllm serve {FLASH}", '{"indexer_kv_dtype":"mxfp4"}'),
        (f"vllm serve {DOTTED}", "--attention-config.indexer_kv_dtype mxfp4"),
        ("vllm serve Qwen/Qwen3-30B-A3B -tp 4 --all2all-backend mori", "mori_high_throughput"),
        (f"{SGLANG} --enable-breakable-cuda-graph", "--cuda-graph-backend-prefill breakable"),
        (f"{SGLANG} --nsa-prefill-backend fa3", "--dsa-prefill-backend fa3"),
    ],
)
def test_a_change_writes_the_successor_of_what_is_gone(command, starts):
    answer = check(command)
    assert answer["verdict"] == "cannot start"
    change = answer["changes"][0]
    assert starts in change["command"]
    assert check(json.dumps(change["argv"]))["ok"]
    # a key with nothing in its place is left out: False was the default, which needs no word
    words = """Qwen/Qwen3-32B -tp 4 --attention-config '{"use_fp4_indexer_cache": false}'"""
    change = check(f"vllm serve {words}")["changes"][0]
    assert "--attention-config" not in change["argv"]
