"""Option tables by release: files of differences, which table judges a command, what took the place
of what is gone; and memory rules of vLLM's earlier releases, against what those logged when they
started.
"""

import csv
import json
import os
import subprocess

import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.base.units import GIB
from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import Item, judge_command, judge_items
from recipe_core.engines import options
from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_releases import (
    memory_release,
    newest_release_table,
    option_replacement,
    option_successor,
    pinned_release_table,
    release_of_change,
    release_table,
    releases,
)
from recipe_core.engines.options import laid_over, option_table
from recipe_core.engines.release import Change, History, release_key
from recipe_core.engines.spec import engine
from recipe_core.plans.plans import estimate_batch, plan_candidate
from recipe_core.plans.splits import row_request
from recipe_core.recipe.decision import decide
from scripts.engine_option_changes import option_differences
from tests.conftest import make_request
from tests.fixtures.paths import DATA, ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.verdicts import assert_says, levels_of

READ = ["vllm", "sglang"]
INDEXER = """--attention-config '{"use_fp4_indexer_cache": true}'"""
FLASH = f"deepseek-ai/DeepSeek-V4-Flash -tp 4 --kv-cache-dtype fp8 {INDEXER}"


def check(command, **ground):
    return judge_command(command, CommandContext.of(**{"hardware": "b200-sxm:8"} | ground))


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
    missing = set(grammars()[name].means) & set(spec.options.by_name) - set(table.by_name)
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
    for changes in table("releases", "that_do_not_fit"):
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
    ours = release_table(name, written["version"])
    assert ours.exact
    theirs = type(ours.table).model_validate(written | {"same_in": ours.table.same_in})
    for flag, option in theirs.options.items():
        row = ours.table.options[flag]
        for field in type(option).model_fields:
            parsed, kept = getattr(option, field), getattr(row, field)
            same = set(parsed) == set(kept) if isinstance(parsed, tuple) else parsed == kept
            assert same, (flag, field, parsed, kept)
    assert set(theirs.options) == set(ours.table.options)


@over("name, version, table, exact", table("releases", "the_table_of_a_release_is_its_own"))
def test_the_table_of_a_release_is_its_own_or_the_nearest(name, version, table, exact):
    found = release_table(name, version)
    assert (found.table.version, found.exact) == (table, exact)


@over("command, judged_on, wanted", table("releases", "answers"))
def test_answers_are_those_of_the_release(command, judged_on, wanted):
    assert_says(check(command.replace("FLASH", FLASH), **judged_on), wanted)


def test_the_pinned_and_the_newest_release_have_tables():
    assert pinned_release_table("vllm").table is engine("vllm").options
    assert newest_release_table("vllm").table.version == releases("vllm")[-1]
    option = option_table("vllm", "0.33.0").by_spelling["--disable-chunked-prefill"]
    assert option.flag == "--enable-chunked-prefill"
    # rules of memory are known for some releases; for others, those of the pinned one
    known = {"0.25.0": "0.25.0", "0.33.0": "0.33.0"}
    known |= dict.fromkeys(("0.32.0", "0.40.0", "0.1.0", None))
    assert {version: memory_release(engine("vllm"), version) for version in known} == known
    assert memory_release(engine("sglang"), "0.5.18") is None
    # what is no release is refused
    for version in ("latest", "0.25", " ", "0.25.0; rm", "9" * 50):
        error = refusal(CommandContext.of, hardware="h100-sxm", engine_version=version)
        assert (error.field, "not a release" in str(error)) == ("engine_version", True)


REFUSED = "--not-yet-known 3 --dtype float8 --eplb-config.no-key 1 --max-num-seqs many"
REFUSED += " --enable-chunked-prefill=false --trust-remote-code word --seed.x 1 --port"
JUDGED_BY_TABLE = ("unknown", "value", "key", "switch-value", "stray", "no-value")


