"""What starts a split is what the bundle of that split starts."""

from __future__ import annotations

import re
import shlex

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.bundle.write import bundle_of
from recipe_core.recipe import make_recipe
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import from_query
from recipe_core.search.plans import plan
from recipe_core.targets.by_hand import node_commands, read_addresses
from recipe_core.targets.start_command import start_command
from tests.conftest import make_request
from tests.present.test_report import QUERIES


@pytest.mark.parametrize("name", QUERIES)
def test_the_command_is_the_first_that_the_bundle_types(name: str) -> None:
    request = from_query(QUERIES[name])[0]
    board = plan(request)
    row = int(board.order[min(1, len(board.order) - 1)])
    made = bundle_of(make_recipe(change(request, select_split(request, board.key(row)))))
    addresses = read_addresses("", made.context.nodes)
    (_, typed), *_ = node_commands(made.context, addresses)[0].processes
    visible = re.compile(r"(CUDA|HIP)_VISIBLE_DEVICES=")
    words = [word for word in shlex.split(typed) if word != "\n" and not visible.match(word)]
    assert [word for word in shlex.split(start_command(board, row)) if word != "\n"] == words


def test_a_percentile_is_not_simulated_for_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    board = plan(make_request(objective={"limits": {"ttft_ms": 8000, "percentile": 95}}))
    monkeypatch.setattr(
        "recipe_core.physics.serving.estimates.simulate", lambda *_, **__: pytest.fail("simulated")
    )
    assert "vllm serve" in start_command(board, int(board.order[0]))


def test_a_split_that_its_framework_cannot_be_told_says_why() -> None:
    training = {"workload.kind": "training", "workload.tokens": "1e10"}
    board = plan(from_query({"model": "Qwen/Qwen3-1.7B", **training})[0])
    stages = board.degree("zero_stage")
    rows = [int(row) for row in board.refused_rows() if stages[row] == 1]
    refused = next(row for row in rows if board.codes(row) == {"launch-sharding"})
    assert any("ZeRO-2 or 3" in reason for reason in board.reasons(refused))
    with pytest.raises(NoAnswer, match="ZeRO-2 or 3"):
        start_command(board, refused)
