"""Layers that llama.cpp leaves to the host: their bytes, and what a step takes with them."""

from __future__ import annotations

import pytest

from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command
from recipe_core.hardware.host import host_links

GROUND = CommandContext.of(hardware="rtx-4090:1", concurrency=1)


def estimated(model, words):
    """The estimate of a command on one device that serves one request."""
    command = f"llama-server -hf {model} -c 4096 -np 1 {words}"
    return judge_command(command, GROUND, folders=False)["estimate"]


def test_layers_on_the_host_leave_the_device_and_are_read_at_its_memorys_rate():
    model = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"  # 32 layers
    whole, half = (estimated(model, f"-ngl {count}") for count in (99, 16))
    none = estimated(model, "-ngl 0")
    weights = [each["memory"]["weights_bytes"] for each in (whole, half, none)]
    assert weights[0] - weights[1] == pytest.approx(weights[1] - weights[2])
    assert whole["memory"]["kv_needed_bytes"] == pytest.approx(
        2 * half["memory"]["kv_needed_bytes"]
    )
    times = [each["serving"]["tpot_s"] for each in (whole, half)]
    moved = (weights[0] - weights[1]) / host_links().host_memory.value
    assert times[1] - times[0] == pytest.approx(moved, rel=0.1)


def test_of_experts_on_the_host_a_step_reads_what_its_tokens_choose():
    model = "unsloth/gpt-oss-20b-GGUF"
    whole, experts = estimated(model, "-ngl 99"), estimated(model, "-ngl 99 --cpu-moe")
    left = whole["memory"]["weights_bytes"] - experts["memory"]["weights_bytes"]
    assert left > 0.7 * whole["memory"]["weights_bytes"]
    slower = experts["serving"]["tpot_s"] - whole["serving"]["tpot_s"]
    assert 0 < slower < 0.25 * left / host_links().host_memory.value