@over("image", table("releases", "images_without_a_table"))
def test_a_release_without_a_table_makes_differences_warnings(image):
    answer = check(in_image(f"--entrypoint '' {image}", f"vllm serve {FLASH} {REFUSED}"))
    assert answer["ok"] in (True, None)  # nobody knows whether a release before it runs the model
    assert_says(answer, {"judged_with.exact": False, "levels": {"version": ["note"]}})
    for code in JUDGED_BY_TABLE:
        assert set(levels_of(answer, code)) == {"warning"}, code


def test_what_a_releases_own_table_refuses_is_an_error():
    answer = check(f"vllm serve {FLASH} {REFUSED}", engine_version="0.32.0")
    for code in JUDGED_BY_TABLE:
        assert set(levels_of(answer, code)) == {"error"}, code


def test_a_value_that_only_another_releases_switch_refuses_keeps_no_server_from_starting():
    """0.5 and 0.6 took it, and said so in their own advice (transformerlab-app#370)."""
    words = "--model meta-llama/Llama-3.1-8B-Instruct --enable-chunked-prefill=false"
    answer = check(in_image("vllm/vllm-openai:v0.6.6", words), hardware="h100-sxm:1")
    assert_says(answer, {"verdict": "fits", "levels": {"switch-value": ["warning"]}})
    [finding] = [each for each in answer["findings"] if each["code"] == "switch-value"]
    assert "--no-enable-chunked-prefill" not in str(finding)
    answer = check(f"vllm serve {words[8:]}", hardware="h100-sxm:1")
    assert_says(answer, {"verdict": "cannot start", "says": "write --no-enable-chunked-prefill"})


def test_many_commands_are_judged_each_by_its_release():
    commands = [in_image(f"vllm/vllm-openai:v{v}", FLASH) for v in ("0.25.0", "0.32.0")]
    found = judge_items([Item("", text) for text in commands], {"hardware": "b200-sxm:8"})
    first, second = (answers[0] for answers in found)
    assert (first["ok"], second["ok"]) == (True, False)
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
        again = check(json.dumps(better["commands"][0]["argv"]), **ground)
        assert again["ok"], again["reasons"]
        for degree in ("tp", "pp", "dp"):
            assert again["candidate"][degree] == better["candidate"][degree]


def test_when_options_and_keys_came_and_went():
    for which, name, words, release in table("releases", "came_and_left"):
        verb, version = {"came": ("came", 0), "left": ("went", -1)}[which]
        said = release_of_change(name, releases(name)[version], *words)
        assert f"{verb} with {release}" in said if release else verb not in said
    # what differs gives the older rows again
    newer, older, changes = table("releases", "differing").values()
    assert option_differences(newer, older) == changes
    assert laid_over(newer, changes) == older


def test_successors_of_what_is_gone():
    table, flag = engine("vllm").options, "--attention-config"
    cache = option_successor("vllm", flag, table, key="use_fp4_indexer_cache")
    assert (cache.option, cache.path) == ("attention_config", "indexer_kv_dtype")
    assert (cache.value(True), cache.value(False)) == ("mxfp4", None)
    older = option_table("vllm", "0.23.0")  # which has neither the successor nor a reason to use it
    assert option_successor("vllm", flag, older, key="use_fp4_indexer_cache") is None
    assert option_successor("vllm", "--calculate-kv-scales", table) is None  # left out
    mori = option_successor("vllm", "--all2all-backend", table, value="mori")
    assert mori.value("mori") == "mori_high_throughput"
    prefill = option_successor("sglang", "--nsa-prefill-backend", engine("sglang").options)
    assert (prefill.option, prefill.value("fa3")) == ("dsa_prefill_backend", "fa3")
    answer = check("vllm serve Qwen/Qwen3-30B-A3B -tp 4 --all2all-backend mori")
    assert "Use --all2all-backend (mori_high_throughput" in " ".join(answer["reasons"])
    assert option_replacement("vllm", "--foo", engine("vllm").options) is None


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


