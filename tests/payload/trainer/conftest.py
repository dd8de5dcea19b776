"""A small model, its text and torchrun jobs that tests share."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.base.resources import PACKAGE
from recipe_core.launch.entry import train_py
from tests.fixtures.needs import needs
from tests.fixtures.ports import free_port
from tests.fixtures.rows import table

needs_torch = needs("training", "torch", "transformers", "safetensors")
CONFIG = table("trainer", "config")


def settings(**parts):
    """``train.json`` of four steps in fp32 on one device unless ``parts`` say otherwise."""
    model = {"config": CONFIG, "tokenizer": "data"}
    return table("trainer", "settings") | {"model": model} | parts


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

    def __init__(self, root, **parts):
        self.root, self.run_folder = root, root / "run"
        root.mkdir(exist_ok=True)
        lines = [f"Bread number {n} needs {n % 7} eggs and {n % 5} hours.\n" for n in range(400)]
        (root / "text.txt").write_text("".join(lines))
        self.patch_script("")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE / "payload" / "trainer", root / "trainer", ignore=ignored)
        self.write(**parts)

    def write(self, **parts):
        (self.root / "train.json").write_text(json.dumps(settings(**parts)))

    def finish(self, processes, *words, script="train.py", dies=False):
        """What a run says that ends as it should, or does not where it ``dies``."""
        launch = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(processes)]
        launch += ["--master-port", str(free_port()), script]
        launch += ["--config", "train.json"] if script == "train.py" else []
        where = {"cwd": self.root, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
        done = subprocess.run([*launch, *words], capture_output=True, text=True, **where)
        assert (done.returncode != 0) == dies, done.stderr
        return done.stderr

    def fail(self, processes, *words):
        return self.finish(processes, *words, dies=True)

    def ask_to_stop(self):
        self.run_folder.mkdir(exist_ok=True)
        (self.run_folder / "stop").touch()

    @staticmethod
    def run_several(jobs, processes, *words, dies=False):
        """All of them in turn; where it ``dies``, the last one is killed in its third step."""
        root = jobs[0].root
        script = (root / "train.py").read_text().partition('if __name__ == "__main__":')[0]
        (root / "several.py").write_text(script + SEVERAL)
        runs = [
            (free_port(), dies and job is jobs[-1], ["--config", f"{job.root}/train.json", *words])
            for job in jobs
        ]
        return jobs[0].finish(processes, json.dumps(runs), script="several.py", dies=dies)

    def rows(self):
        with (self.run_folder / "metrics.csv").open() as file:
            return list(csv.DictReader(file))

    def losses(self):
        return [float(row["loss"]) for row in self.rows()]

    def checkpoints(self):
        return sorted(path.name for path in (self.run_folder / "checkpoints").iterdir())

    def patch_script(self, text, trainer="main"):
        """Put Python before the start of the trainer: what goes wrong in it."""
        main = 'if __name__ == "__main__":'
        script = train_py("train.py", trainer).replace(main, text + main)
        (self.root / "train.py").write_text(script)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The run that every split must repeat: one process, to the end."""
    job = Job(tmp_path_factory.mktemp("whole") / "job")
    job.finish(1)
    return job
