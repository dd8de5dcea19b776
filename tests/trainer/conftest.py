"""A small model, its text and torchrun jobs that tests share."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.resources import PACKAGE
from recipe_core.launch.entry import train_py
from recipe_core.launch.training.corpus import chats, preferences
from tests.fixtures.needs import needs
from tests.fixtures.ports import free_port

needs_torch = needs("training", "torch", "transformers", "safetensors")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def settings(**parts: Any) -> dict[str, Any]:
    """``train.json`` of four steps in fp32 on one device unless ``parts`` say otherwise."""
    plain: dict[str, Any] = {
        "schema_version": 1,
        "name": "tiny",
        "model": {"config": CONFIG, "tokenizer": "data"},
        "batch": {"sequence_length": 32, "global_batch": 8, "micro_batch": 2},
        "steps": 4,
        "data": ["text.txt"],
        "precision": "fp32",
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2},
        "checkpoints": {"every_steps": 100},
    }
    return plain | parts


SEVERAL = """
import json
import sys
from os import environ, getpid, kill

from trainer import main, steps

environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # each run has a store of its own
clean, calls = steps.Passes.run, []


def killed(self, *of_step):
    calls.append(None)
    if len(calls) == 3:
        kill(getpid(), 9)
    return clean(self, *of_step)


for port, dies, words in json.loads(sys.argv[1]):
    environ["MASTER_PORT"] = str(port)
    steps.Passes.run = killed if dies else clean
    if code := main.main(words):
        sys.exit(code)
"""
"""Runs one after another in the same processes: most of a small run's time is torch's start."""


class Job:
    """A folder as a bundle has it, and torchrun on it."""

    def __init__(self, root: Path, **parts: Any) -> None:
        self.root, self.run_folder = root, root / "run"
        root.mkdir(exist_ok=True)
        (root / "text.txt").write_text(
            "".join(f"Bread number {n} needs {n % 7} eggs and {n % 5} hours.\n" for n in range(400))
        )
        (root / "train.py").write_text(train_py("train.py", "main"))
        shutil.copytree(
            PACKAGE / "trainer", root / "trainer", ignore=shutil.ignore_patterns("__pycache__")
        )
        for name, records in (("chat", chats()[:40]), ("preference", preferences()[:40])):
            lines = (json.dumps(record) + "\n" for record in records)
            (root / f"{name}.jsonl").write_text("".join(lines))
        self.write(**parts)

    def write(self, **parts: Any) -> None:
        (self.root / "train.json").write_text(json.dumps(settings(**parts)))

    def run(
        self, processes: int, *words: str, script: str = "train.py"
    ) -> subprocess.CompletedProcess[str]:
        launch = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(processes)]
        launch += ["--master-port", str(free_port()), script]
        config = ("--config", "train.json") if script == "train.py" else ()
        return subprocess.run(
            [*launch, *config, *words],
            cwd=self.root,
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def finish(self, processes: int, *words: str) -> str:
        """What a run says that ends as it should."""
        done = self.run(processes, *words)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def fail(self, processes: int, *words: str) -> str:
        """What a run says that does not."""
        done = self.run(processes, *words)
        assert done.returncode != 0
        return done.stderr

    def ask_to_stop(self) -> None:
        self.run_folder.mkdir(exist_ok=True)
        (self.run_folder / "stop").touch()

    @staticmethod
    def run_several(jobs: list[Job], processes: int, *words: str, dies: bool = False) -> str:
        """All of them in turn; where it ``dies``, the last one is killed in its third step."""
        root = jobs[0].root
        script = (root / "train.py").read_text().partition('if __name__ == "__main__":')[0]
        (root / "several.py").write_text(script + SEVERAL)
        runs = [
            (free_port(), dies and job is jobs[-1], ["--config", f"{job.root}/train.json", *words])
            for job in jobs
        ]
        done = jobs[0].run(processes, json.dumps(runs), script="several.py")
        assert (done.returncode != 0) == dies, done.stderr
        return done.stderr

    def rows(self) -> list[dict[str, str]]:
        with (self.run_folder / "metrics.csv").open() as file:
            return list(csv.DictReader(file))

    def losses(self) -> list[float]:
        return [float(row["loss"]) for row in self.rows()]

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.run_folder / "checkpoints").iterdir())

    def patch_script(self, text: str, trainer: str = "main") -> None:
        """Put Python before the start of the trainer: what goes wrong in it."""
        main = 'if __name__ == "__main__":'
        script = train_py("train.py", trainer).replace(main, text + main)
        (self.root / "train.py").write_text(script)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The run that every split must repeat: one process, to the end."""
    job = Job(tmp_path_factory.mktemp("whole") / "job")
    job.finish(1)
    return job
