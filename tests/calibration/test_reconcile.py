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
from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.reconcile import EXPLAINED, MATCH, OPEN, Reconciled, reconcile
from recipe_core.doors.answers import Answers
from recipe_core.doors.cli.scraping import scraped
from recipe_core.measured.imports.imported import Imported
from recipe_core.measured.imports.registry import import_file
from recipe_core.search.plans import estimate_batch
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA

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
    "workload": {
        "input_tokens": 1024,
        "output_tokens": 256,
        "concurrency": 4,
        "max_context": 4096,
    },
    "candidate": {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1},
}


def estimate(**changes: dict) -> dict:
    values = {
        key: {**value, **changes.get(key, {})} for key, value in REQUEST.items() if key != "model"
    }
    (answer,) = estimate_batch([{**REQUEST, **values}])
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


@pytest.mark.parametrize(
    ("changes", "fields", "title"),
    [
        (
            {"workload": {"concurrency": 256}},
            {"load": {"mode": "closed", "concurrency": 256}},
            "256 requests in flight",
        ),
        (
            {"workload": {"input_tokens": 16384, "concurrency": 64, "max_context": 32768}},
            {
                "load": {"mode": "closed", "concurrency": 64, "input_tokens": 16384},
                "settings": {"max_context": 32768},
            },
            "16,384 tokens a prompt",
        ),
        ({"candidate": {"weight_dtype": "fp8"}}, {"split": {"weight_dtype": "fp8"}}, "in fp8"),
        ({"candidate": {"tp": 2}}, {"split": {"tp": 2}}, "the split was tp 2"),
    ],
)
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


def test_an_explanation_that_does_not_fit_is_none() -> None:
    one = measured({"tpot_s": 5.0}, load={"mode": "closed", "concurrency": 16})
    answer = beside(one)
    assert verdicts(answer) == {"tpot_s": OPEN}
    assert not answer.ok
    assert answer.facts == ("the load was 16 requests in flight",)
    assert answer.rows[0].again is not None


@pytest.mark.parametrize(
    ("candidate", "split"),
    [({"memory_fraction": 0.6}, {"memory_fraction": 0.6}), ({"max_num_seqs": 1024}, {})],
)
def test_limits_explain_the_cache(candidate: dict, split: dict) -> None:
    memory = estimate(candidate=candidate)["memory"]
    figures = {key: memory[key] for key in ("kv_cache_bytes", "kv_cache_tokens")}
    answer = beside(measured(figures, split=split))
    wanted = EXPLAINED if split else MATCH
    assert verdicts(answer)["kv_cache_bytes"] == wanted


def test_cached_prompts_explain_a_short_time_to_the_first_token() -> None:
    load = {"input_tokens": 32768, "concurrency": 1}
    long = {**REQUEST, "workload": {**REQUEST["workload"], **load}}
    with_hits = {**long, "workload": {**long["workload"], "prefix_hit": 0.98}}
    (answer,) = estimate_batch([with_hits])
    one = measured({"ttft_s": answer["serving"]["ttft_s"]}, settings={"prefix_hit": 0.98})
    (row,) = beside(one, long).rows
    assert row.verdict == EXPLAINED
    assert "98% of prompts' tokens" in row.explained_by[0]


def test_weights_of_an_unstated_format_are_a_guess_that_says_so() -> None:
    weights = estimate(candidate={"weight_dtype": "fp8"})["memory"]["weights_bytes"]
    (row,) = beside(measured({"weights_bytes": weights})).rows
    assert row.verdict == EXPLAINED
    assert "no file says so" in row.explained_by[0]


def test_a_published_start_of_an_older_release_is_explained() -> None:
    """Issue 10517 of vLLM: 31,232 tokens; today's rules with a shorter context say 44.5 k."""
    answer = beside(import_file(IMPORTS / "vllm_gpu_boot.log")[0], SMALL)
    assert verdicts(answer) == {
        "weights_bytes": MATCH,
        "kv_cache_tokens": EXPLAINED,
        "max_concurrency": EXPLAINED,
    }
    row = next(row for row in answer.rows if row.figure == "kv_cache_tokens")
    assert any("0.6.4" in why for why in row.explained_by)
    assert any("20,000" in why for why in row.explained_by)
    assert row.again == pytest.approx(31232, rel=0.05)


