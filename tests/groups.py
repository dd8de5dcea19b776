"""Which tests stay on one worker (``pytest -n 2 --dist loadgroup``), and which start first.

A module is a group: its fixtures and caches are made once. What shares more than a module's
fixtures is a larger group: one app with one Chromium, one imported torch, one trained model. Those
mostly wait or take long, so they come first: others compute beside them, and none is left alone at
the end.

Groups go by the file of a test. Marks ``xdist_group`` would do the same, but pytest-xdist 3.8 hands
them on in an attribute of items that pytest 9.2 no longer has: it deals such tests out one by one
and says nothing.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

SERVERS = (
    "test_demo",
    "test_launcher_engine",
    "test_vllm",
    "test_verify",
    "test_loop",
    "test_live_scaling",
)
TRAINERS = (
    "test_chain",
    "test_attack_trainer",
    "test_microbench",
    "test_torchtitan",
    "test_compressors",
)
IMPORTING_TORCH = ("test_model_oracle", "test_compression_parsers")
LARGER = ("browser", "test_targets_slurm", "torchrun", "server", "torch")
HEAVY = (
    "test_launcher_chaos",
    "test_trials_tune",
    "test_launcher_keeper",
    "test_launcher_rolling",
    "test_training_launch",
    "test_cli",
    "test_app",
    "test_compare_page",
    "test_recipe_page",
    "test_launcher_life",
)
"""Modules that take longest, in the order that they start in."""


def group_of(nodeid: str) -> str:
    """The group of a test: of what it needs, or its module."""
    path = PurePosixPath(nodeid.partition("::")[0])
    if path.stem in SERVERS or "compressor" in path.parts:  # the demo's model, trained once
        return "server"
    if "trainer" in path.parts or path.stem in TRAINERS:
        return "torchrun"
    if "e2e" in path.parts and path.stem not in ("test_serve", "test_install", "test_profile"):
        return "browser"
    if path.stem.startswith("test_trace") or path.stem in IMPORTING_TORCH:
        return "torch"
    return path.stem


def place(item: pytest.Item) -> int:
    """Where the group of a test stands in the order that groups start in."""
    order, group = (*LARGER, *HEAVY), group_of(item.nodeid)
    return order.index(group) if group in order else len(order)


class GroupScheduling(LoadScopeScheduling):
    """Hands whole groups to workers, in the order that they were collected in."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
