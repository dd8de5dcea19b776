"""The commands that start and stop the files of a target, from the bundle's folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Titles of targets for people.
TITLES = {
    "systemd": "systemd",
    "docker": "Docker or Podman",
    "compose": "Compose",
    "kubernetes": "Kubernetes",
    "kubernetes-keda": "Kubernetes, KEDA",
    "kubernetes-hpa": "Kubernetes, HPA",
    "knative": "Knative",
    "dynamo-planner": "Dynamo's planner",
    "kserve": "KServe",
    "kserve-llm": "KServe, LLMInferenceService",
    "llm-d": "llm-d",
    "slurm": "Slurm",
    "skypilot": "SkyPilot",
    "ray-serve": "Ray Serve",
    "monitoring": "Monitoring",
    "kubeflow-trainjob": "Kubeflow TrainJob",
    "kubeflow-pytorchjob": "Kubeflow PyTorchJob",
    "jobset": "JobSet",
    "volcano": "Volcano",
}
# By the end of a main file's path: the commands that start and stop it.
_MAIN = {
    "@.service": (
        'systemctl --user link "$PWD/{0}" && systemctl --user start {instance}',
        "systemctl --user stop {instance}",
    ),
    "docker/run.sh": ("bash {0}", "docker rm --force $(docker ps --quiet --filter name={name})"),
    "compose/compose.yaml": (
        "RECIPE_USER=$(id -u):$(id -g) docker compose -f {0} up --detach",
        "docker compose -f {0} down",
    ),
    "slurm/job.sbatch": ("sbatch {0}", "scancel --name {name}"),
    "skypilot/service.yaml": ("sky serve up --secret {key} {0}", "sky serve down {name}"),
    "skypilot/task.yaml": ("sky {verb} {0}", "sky {stop} {name}"),
    "ray-serve/serve.yaml": ("serve deploy {0}", "serve shutdown"),
    "llm-d/values.yaml": (
        "kubectl apply -k {parent}/objects && "
        "helm install {name} llm-d-modelservice/llm-d-modelservice -f {0}",
        "helm uninstall {name}; kubectl delete -k {parent}/objects",
    ),
    "kustomization.yaml": ("kubectl apply -k {parent}", "kubectl delete -k {parent}"),
}
_VERBS = {
    "serving": {"verb": "launch --cluster {name}", "stop": "down"},
    "training": {"verb": "jobs launch", "stop": "jobs cancel --name"},
}


# The folder of what Helm's chart does not make.
BESIDE = "targets/llm-d/objects/"


@dataclass(frozen=True, slots=True)
class Use:
    """The main file of a target, and the commands that start and stop what it describes."""

    title: str
    path: str
    start: str
    stop: str


def target_uses(paths: Iterable[str], name: str, kind: str, key: str | None = None) -> list[Use]:
    """One per main file among ``paths``, in order of path.

    ``name`` is the recipe's DNS label, ``kind`` serving or training, ``key`` the variable with the
    API key that callers need.
    """
    uses = []
    verbs = {word: text.format(name=name) for word, text in _VERBS[kind].items()}
    for path in sorted(paths):
        for ending, (start, stop) in _MAIN.items():
            is_beside = path.startswith(BESIDE)  # is started by the command of another file
            if path.startswith("targets/") and path.endswith(ending) and not is_beside:
                parent = path.rpartition("/")[0]
                instance = f'"{name}@$(systemd-escape --path "$PWD").service"'
                words = verbs | {"name": name, "parent": parent, "instance": instance}
                words["key"] = key or ""
                title = TITLES[path.split("/")[1]]
                commands = (start.format(path, **words), stop.format(path, **words))
                uses.append(Use(title, path, *commands))
    return uses
