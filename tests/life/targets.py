"""How each target starts a rendered bundle: words, variables, mounts and user from its own files.

Nothing is taken from the builder: files of Kubernetes are read as a cluster reads them, scripts of
Slurm and SkyPilot run as they are.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.life.sandbox import Mount, Start

CONTROLLERS = yaml.safe_load(Path(__file__).with_name("controllers.yaml").read_text())
FILES = {
    "jobset": "jobset.yaml",
    "kubeflow-trainjob": "trainjob.yaml",
    "kubeflow-pytorchjob": "pytorchjob.yaml",
    "volcano": "job.yaml",
}
"""The file with the job, in the target's folder."""
SCHEDULERS = ("slurm", "skypilot")
MACHINE = "this machine"
USER = 65534
"""Who runs bundles outside Kubernetes here: nobody in particular, and not root."""
HOME, WORK = "/home/someone", "/work/bundle"


@dataclass(frozen=True, slots=True)
class Place:
    """A bundle's folder, the model's folder where the target has it, and what outlives a start."""

    bundle: Path
    model: Path
    model_at: str
    kept: Path

    @property
    def run(self) -> Path:
        """The run folder, from outside."""
        return self.kept / "run"


def start(target: str, place: Place) -> Start:
    """One start by a target, with fresh folders where it gives fresh ones."""
    if target in FILES:
        return _pod(target, place)
    return _script(target, place)


def _job(target: str, place: Place) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The job, and the specification of its pod and of its container."""
    folder = place.bundle / "targets" / target
    job = yaml.safe_load((folder / FILES[target]).read_text())
    spec = job["spec"]
    if target == "kubeflow-trainjob":
        (patch,) = spec["runtimePatches"]
        replicated = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = replicated[0]["template"]["spec"]["template"]["spec"]
        (inner,) = pod["containers"]
        return job, pod, spec["trainer"] | inner
    if target == "jobset":
        pod = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    elif target == "volcano":
        pod = spec["tasks"][0]["template"]["spec"]
    else:
        pod = spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    return job, pod, container


def _pod(target: str, place: Place) -> Start:
    job, pod, container = _job(target, place)
    spec, rules = job["spec"], CONTROLLERS[target]
    processes = int(spec.get("nprocPerNode") or container.get("numProcPerNode") or 1)
    facts = {"name": job["metadata"]["name"], "index": 0, "nodes": 1}
    facts |= {"processes": processes, "all": processes}
    added = {name: text.format(**facts) for name, text in rules["env"].items()}
    hosts = [text.format(**facts) for text in rules["hosts"]]
    return of_container(pod, container, target, place, added, hosts)


def of_container(
    pod: dict[str, Any],
    container: dict[str, Any],
    target: str,
    place: Place,
    added: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
) -> Start:
    """One start of a container; ``added``: variables that its controller sets."""
    env = {each["name"]: each["value"] for each in container["env"]} | dict(added or {})
    mounts = [
        Mount(
            each["mountPath"],
            _volume(next(v for v in pod["volumes"] if v["name"] == each["name"]), target, place),
            each.get("readOnly", False),
        )
        for each in container["volumeMounts"]
    ]
    about = pod["securityContext"]
    return Start(
        words=[expanded(word, env) for word in container["command"]],
        env=env,
        cwd=container.get("workingDir", "/"),
        # outer ones first, or they would hide those inside them
        mounts=sorted(mounts, key=lambda each: each.place.count("/")),
        user=about["runAsUser"],
        group=about["fsGroup"],
        hosts=hosts,
    )


def expanded(word: str, env: Mapping[str, str]) -> str:
    """A word of a command as Kubernetes expands it; what no variable has stays."""
    pattern = re.compile(r"\$\$|\$\((\w+)\)")
    return pattern.sub(lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), word)


def _volume(volume: dict[str, Any], target: str, place: Place) -> Path | None:
    """What lies behind a volume: a claim keeps its files, an emptyDir is new at every start."""
    name = volume["name"]
    if "hostPath" in volume:
        assert volume["hostPath"]["path"] == place.model_at
        return place.model
    if "configMap" in volume:
        return _config_map(volume["configMap"], target, place)
    if volume.get("emptyDir", {}).get("medium") == "Memory":
        return None
    folder = place.run if name == "run" else place.kept / "volumes" / name
    if "emptyDir" in volume:
        shutil.rmtree(folder, ignore_errors=True)
    return _writable(folder)


def _writable(folder: Path) -> Path:
    """A folder that root owns and the pod's group may write."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o2777)
    return folder


def _config_map(volume: dict[str, Any], target: str, place: Place) -> Path:
    """The files of a ConfigMap, as its own manifest has them."""
    manifest = place.bundle / "targets" / target / "files.yaml"
    texts = yaml.safe_load(manifest.read_text())
    assert texts["metadata"]["name"] == volume["name"]
    folder = place.kept / "files"
    for item in volume["items"]:
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts["data"][item["key"]])
    return folder


def _script(target: str, place: Place) -> Start:
    """A script in the bundle's folder, of which only ``run`` can be written."""
    env = {"HOME": HOME, "USER": "someone"}
    if target == "slurm":
        # job.sbatch gives the addresses of the nodes
        words = ["bash", "targets/slurm/node.sh", "127.0.0.1"]
        env |= {"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NNODES": "1"}
        env |= {"SLURM_LOCALID": "0", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": WORK}
    elif target == "skypilot":
        task = yaml.safe_load((place.bundle / "targets" / "skypilot" / "task.yaml").read_text())
        env |= {name: str(value) for name, value in task.get("envs", {}).items()}
        env |= {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "127.0.0.1"}
        words = ["bash", "-c", task["run"]]
    else:
        said = "python launch.py up --foreground --no-keep --port 8000 --model"
        words = [*shlex.split(said), place.model_at]
    (place.bundle / "run").mkdir(exist_ok=True)
    home = place.kept / "volumes" / "home"
    return Start(
        words=words,
        env=env,
        cwd=WORK,
        mounts=(
            Mount(WORK, place.bundle, readonly=True),
            Mount(f"{WORK}/run", _writable(place.run)),
            Mount(HOME, _writable(home)),
            Mount("/dev/shm", None),
            Mount(place.model_at, place.model, readonly=True),
        ),
        user=USER,
        group=USER,
    )
