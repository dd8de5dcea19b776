"""A box to select from shows what the request says: its labels depend on their values alone.

A browser keeps the label that it shows and sends it back: where another request gives the same
value another label, an edit of something else would be refused.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import streamlit as st

from recipe_core.hardware.cluster import device_names
from recipe_core.request.presets import preset_file
from tests.fixtures.opening import opened

PAGES = ("traffic.py", "hardware.py", "plan.py", "ship.py")
WIDGETS = ("selectbox", "segmented_control", "pills", "select_slider")
SAME_FOR_ONE_MODEL = ("_variant", "focus", "_split")
"""Widgets whose options another model has not."""
BY_DAY = ("h100-sxm", "mi300x", "rtx-4090", "cpu")
METHODS = [preset.workload["method"] for preset in preset_file().training.values()]
MODEL = "meta-llama/Llama-3.1-8B-Instruct"

Labels = dict[tuple[str, Any], set[str]]


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> Labels:
    """Every label that was drawn, by the widget's key and the value."""
    seen: Labels = defaultdict(set)

    def noting(widget: Any) -> Any:
        def draw(label: str, options: Any = (), *rest: Any, **settings: Any) -> Any:
            show, key = settings.get("format_func", str), settings.get("key")
            if key is not None and key not in SAME_FOR_ONE_MODEL:
                for option in options:
                    seen[key, str(option)].add(show(option))
            return widget(label, options, *rest, **settings)

        return draw

    for name in WIDGETS:
        monkeypatch.setattr(st, name, noting(getattr(st, name)))
    return seen


def ambiguous(labels: Labels) -> dict[tuple[str, Any], set[str]]:
    return {name: texts for name, texts in labels.items() if len(texts) > 1}


def show_devices(names: tuple[str, ...]) -> None:
    for device in names:
        for page in PAGES[:2] if device not in BY_DAY else PAGES:
            opened(page, **{"model": MODEL, "hardware.device": device})


def test_labels_are_the_same_for_every_device_and_method(labels: Labels) -> None:
    show_devices(BY_DAY)
    for method in dict.fromkeys(map(str, METHODS)):
        link = {"model": MODEL, "workload.kind": "training", "workload.method": method}
        opened("traffic.py", **link)
    assert len(labels) > 100
    assert ambiguous(labels) == {}


@pytest.mark.nightly
def test_labels_are_the_same_for_all_devices(labels: Labels) -> None:
    show_devices(tuple(device_names(announced=True)))
    assert ambiguous(labels) == {}
