"""JOB.json: what is read, and what is refused by name."""

from __future__ import annotations

import json

import pytest

from recipe_core.compressor.errors import CompressError
from recipe_core.compressor.job import load_job, read_job

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


WRONG = {
    "job.colour is unknown": {"colour": 1},
    "job.schema_version is 2": {"schema_version": 2},
    "job.format is 'pickle'": {"format": "pickle"},
    "which is the source": {"output": "./base"},
    "job.options.removed is 2.0": {"options": {"removed": 2}},
    "job.options.group is True, not int": {"options": {"group": True}},
    "job.options.ignore is 'lm_head', not a list": {"options": {"ignore": "lm_head"}},
    "job.calibration.samples is 0. Use at least 1": {"calibration": {"samples": 0}},
    "job.verify.least_retained is 1.5": {"verify": {"least_retained": 1.5}},
    "job.format is 'onnx' for gguf_q8_0": {"technique": "gguf_q8_0", "format": "onnx"},
}


def test_a_wrong_or_missing_field_is_named():
    for message, change in WRONG.items():
        with pytest.raises(CompressError, match=message):
            read_job(LEAST | change)
    with pytest.raises(CompressError, match=r"job\.technique is missing"):
        read_job({name: value for name, value in LEAST.items() if name != "technique"})
