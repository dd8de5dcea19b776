"""Rendered files as an operator reads them: Kubernetes' restricted profile, the like for Compose.

Exceptions are those of RDMA (root, to lock memory), of AMD's runtime (system calls) and of a model
that is a folder on the nodes; READMEs and docs/reference/targets.md say them.
"""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

from recipe_core.launch.training.job import stop_grace_s
from recipe_core.targets import target_files
from tests.fixtures.rows import over
from tests.fixtures.targets import (
    AMD,
    CONTEXTS,
    ROCM,
    context,
    documents,
    mappings,
    single,
    spread,
    training,
    with_parameters,
)

DRAWN = {
    **CONTEXTS,
    "training-amd": context(training(), AMD, image=ROCM, engine="torch"),
    "training-efa": context(training(), network="efa-400", engine="torch"),
    "training-one-node": context(training(1, 4), devices_per_node=4, engine="torch"),
    "priority": with_parameters(context(single(2)), priority_class="batch", writable_root=True),
    "workers-amd": context(spread(2), AMD, image=ROCM),
}


def pod_specs(value):
    """Path and specification of every pod, with its containers."""
    for path, found in documents(value).items():
        if "monitoring" in path:
            continue
        for spec in mappings(found):
            containers = spec.get("containers")
            if isinstance(containers, list) and "volumes" in spec:
                yield path, spec, containers


def exceptions(value, containers):
    """What of the profile a pod may not keep, and why."""
    locks = any(
        "IPC_LOCK" in c.get("securityContext", {}).get("capabilities", {}).get("add", [])
        for c in containers
    )
    return {"root" if locks else "", "seccomp" if value.vendor == "amd" else ""} - {""}


@over("name", list(DRAWN))
def test_pods_keep_the_restricted_profile_and_bound_what_they_take(name):
    value = DRAWN[name]
    for path, spec, containers in pod_specs(value):
        allowed = exceptions(value, containers)
        # parts of a pod, of which a chart, a preset or a runtime has the rest
        whole = "securityContext" in spec
        if whole:
            own = spec["securityContext"]
            assert own["runAsNonRoot"] is ("root" not in allowed), path
            kind = "Unconfined" if "seccomp" in allowed else "RuntimeDefault"
            assert own["seccompProfile"] == {"type": kind}, path
            assert spec.get("automountServiceAccountToken") is not True, path
            assert not {"hostPID", "hostIPC"} & spec.keys(), path
        for volume in spec["volumes"]:
            assert "hostPath" not in volume or value.model_is_folder, path
            if "emptyDir" in volume:
                assert volume["emptyDir"].get("sizeLimit"), (path, volume["name"])
        for container in containers:
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False, path
            assert rights["capabilities"]["drop"] == ["ALL"], path
            assert set(rights["capabilities"].get("add", [])) <= {"IPC_LOCK"}, path
            assert rights["readOnlyRootFilesystem"] is not value.parameters.writable_root, path
            assert not rights.get("privileged"), path
            asked = container.get("resources")
            if asked is not None:
                assert set(asked["requests"]) >= {"cpu", "memory"}, path
                assert "memory" in asked["limits"], path
                assert gib(asked["limits"]) >= gib(asked["requests"]), path
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounted >= {"/tmp", "/home/recipe", "/run/recipe"}, path
            image = container.get("image")
            assert image is None or re.search(r":[\w.-]+|@sha256:", image), path
            assert image is None or not image.endswith(":latest"), path


def gib(amounts):
    return int(amounts["memory"].removesuffix("Gi"))


@over("name", list(DRAWN))
def test_every_kind_that_has_pods_has_a_network_policy(name):
    value = DRAWN[name]
    folders = {path.rsplit("/", 1)[0] for path, _, _ in pod_specs(value)}
    files = target_files(value)
    for folder in folders:
        beside = [path for path in files if path.startswith(f"{folder}/")]
        assert any("kind: NetworkPolicy" in files[path] for path in beside), folder


@over("name", list(DRAWN))
def test_containers_of_one_machine_drop_what_they_do_not_need(name):
    value = DRAWN[name]
    text = target_files(value).get("targets/compose/compose.yaml")
    if text is None:
        return
    services = yaml.safe_load(text)["services"]
    for service, parts in services.items():
        first = service == "prepare"
        assert parts["cap_drop"] == ["ALL"]
        assert ("cap_add" in parts) == first
        assert parts["user"] == ("root" if first else "${RECIPE_USER:-1000:1000}")
        assert "no-new-privileges:true" in parts["security_opt"]
        assert parts["init"] is True
        assert parts["logging"]["options"]["max-size"]
        written = {mount.split(":")[1] for mount in parts["volumes"] if not mount.endswith(":ro")}
        assert written <= {"/models", "/run/recipe", "/home/recipe"}
        if not first and len(services) > 1 and "prepare" in services:
            assert "prepare" in parts["depends_on"]


@over("name", list(DRAWN))
def test_scripts_are_clean_for_shellcheck(name, tmp_path):
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed")
    files = target_files(DRAWN[name])
    scripts = [path for path in files if path.endswith((".sh", ".sbatch"))]
    for number, path in enumerate(scripts):
        (tmp_path / f"{number}.sh").write_text(files[path], encoding="utf-8")
    names = [f"{number}.sh" for number in range(len(scripts))]
    done = subprocess.run(
        # what only a trap calls seems unreachable to it
        [checker, "--shell=bash", "--exclude=SC2317", *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_pods_stop_a_trainer_no_sooner_than_it_has_written_a_checkpoint():
    estimate = {"training": {"step_s": 40.0}, "run": {"checkpoint_s": 300.0}}
    value = replace(context(training(), engine="torch"), estimate=estimate)
    least = stop_grace_s(40.0, 300.0)
    graces = {spec["terminationGracePeriodSeconds"] for _, spec, _ in pod_specs(value)}
    assert graces == {least}
    assert least > 340
    other = replace(value, engine="torchtitan")  # has no way to save at a signal
    graces = {spec["terminationGracePeriodSeconds"] for _, spec, _ in pod_specs(other)}
    assert graces == {30}
