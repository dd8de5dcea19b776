from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe_core import __version__
from tests.corpus.__main__ import accept, compare, main, recorded, report
from tests.corpus.asking import digest
from tests.corpus.comparing import NOTHING, differences
from tests.corpus.reducing import WORDS, reduced
from tests.fixtures.paths import ROOT


def corpus(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "tests.corpus", *words]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)


def test_answers_are_as_recorded() -> None:
    done = corpus("compare", "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr


ANSWER: dict[str, Any] = {
    "tpot_s": 0.0235,
    "weights_bytes": 17640718336,
    "nothing": 0.0,
    "price": None,
    "argv": ["vllm", "serve", "--tensor-parallel-size", "8"],
    "files": {"launch.json": "aa", "targets/slurm/job.sbatch": "bb"},
    "notes": [WORDS],
}


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("tpot_s", 0.0235 * (1 + 1e-8), True),
        ("tpot_s", 0.0235 * (1 + 1e-11), False),
        ("tpot_s", float("nan"), True),
        ("tpot_s", None, True),
        ("tpot_s", NOTHING, True),
        ("weights_bytes", 17640718336.0, False),
        ("weights_bytes", 17640718336 + 100, True),
        ("nothing", -0.0, False),
        ("nothing", False, True),
        ("price", 0, True),
        ("argv[3]", ["vllm", "serve", "--tensor-parallel-size", "4"], True),
        ("argv[2]", ["vllm", "serve", "-tp", "8"], True),
        ("files.launch.json", {**ANSWER["files"], "launch.json": "cc"}, True),
        ("files.targets/slurm/job.sbatch", {"launch.json": "aa"}, True),
        ("files.new", {**ANSWER["files"], "new": "dd"}, True),
        ("notes[1]", [WORDS, WORDS], True),
        ("more", 1, True),
    ],
)
def test_changes_of_an_answer_are_found_where_they_are(path: str, value: Any, found: bool) -> None:
    now = copy.deepcopy(ANSWER)
    now[path.partition(".")[0].partition("[")[0]] = value
    now = {name: value for name, value in now.items() if value is not NOTHING}
    assert [change.path for change in differences(ANSWER, now)] == [path] * found


def test_not_a_number_equals_itself() -> None:
    assert not list(differences(float("nan"), float("nan")))
    assert reduced([float("nan"), float("inf"), -0.0]) == ["nan", "inf", 0.0]


def test_a_changed_sentence_is_no_difference() -> None:
    def said(note: str, code: str) -> Any:
        return reduced({"notes": [note], "code": code, "reasons": []})

    assert said("It fits.", "fits") == said("It fits, and well.", "fits")
    assert said("It fits.", "fits") != said("It fits.", "tight")
    assert said("It fits.", "fits") == {"notes": [WORDS], "code": "fits", "reasons": []}


def test_words_of_commands_and_names_stay() -> None:
    kept = {"command": "vllm serve a -tp 4", "argv": ["-e", "a b"], "verdict": "cannot start"}
    assert reduced(kept) == kept
    assert reduced({"recipe_digest": "ab", "url": "x" * 200}) == {
        "recipe_digest": WORDS,
        "url": WORDS,
    }


def test_any_entry_of_a_long_list_counts() -> None:
    rows = [{"tpot_s": 0.01 * place, "engine": "vllm"} for place in range(1, 41)]
    before = reduced(rows)
    assert before["entries"] == 40
    assert before["first"] == rows[:3]
    for change in ({"tpot_s": 0.5}, {"engine": "sglang"}, {"load": 3}):
        after = reduced([*rows[:30], {**rows[30], **change}, *rows[31:]])
        assert list(differences(before, after))
    places = reduced([*rows[:30], rows[31], rows[30], *rows[32:]])
    assert [change.path for change in differences(before, places)] == ["sums.tpot_s.by_place"]


def test_a_digest_holds_a_file_but_for_what_its_machine_and_version_decide() -> None:
    own = "0123456789ab" * 5
    text = f"start: {own} 0.123456789012 recipe-builder {__version__}"
    same = text.replace(own, "fedcba987654" * 5).replace("789012", "789013")
    assert digest(text.encode(), own) == digest(same.encode(), "fedcba987654" * 5)
    assert digest(text.encode(), own) != digest(text.replace("start", "stop").encode(), own)
    assert digest(text.encode(), own) != digest(text.replace("0.1234", "0.1235").encode(), own)


def test_the_report_names_requests_and_values() -> None:
    before = {"plans/a": {"x": 1.0}, "plans/b": {"x": list(range(30))}, "plans/gone": 1}
    now = {"plans/a": {"x": 1.01}, "plans/b": {"x": list(range(1, 31))}, "plans/new": 1}
    lines = report(compare(before, now), len(now)).splitlines()
    assert lines[:2] == ["plans/a: 1 difference", "  x: 1.0 -> 1.01 (+1 %)"]
    assert lines[2] == "plans/b: 30 differences"
    assert lines[23] == "  … and 10 more"
    assert lines[-1] == "4 of 3 answers differ."
    assert compare(now, now) == {}


def test_accepted_answers_are_recorded_with_their_reason(tmp_path: Path) -> None:
    accept({"plans/a": {"b": 1, "a": 0.1}, "plans/b": [1]}, " Prices of May. ", tmp_path)
    accept({"plans/b": NOTHING}, "No longer asked.", tmp_path)
    assert recorded(folder=tmp_path / "answers") == {"plans/a": {"a": 0.1, "b": 1}}
    assert list(json.loads((tmp_path / "answers/plans/a.json").read_text())) == ["a", "b"]
    history = (tmp_path / "HISTORY.md").read_text()
    assert ": Prices of May.\n\n- plans/a\n- plans/b\n" in history
    assert history.endswith(": No longer asked.\n\n- plans/b\n")


def test_a_recording_needs_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["accept", "--reason", "  "])
    assert "REASON" in capsys.readouterr().err
