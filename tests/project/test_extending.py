"""What a feature of each kind takes: the files that it touches in a copy of the package.

The copy runs as a process of its own, where what was added works at once. GPUs, models and engines,
which are files of their own, are in ``test_extending_folders.py``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from recipe_core.base.documents import read_document
from recipe_core.base.resources import PACKAGE, shipped_path
from tests.conftest import request_values
from tests.fixtures.training import training_values

BASE_GPU, BASE_MODEL = "h100-sxm", "meta-llama/Llama-3.1-8B-Instruct"


@dataclass
class Copy:
    """A copy of the package, and the files of it that were changed or added."""

    folder: Path
    touched: set[str] = field(default_factory=set)

    def add(self, path: str, text: str):
        """Write a file of the package, or append to it."""
        file = self.folder / "recipe_core" / path
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        file.write_text(before + text, encoding="utf-8")
        self.touched.add(path)

    def files_with(self, room: str, text: str) -> list[str]:
        """Modules of a room in which a text stands, by path in the package."""
        package = self.folder / "recipe_core"
        files = sorted((package / room).rglob("*.py"))
        return [str(file.relative_to(package)) for file in files if text in file.read_text()]

    def insert(self, path: str, before: str, text: str):
        """Put lines before the first place of a text."""
        file = self.folder / "recipe_core" / path
        head, mark, tail = file.read_text(encoding="utf-8").partition(before)
        assert mark, f"{path} has no {before!r}"
        file.write_text(head + text + mark + tail, encoding="utf-8")
        self.touched.add(path)

    def python(self, *words: str, stdin: str = "") -> str:
        """What the copy's Python prints."""
        done = subprocess.run(
            [sys.executable, *words],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def recipe(self, *words: str, stdin: str = "") -> str:
        """What the copy's command line prints."""
        return self.python("-m", "recipe_core", *words, stdin=stdin)


@pytest.fixture
def package(tmp_path: Path) -> Copy:
    ignored = shutil.ignore_patterns("__pycache__")
    for source in (PACKAGE, shipped_path("hw_profiles")):
        shutil.copytree(source, tmp_path / source.name, ignore=ignored)
    return Copy(tmp_path)


def split_of(engine: str, **fields: object) -> str:
    candidate = {"engine": engine, "tp": 1, "pp": 1, "dp": 1} | fields
    return json.dumps(request_values(BASE_MODEL, BASE_GPU, 1, candidate=candidate))


FLAGS = {"vllm": "--max-cudagraph-capture-size", "sglang": "--cuda-graph-max-bs-decode"}
OPTION = '''    graph_batch: Annotated[int, Field(ge=0, le=4096)] | None = None
    """Largest batch that CUDA graphs are captured for; left out, the engine's own."""

'''


def test_an_engine_option_that_moves_memory_and_the_command_is_six_files(package):
    package.insert("request/candidate.py", "    engine_version: Text", OPTION)
    row = '    CandidateOption("graph_batch", "graph_batch", usual=0),\n'
    package.insert("engines/options.py", ")\n# Those that every launch", row)
    columns = "estimates/columns/serving.py"
    package.insert(columns, "    recv_interval: Float\n", "    graph_batch: Float\n")
    memory = "        + cases.graph_batch * 2.0**20\n"
    package.insert("estimates/serving/memory.py", "        + graph_bytes(setting, cases)\n", memory)
    for engine, flag in FLAGS.items():
        meaning = f"  {flag[2:].replace('-', '_')}: graph_batch\n"
        package.insert(f"engines/options/{engine}.yaml", "  stream_interval:", meaning)
    assert len(package.touched) <= 8

    plain, more = (
        json.loads(package.recipe("estimate", "-", "--json", stdin=split_of("vllm", **fields)))
        for fields in ({}, {"graph_batch": 512})
    )
    moved = more["memory"]["runtime_bytes"] - plain["memory"]["runtime_bytes"]
    assert moved == pytest.approx(512 * 2**20)
    for engine, flag in FLAGS.items():
        bundle = package.folder / engine
        package.recipe("build", "-", "-o", str(bundle), stdin=split_of(engine, graph_batch=512))
        recipe = read_document(bundle / "recipe.yaml")
        assert recipe["candidate"]["graph_batch"] == 512
        assert recipe["provenance"]["candidate.graph_batch"] == "user"
        (process,) = read_document(bundle / "launch.json")["processes"]
        argv = process["argv"]
        assert argv[argv.index(flag) + 1] == "512"
        read = f"""
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.launches import first_launch
from recipe_core.commands.option_meanings import Meant
for words in ({argv!r}, {argv[: argv.index(flag)] + argv[argv.index(flag) + 2 :]!r}):
    launch = first_launch(tuple(words))
    meant = Meant(Arguments(launch.engine, launch.args))
    print(meant.candidate.get("graph_batch"), meant.usual.get("graph_batch"))
"""
        assert package.python("-c", read).split() == ["512", "None", "None", "0"]
        plain = package.folder / f"{engine}-plain"
        package.recipe("build", "-", "-o", str(plain), stdin=split_of(engine))
        (process,) = read_document(plain / "launch.json")["processes"]
        assert flag not in process["argv"]


RULE = (
    "        - {code: launch-batch, "
    'says: "{title} fills no micro-batch of {micro_batch} beside {model.name}", '
    "when: {method: pretrain, dp: {above: 1}, micro_batch: {uneven: 64}}, "
    "field: candidate.micro_batch, use: Use 64.}\n"
)


def test_a_launch_rule_of_a_framework_is_one_row(package):
    package.insert("engines/training/programs.yaml", "        - tied\n        - rounds\n", RULE)
    assert package.touched == {"engines/training/programs.yaml"}
    split = {"engine": "torch", "tp": 1, "pp": 1, "dp": 8, "zero_stage": 3, "micro_batch": 3}
    request = training_values(split, 1, global_batch=240, sequence_length=4096, tokens=1e9)
    open_request = request | {"candidate": {"engine": "torch"}}
    refused = package.recipe("plan", "-", stdin=json.dumps(open_request))
    assert re.search(r"fills no micro-batch of \d+ beside meta-llama/Llama-3.1-8B", refused)
    read = f"""
from recipe_core.plans.splits import row_estimates
from recipe_core.launch.start import launch_reasons
from recipe_core.request.schema import PlanRequest
from recipe_core.plans.plans import plan_candidate
table, row = plan_candidate(PlanRequest.parse({request!r}))
print(launch_reasons(*row_estimates(table, row)))
"""
    assert "fills no micro-batch of 3 beside" in package.python("-c", read)


METRIC = """  - name: cache-share
    column: cache_share
    title: Cache, share of the device
    head: Cache
    unit: percent
    kinds: [serving]
    better: more
    help: Memory that holds keys and values, of all that the device has.
"""
COLUMN = '        "cache_share": lambda e: e.memory.kv_cache_bytes / e.memory.capacity_bytes,\n'


def test_a_metric_is_a_row_and_a_column(package):
    package.insert("request/metrics.yaml", "  - name: interactivity\n", METRIC)
    beside = '        "pool_bytes": lambda e:'
    (columns,) = package.files_with("plans", beside)
    package.insert(columns, beside, COLUMN)
    assert len(package.touched) <= 3
    read = f"""
from recipe_core.views.charts.front import tradeoff
from recipe_core.request.metrics import metrics_of
from recipe_core.request.schema import PlanRequest
from recipe_core.plans.plans import plan_splits
splits = plan_splits(PlanRequest.parse({json.loads(split_of("vllm"))!r}))
metric = metrics_of("closed")["cache-share"]
print(metric.show(float(splits.columns["cache_share"][0])), metric.axis)
print(tradeoff(splits, "per_gpu", metric.name).layout)
"""
    assert package.python("-c", read).count("Cache, share of the device (%)") == 2


TARGET = '''"""Tmux: the engine's launcher in a session of its own."""

from recipe_core.targets.context import Context


def files(context: Context) -> dict[str, str]:
    """A script that starts the launcher."""
    return {"targets/tmux/start.sh": "tmux new-session -d python launch.py up\\n"}
'''


def test_a_target_is_a_module_a_row_and_a_title(package):
    package.add("targets/tmux.py", TARGET)
    package.insert("targets/__init__.py", "    training,\n)", "    tmux,\n")
    row = '    "tmux": tmux.files,\n'
    package.insert("targets/__init__.py", '    "monitoring": monitoring.monitoring_files,\n', row)
    package.insert("targets/titles.yaml", "  monitoring: Monitoring\n", "  tmux: tmux\n")
    assert len(package.touched) <= 3
    bundle = package.folder / "bundle"
    package.recipe("build", "-", "-o", str(bundle), stdin=split_of("vllm"))
    assert (bundle / "targets" / "tmux" / "start.sh").exists()


CHART = '''

@view("degrees-of-split", "Degrees", ("serving",))
def degrees_of_split(focus: Focus[Any]) -> Iterator[Item]:
    """Degrees of the split that is looked at."""
    import plotly.graph_objects as go

    names = ("tp", "pp", "dp")
    heights = [focus.plan.columns[name][focus.row] for name in names]
    figure = go.Figure(go.Bar(x=names, y=heights))
    yield views.Chart("degrees-of-split", "Degrees", figure, "Degrees of parallelism")
'''


def test_a_chart_of_a_split_is_one_function(package):
    package.add("views/charts/split_views.py", CHART)
    assert len(package.touched) == 1
    read = f"""
from recipe_core.views import charts
from recipe_core.views.charts.views import Focus, views_of
from recipe_core.request.schema import PlanRequest
from recipe_core.plans.plans import plan_splits
splits = plan_splits(PlanRequest.parse({json.loads(split_of("vllm"))!r}))
focus = Focus(splits, 0)
(view,) = [view for view in views_of(splits) if view.name == "degrees-of-split"]
print([item.alt for item in view.draw(focus)])
"""
    assert "Degrees of parallelism" in package.python("-c", read)