@over("command, starts", table("releases", "replaced"))
def test_a_change_writes_the_successor_of_what_is_gone(command, starts):
    answer = check(command.replace("FLASH", FLASH))
    assert answer["verdict"] == "cannot start"
    change = answer["changes"][0]
    assert starts in change["command"]
    assert check(json.dumps(change["argv"]))["ok"]
    # a key with nothing in its place is left out: False was the default, which needs no word
    words = f"Qwen/Qwen3-32B -tp 4 {INDEXER.replace('true', 'false')}"
    change = check(f"vllm serve {words}")["changes"][0]
    assert "--attention-config" not in change["argv"]


with (DATA / "vllm-boots.csv").open(encoding="utf-8") as file:
    BOOTS = list(csv.DictReader(file))
"""Figures that vLLM logged, with release and source."""

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
UNEXPLAINED = {
    (LLAMA_8B, "35000"): "as if few sequences were allowed",
    (LLAMA_8B, "32768"): "as the release before it",
    ("Qwen/Qwen3-235B-A22B-FP8", "40960"): "release 0.9.2 took more than its neighbours",
}
"""Start-ups whose cache is more than a tenth off, and what they look like."""


def request(model, device, tp, release=None, **parts):
    candidate = {"engine": "vllm", "tp": tp, "pp": 1, "dp": 1, "engine_version": release}
    stated = {k: v for k, v in (candidate | parts.pop("candidate", {})).items() if v is not None}
    return make_request(model, device, tp, candidate=stated, **parts)


def off(row, release):
    """How far a logged figure is off by the rules of a release."""
    limits = {"memory_fraction": float(row["memory_fraction"])}
    if row["max_num_seqs"]:
        limits["max_num_seqs"] = int(row["max_num_seqs"])
    place = row["model"], row["device"], int(row["tp"]), release
    workload = {"max_context": int(row["max_context"]), "concurrency": 1}
    table, at = plan_candidate(request(*place, workload=workload, candidate=limits))
    memory = table.blocks[0].estimates.memory
    found = {"weights": memory.weights_bytes[at] / GIB, "cache": memory.kv_cache_bytes[at] / GIB}
    found["tokens"] = memory.kv_cache_tokens[at]
    return abs(found[row["quantity"]] / float(row["value"]) - 1)


@over("row", BOOTS)
def test_logged_figures(row):
    most = 0.03 if row["quantity"] == "weights" else 0.1
    if (row["model"], row["max_context"]) in UNEXPLAINED and row["quantity"] != "weights":
        assert 0.1 < off(row, row["release"]) < 0.3
    else:
        assert off(row, row["release"]) < most


def test_rules_of_a_release_are_nearer_to_its_logs_than_todays():
    """Of the cache figures, 75 % are within a tenth with today's rules, 88 % with those of then."""
    rows = [row for row in BOOTS if row["quantity"] != "weights"]
    today, then = (
        sum(off(row, release and row["release"]) <= 0.1 for row in rows) / len(rows)
        for release in (None, "its own")
    )
    assert today < 0.8 < 0.85 < then


@over("release, longest, tokens, seqs, chunked, fraction", table("releases", "limits"))
def test_default_limits(release, longest, tokens, seqs, chunked, fraction):
    """Of a B200, whose limits today are the largest."""
    then = engine("vllm").at(release, longest)
    limits = then.batch_limits(178 * GIB, "sm_100")
    assert (limits.max_batched_tokens, limits.max_num_seqs) == (tokens, seqs)
    assert (then.chunked_prefill, then.memory.fraction.value) == (chunked, fraction)


@over("release, gib", table("releases", "context_counted"))
def test_context_counted(release, gib):
    """0.6.4 logged 0.44 GiB outside torch (median of five logs), the releases after it 0.13."""
    now, then = engine("vllm").memory, engine("vllm").at(release, 4096).memory
    more = then.context_single_bytes.value - now.context_single_bytes.value
    assert more / GIB == pytest.approx(gib)
    between = then.context_parallel_bytes.value - then.context_single_bytes.value
    assert between / GIB == pytest.approx(1.57 if release == "0.32.0" else 0.42, abs=0.01)


