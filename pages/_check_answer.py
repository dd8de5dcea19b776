"""Verdicts on commands, made once for all sessions, so read only."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import _work as work

from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command


@lru_cache(maxsize=64)
def judge_text(text: str, ground: str, may_read: bool, calibration: str) -> dict[str, Any]:  # noqa: ARG001 - part of the key
    basis = CommandContext.of(**json.loads(ground))
    return work.calculated("Checking the command", judge_command, text, basis, folders=may_read)
