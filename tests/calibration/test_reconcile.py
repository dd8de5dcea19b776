"""Measured figures beside estimates: matches, tested explanations, and what is left open."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recipe_core.base.documents import to_yaml
from recipe_core.base.units import GIB
from recipe_core.calibration.reconcile import EXPLAINED, MATCH, OPEN, Reconciled, reconcile
from recipe_core.doors.answers import Answers
from recipe_core.doors.cli.scraping import scraped
from recipe_core.measured.imports.imported import Imported
from recipe_core.measured.imports.registry import import_file
from recipe_core.search.plans import estimate_batch
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

IMPORTS = DATA / "imports"
REQUEST = {
    "model": "Qwen/Qwen3-32B",
    "hardware": {"device": "h100-sxm", "per_node": 4},
    "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 8},
    "candidate": {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1},
}
SMALL = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"device": "rtx-3090", "per_node": 1},
    "workload": REQUEST["workload"] | {"concurrency": 4, "max_context": 4096},
    "candidate": REQUEST["candidate"] | {"tp": 1},
}
BOOT = IMPORTS / "vllm_gpu_boot.log"


def estimate(request: dict = REQUEST, **changes: dict) -> dict:
    (answer,) = estimate_batch([request | {key: request[key] | changes[key] for key in changes}])
    return answer


def beside(one: Imported, request: dict = REQUEST) -> Reconciled:
    (answer,) = reconcile([("x", one)], request)
    return answer


def measured(figures: dict, **fields: object) -> Imported:
    return Imported(format="test", figures=figures, **fields)


def verdicts(answer: Reconciled) -> dict[str, str]:
    return {row.figure: row.verdict for row in answer.rows}


def test_the_estimates_own_figures_match() -> None:
    answer = estimate()
    served, memory = answer["serving"], answer["memory"]
    figures = {key: served[key] for key in ("ttft_s", "tpot_s", "output_tokens_per_s")}
    figures |= {key: memory[key] for key in ("weights_bytes", "kv_cache_bytes", "kv_cache_tokens")}
    result = beside(measured(figures))
    assert set(verdicts(result).values()) == {MATCH}
    assert len(result.rows) == len(figures)
    assert result.ok


@over("changes fields title", table("calibration", "explanations"))
def test_what_a_file_states_differently_explains_its_times(
    changes: dict, fields: dict, title: str
) -> None:
    tpot = estimate(**changes)["serving"]["tpot_s"]
    (row,) = beside(measured({"tpot_s": tpot}, **fields)).rows
    assert row.verdict == EXPLAINED
    assert any(title in why for why in row.explained_by)
    assert row.again == pytest.approx(tpot, rel=0.02)
    low, high = row.again_band
    assert low <= tpot <= high


def test_limits_explain_the_cache_and_an_explanation_that_does_not_fit_is_none() -> None:
    one = measured({"tpot_s": 5.0}, load={"mode": "closed", "concurrency": 16})
    answer = beside(one)
    assert verdicts(answer) == {"tpot_s": OPEN}
    assert not answer.ok
    assert answer.facts == ("the load was 16 requests in flight",)
    assert answer.rows[0].again is not None
    for candidate, split, wanted in (
        ({"memory_fraction": 0.6}, {"memory_fraction": 0.6}, EXPLAINED),
        ({"max_num_seqs": 1024}, {}, MATCH),
    ):
        memory = estimate(candidate=candidate)["memory"]
        figures = {key: memory[key] for key in ("kv_cache_bytes", "kv_cache_tokens")}
        assert verdicts(beside(measured(figures, split=split)))["kv_cache_bytes"] == wanted


def test_cached_prompts_and_a_guessed_format_explain_figures() -> None:
    load = {"input_tokens": 32768, "concurrency": 1}
    long = {**REQUEST, "workload": {**REQUEST["workload"], **load}}
    ttft = estimate(long, workload={"prefix_hit": 0.98})["serving"]["ttft_s"]
    (row,) = beside(measured({"ttft_s": ttft}, settings={"prefix_hit": 0.98}), long).rows
    assert row.verdict == EXPLAINED
    assert "98% of prompts' tokens" in row.explained_by[0]
    weights = estimate(candidate={"weight_dtype": "fp8"})["memory"]["weights_bytes"]
    (row,) = beside(measured({"weights_bytes": weights})).rows
    assert row.verdict == EXPLAINED
    assert "no file says so" in row.explained_by[0]


def test_published_starts_and_training_logs_are_explained() -> None:
    """Issue 10517 of vLLM: 31,232 tokens; today's rules with a shorter context say 44.5 k."""
    answer = beside(import_file(BOOT)[0], SMALL)
    explained = dict.fromkeys(("kv_cache_tokens", "max_concurrency"), EXPLAINED)
    assert verdicts(answer) == {"weights_bytes": MATCH} | explained
    row = next(row for row in answer.rows if row.figure == "kv_cache_tokens")
    for said in ("0.6.4", "20,000"):
        assert any(said in why for why in row.explained_by)
    assert row.again == pytest.approx(31232, rel=0.05)
    split = {"tp": 1, "pp": 1, "dp": 8, "zero_stage": 3, "micro_batch": 1}
    request = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"device": "h200-sxm", "per_node": 8},
        "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 8},
        "candidate": split | {"engine": "torchtitan", "recompute": "selective"},
    }
    answer = beside(import_file(IMPORTS / "torchtitan.log")[0], request)
    assert "the run had sequence length 8192" in answer.facts
    assert verdicts(answer)["step_s"] == EXPLAINED