@over(
    "release, gib",
    [("0.16.0", 5.64), ("0.17.0", 2.23), ("0.28.0", 2.23), ("0.32.0", 0.59), ("0.33.0", 2.03)],
)
def test_what_a_sampler_takes(release, gib):
    """Of 1,024 sequences of Qwen3-14B: logged for 0.16 and 0.17, by the code since 0.29."""
    memory = engine("vllm").at(release, 8192).memory
    logits = 1024 * 151_936 / GIB
    state = memory.sampler_state_bytes_per_logit.value * logits
    assert state == pytest.approx(0.6 if release in ("0.32.0", "0.33.0") else 0, abs=0.01)
    assert memory.sampler_bytes_per_logit.value * logits == pytest.approx(gib, rel=0.02)


def test_the_pinned_release_is_the_engine_itself():
    vllm = engine("vllm")
    assert vllm.at(vllm.version, 8192) is vllm
    assert vllm.as_of is None
    assert vllm.at("0.11.0", 8192).as_of == "0.11.0"
    rest = {"fraction": 0.9, "source": "x", "status": "published"}
    changes = [Change(before=before, **rest) for before in ("0.9.0", "0.20.0")]
    with pytest.raises(ValueError, match="newest first"):
        History(oldest="0.2.0", changes=changes)
    assert History(oldest="0.2.0", changes=changes[::-1]).changes[0].before == "0.20.0"
    assert release_key("0.20") > release_key("0.9.2")


@over("name", ["sglang", "tensorrt-llm", "dynamo", "triton"])
def test_other_engines_have_no_history(name):
    spec = engine(name)
    assert spec.at(spec.version, 8192) is spec
    error = refusal(spec.at, "0.0.1", 8192)
    assert "are not known" in error.message
    assert spec.version in error.hint


def test_releases_without_rules_or_of_part_of_a_split_are_refused():
    place, field = ("Qwen/Qwen3-32B", "h100-sxm", 1), "candidate.engine_version"
    for release in ("0.1.7", "0.33.1", "1.0", "latest", "v0.8.3", "0.8.3rc1"):
        error = refusal(plan_candidate, request(*place, release))
        assert (error.field, error.hint) == (field, "Use 0.2.0 to 0.33.0, or leave it out.")
    error = refusal(plan_candidate, request(*place, "0.8.3", candidate={"tp": None}))
    assert "stated in full" in str(error)


def test_a_batch_keeps_releases_apart():
    """Each as if alone: prompts of one run whole, of the next in chunks, of the last as today."""
    asked = [
        request(LLAMA_8B, "rtx-3090", 1, release, workload={"max_context": most, "concurrency": 1})
        for release, most in [("0.6.4", 20_000), ("0.6.4", 33_000), (None, 20_000)]
    ]
    alone = [table.estimate(at).to_json() for table, at in map(plan_candidate, asked)]
    together = estimate_batch([each.model_dump(mode="json", exclude_none=True) for each in asked])
    assert together == alone
    assert len({answer["memory"]["kv_cache_bytes"] for answer in together}) == 3


def test_a_row_says_its_release_and_asks_for_it_again():
    place = ("Qwen/Qwen3-32B", "h200-sxm", 1)
    older = request(*place, "0.8.3")
    table, at = plan_candidate(older)
    assert table.candidate(at)["engine_version"] == "0.8.3"
    note = "Memory rules and default limits of vLLM 0.8.3; times of 0.32.0."
    assert note in table.estimate(at).to_json()["notes"]
    again, row = plan_candidate(row_request(table, at))
    assert again.estimate(row).to_json() == table.estimate(at).to_json()
    today, row = plan_candidate(request(*place))
    assert "engine_version" not in today.candidate(row)
    # only the pinned release is built
    error = refusal(decide, older, kind=NoAnswer)
    assert "bundles start vLLM 0.32.0, not 0.8.3" in str(error)
    assert error.field == "candidate.engine_version"
    assert decide(request(*place, "0.32.0")).version == "0.32.0"
