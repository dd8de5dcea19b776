import json
import math
import subprocess
import sys

import pytest

from recipe_core import __version__
from tests.corpus.__main__ import accept, compare, main, recorded, report
from tests.corpus.asking import digest
from tests.corpus.values import NOTHING, differences
from tests.fixtures.paths import ROOT
from tests.fixtures.rows import over, table

LONG = ("over_time/", "sizes/embeddings", "sizes/nothing-within", "llama-8b-every-technique")
"""Requests that are asked at night: a tenth of them, which takes two fifths of the time."""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([word for text in LONG for word in ("--but", text)], id="most"),
        pytest.param(
            [word for text in LONG for word in ("--only", text)],
            id="long",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_answers_are_as_recorded(words):
    program = [sys.executable, "-m", "tests.corpus", "compare", "--processes", "1", *words]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 0 answers" not in done.stdout


@over("path, value, found", table("corpus", "changes"))
def test_changes_of_an_answer_are_found_where_they_are(path, value, found):
    answer = table("corpus", "answer")
    value = float(value) if value == "nan" else value
    now = answer | {path.partition(".")[0].partition("[")[0]: value}
    if value == "nothing":
        del now[path]
    assert [change.path for change in differences(answer, now)] == [path] * found


def test_a_digest_holds_a_file_but_for_what_its_machine_and_version_decide():
    own, other = "0123456789ab" * 5, "fedcba987654" * 5
    text = f"start: {own} 0.123456789012 recipe-builder {__version__}"
    same = text.replace(own, other).replace("789012", "789013")
    assert digest(text.encode(), own) == digest(same.encode(), other)
    for changed in (text.replace("start", "stop"), text.replace("0.1234", "0.1235")):
        assert digest(text.encode(), own) != digest(changed.encode(), own)


def test_the_report_names_requests_and_values():
    before = {"plans/a": {"x": 1.0}, "plans/b": {"x": list(range(30))}, "plans/gone": 1}
    now = {"plans/a": {"x": 1.01}, "plans/b": {"x": list(range(1, 31))}, "plans/new": 1}
    lines = report(compare(before, now), len(now)).splitlines()
    assert lines[:2] == ["plans/a: 1 difference", "  x: 1.0 -> 1.01 (+1 %)"]
    assert lines[2] == "plans/b: 30 differences"
    assert lines[23] == "  … and 10 more"
    assert lines[-1] == "4 of 3 answers differ."
    assert compare(now, now) == compare({"nan": math.nan}, {"nan": math.nan}) == {}


def test_accepted_answers_are_recorded_with_a_reason(tmp_path, capsys):
    accept({"plans/a": {"b": 1, "a": 0.1}, "plans/b": [1]}, " Prices of May. ", tmp_path)
    accept({"plans/b": NOTHING}, "No longer asked.", tmp_path)
    assert recorded(folder=tmp_path / "answers") == {"plans/a": {"a": 0.1, "b": 1}}
    assert list(json.loads((tmp_path / "answers/plans/a.json").read_text())) == ["a", "b"]
    history = (tmp_path / "HISTORY.md").read_text()
    assert ": Prices of May.\n\n- plans/a\n- plans/b\n" in history
    assert history.endswith(": No longer asked.\n\n- plans/b\n")
    with pytest.raises(SystemExit, match="2"):
        main(["accept", "--reason", "  "])
    assert "REASON" in capsys.readouterr().err