def test_a_cache_set_by_hand_holds_the_tokens_of_its_bytes() -> None:
    memory = estimate()["memory"]
    cache, tokens = memory["kv_cache_bytes"], memory["kv_cache_tokens"]
    figures = {"kv_cache_bytes": GIB, "kv_cache_tokens": GIB / (cache / tokens)}
    result = beside(measured(figures, settings={"cache_set": True}))
    assert set(verdicts(result).values()) == {EXPLAINED}
    graphs = measured({"kv_cache_bytes": cache * 0.8, "graph_bytes": cache * 0.2})
    (row,) = beside(graphs).rows
    assert row.verdict == EXPLAINED
    assert "captured graphs" in row.explained_by[0]


def test_a_start_up_log_tells_of_the_benchmark_beside_it() -> None:
    memory = estimate(candidate={"memory_fraction": 0.6})["memory"]
    boot = measured({"kv_cache_bytes": memory["kv_cache_bytes"]}, split={"memory_fraction": 0.6})
    run = measured({"tpot_s": 9.0, "kv_cache_tokens": memory["kv_cache_tokens"]})
    first, second = reconcile([("boot", boot), ("run", run)], REQUEST)
    assert verdicts(first) == {"kv_cache_bytes": EXPLAINED}
    assert verdicts(second) == {"kv_cache_tokens": EXPLAINED, "tpot_s": OPEN}


def write(tmp_path: Path, request: dict) -> str:
    path = tmp_path / "request.yaml"
    path.write_text(to_yaml(request))
    return str(path)


def test_the_command_shows_verdicts_and_offers_to_learn(tmp_path: Path) -> None:
    asked = ("--request", write(tmp_path, SMALL))
    done = recipe("reconcile", str(BOOT), *asked)
    assert done.returncode == 0, done.stderr
    assert "explained by vllm 0.6.4 ran" in done.stdout
    assert "Learn from it" not in done.stdout
    run = str(IMPORTS / "vllm_bench_closed.json")
    done = recipe("reconcile", run, *asked)
    assert done.returncode == 1  # two cores are no RTX 3090
    assert "not explained" in done.stdout
    assert f"recipe import {run} --request {asked[1]} -o runs.csv" in done.stdout
    answer = json.loads(recipe("reconcile", run, *asked, "--json").stdout)
    assert answer["ok"] is False
    assert answer["measurements"][0]["figures"]
    bundle = str(tmp_path / "bundle")  # says what ran, too
    assert recipe("build", asked[1], "-o", bundle).returncode == 0
    done = recipe("reconcile", str(BOOT), "--request", bundle)
    assert done.returncode == 0, done.stdout + done.stderr
    done = recipe("import", run, "--request", bundle)
    assert done.returncode == 0, done.stderr
    assert "meta-llama/Llama-3.1-8B-Instruct,rtx-3090" in done.stdout


def test_the_api_takes_texts_and_reads_no_address() -> None:
    ask, text = Answers(folders=False), BOOT.read_text()
    answer = ask.reconcile({"request": SMALL, "texts": [text]})
    assert answer["ok"] is True
    assert answer["measurements"][0]["source"] == "texts[0]"
    for body, field in (
        ({"request": SMALL}, "texts"),
        ({"request": SMALL, "texts": []}, "texts"),
        ({"request": SMALL, "texts": [1]}, "texts"),
        ({"request": SMALL, "texts": ["http://127.0.0.1:1/metrics"]}, "file"),
        ({"request": SMALL, "texts": [text], "url": "x"}, "url"),
        ({"texts": [text]}, "request"),
    ):
        assert refusal(ask.reconcile, body).field == field


@contextmanager
def served(status: int, body: bytes, headers: dict | None = None) -> Iterator[tuple[str, list]]:
    """A server on the loopback that answers everything alike, and the paths that were asked."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_metrics_of_a_running_server_are_read_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(200, (IMPORTS / "vllm_metrics.txt").read_bytes()) as (url, paths):
        done = recipe("reconcile", url, "--request", write(tmp_path, SMALL), "--json")
    assert paths == ["/metrics"]
    (measurement,) = json.loads(done.stdout)["measurements"]
    assert (measurement["source"], measurement["format"]) == (url, "prometheus")
    with served(302, b"", {"Location": "http://127.0.0.1:1/x"}) as (url, paths):
        assert "status 302" in str(refusal(scraped, url))
        assert paths == ["/metrics"]
    with served(200, b"\xff\xfe") as (url, _):
        assert "not UTF-8" in str(refusal(scraped, url))
    with served(200, b"x" * 100) as (url, _):
        monkeypatch.setattr("recipe_core.doors.cli.scraping.MOST_BYTES", 50)
        assert "more than 50 bytes" in str(refusal(scraped, url))
    for wrong in ("http://", "http://me:secret@127.0.0.1/", "http://127.0.0.1:x/"):
        said = str(refusal(scraped, wrong))
        assert "not the address of a server" in said
        assert "secret" not in said
    assert "does not answer" in str(refusal(scraped, "http://127.0.0.1:1/"))