def test_a_cache_set_by_hand_holds_the_tokens_of_its_bytes() -> None:
    answer = estimate()["memory"]
    per_token = answer["kv_cache_bytes"] / answer["kv_cache_tokens"]
    figures = {"kv_cache_bytes": GIB, "kv_cache_tokens": GIB / per_token}
    result = beside(measured(figures, settings={"cache_set": True}))
    assert set(verdicts(result).values()) == {EXPLAINED}
    graphs = measured(
        {
            "kv_cache_bytes": answer["kv_cache_bytes"] * 0.8,
            "graph_bytes": answer["kv_cache_bytes"] * 0.2,
        }
    )
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


def test_training_logs_are_held_against_training_estimates() -> None:
    request = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"device": "h200-sxm", "per_node": 8},
        "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 8},
        "candidate": {
            "engine": "torchtitan",
            **{"tp": 1, "pp": 1, "dp": 8, "zero_stage": 3, "micro_batch": 1},
            "recompute": "selective",
        },
    }
    answer = beside(import_file(IMPORTS / "torchtitan.log")[0], request)
    assert "the run had sequence length 8192" in answer.facts
    assert verdicts(answer)["step_s"] == EXPLAINED


# doors


def write(tmp_path: Path, request: dict) -> str:
    path = tmp_path / "request.yaml"
    path.write_text(to_yaml(request))
    return str(path)


def test_the_command_shows_verdicts_and_offers_to_learn(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    done = recipe("reconcile", str(IMPORTS / "vllm_gpu_boot.log"), "--request", path)
    assert done.returncode == 0, done.stderr
    assert "explained by vllm 0.6.4 ran" in done.stdout
    assert "Learn from it" not in done.stdout
    run = str(IMPORTS / "vllm_bench_closed.json")
    done = recipe("reconcile", run, "--request", path)
    assert done.returncode == 1  # two cores are no RTX 3090
    assert "not explained" in done.stdout
    assert f"recipe import {run} --request {path} -o runs.csv" in done.stdout
    answer = json.loads(recipe("reconcile", run, "--request", path, "--json").stdout)
    assert answer["ok"] is False
    assert answer["measurements"][0]["figures"]


def test_a_bundle_says_what_ran(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    assert recipe("build", write(tmp_path, SMALL), "-o", str(bundle)).returncode == 0
    done = recipe("reconcile", str(IMPORTS / "vllm_gpu_boot.log"), "--request", str(bundle))
    assert done.returncode == 0, done.stdout + done.stderr
    done = recipe("import", str(IMPORTS / "vllm_bench_closed.json"), "--request", str(bundle))
    assert done.returncode == 0, done.stderr
    assert "meta-llama/Llama-3.1-8B-Instruct,rtx-3090" in done.stdout


def test_the_api_takes_texts_and_reads_no_address() -> None:
    ask = Answers(folders=False)
    text = (IMPORTS / "vllm_gpu_boot.log").read_text()
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
        with pytest.raises(InputError) as raised:
            ask.reconcile(body)
        assert raised.value.field == field


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


def test_metrics_of_a_running_server_are_read(tmp_path: Path) -> None:
    with served(200, (IMPORTS / "vllm_metrics.txt").read_bytes()) as (url, paths):
        done = recipe("reconcile", url, "--request", write(tmp_path, SMALL), "--json")
    assert paths == ["/metrics"]
    (one,) = json.loads(done.stdout)["measurements"]
    assert (one["source"], one["format"]) == (url, "prometheus")


def test_addresses_are_held_to_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(302, b"", {"Location": "http://127.0.0.1:1/x"}) as (url, paths):
        with pytest.raises(InputError, match="status 302"):
            scraped(url)
        assert paths == ["/metrics"]
    with served(200, b"x" * 100) as (url, _):
        monkeypatch.setattr("recipe_core.doors.cli.scraping.MOST_BYTES", 50)
        with pytest.raises(InputError, match="more than 50 bytes"):
            scraped(url)
    with served(200, b"\xff\xfe") as (url, _), pytest.raises(InputError, match="not UTF-8"):
        scraped(url)
    for wrong in ("http://", "http://me:secret@127.0.0.1/", "http://127.0.0.1:x/"):
        with pytest.raises(InputError, match="not the address of a server") as raised:
            scraped(wrong)
        assert "secret" not in str(raised.value)
    with pytest.raises(InputError, match="does not answer"):
        scraped("http://127.0.0.1:1/")
