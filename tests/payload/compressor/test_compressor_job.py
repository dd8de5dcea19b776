"""JOB.json: what is read, and what is refused by name."""

import json

from recipe_core.payload.compressor.errors import CompressError
from recipe_core.payload.compressor.job import load_job, read_job
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table

LEAST = {"schema_version": 1, "source": "base", "output": "small", "technique": "int8_w8a8"}


def test_a_job_of_the_least_has_defaults_and_paths_beside_its_file(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(LEAST))
    job = load_job(path)
    assert (job.tool, job.written, job.options.ignore) == ("embedded", "safetensors", ("lm_head",))
    assert job.source_folder == tmp_path / "base"
    assert job.text(None).name == "text.txt"
    assert job.text("own.txt") == tmp_path / "own.txt"
    assert read_job(LEAST | {"technique": "gguf_q4_k_m"}).written == "gguf"


def test_a_wrong_or_missing_field_is_named():
    for message, change in table("compressor", "wrong_jobs"):
        assert message in str(refusal(read_job, LEAST | change, kind=CompressError))
    without = {name: value for name, value in LEAST.items() if name != "technique"}
    assert "job.technique is missing" in str(refusal(read_job, without, kind=CompressError))
