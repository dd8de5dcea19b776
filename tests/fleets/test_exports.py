"""A placed fleet as files: each is handed to the program, schema or parser that reads it."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recipe_core.base.documents import parse_json, parse_yaml
from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.bundle.verify import read_bundle
from recipe_core.fleets.answer import NodeShare
from recipe_core.fleets.exports import router
from recipe_core.fleets.exports.cluster import plan_flavors
from recipe_core.fleets.exports.folder import fleet_folder, fleet_report, write_fleet
from recipe_core.fleets.exports.labels import label_value
from recipe_core.fleets.exports.parts import fleet_parts
from recipe_core.fleets.exports.router import integer_weights, router_files
from recipe_core.fleets.exports.schedule import clock_replicas, period_hours
from recipe_core.fleets.request import FleetRequest
from recipe_core.targets import SERVING
from tests.fixtures import slurm as slurm_fixture
from tests.fixtures.cluster_schemas import custom, errors, key_of, validate
from tests.fixtures.needs import needs
from tests.fixtures.patience import PATIENCE, comes
from tests.fixtures.ports import free_port, is_free
from tests.fleets.placed import HOSTILE, on_scheduler, over_nodes, placed_fleet

MISSING = slurm_fixture.missing()
CUSTOM = ("kueue.x-k8s.io/v1beta2", "gateway.networking.k8s.io/v1", "keda.sh/v1alpha1")


@pytest.fixture(scope="module")
def answer():
    return placed_fleet()


def joining_files(answer):
    """What joins the bundles, as texts by path."""
    inside = ("models/", "jobs/")
    files = fleet_folder(answer).items()
    return {path: data.decode() for path, data in files if not path.startswith(inside)}


@cache
def scheduled_files(scheduler):
    return joining_files(on_scheduler(scheduler))


@pytest.fixture(scope="module")
def joined(answer):
    return joining_files(answer)


@pytest.fixture(scope="module")
def folder(answer, tmp_path_factory):
    return write_fleet(answer, tmp_path_factory.mktemp("written") / "prod")


def run(*words, **options):
    words = [str(word) for word in words]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, **options)


def objects_in(files):
    """Every object of Kubernetes in files, by path and its number in the file."""
    return {
        (path, n): document
        for path, text in files.items()
        if path.endswith(".yaml")
        for n, document in enumerate(yaml.safe_load_all(text))
        if document and "apiVersion" in document
    }


def assert_strictly_valid(found):
    for place, document in found.items():
        group = document["apiVersion"].split("/")[0]
        if group == "kustomize.config.k8s.io":
            continue
        assert not errors(document), place
        if (key := key_of(document)) in custom():
            unknown = document | {"spec": document.get("spec", {}) | {"unknown": 1}}
            assert not custom()[key].is_valid(unknown) or "spec" not in document, place
        else:
            assert document["apiVersion"] not in CUSTOM, place
            validate(document)


# --- routers


@given(st.lists(st.floats(1, 4), min_size=1, max_size=24))
def test_whole_weights_are_within_one_percent_of_shares(shares):
    weights = integer_weights(shares)
    assert all(1 <= weight <= 256 for weight in weights)
    for share, weight in zip(shares, weights, strict=True):
        assert weight / sum(weights) == pytest.approx(share / sum(shares), rel=0.01)


def test_weights_beyond_the_range_are_the_nearest():
    assert integer_weights([0.999, 0.001]) == [256, 1]
    assert integer_weights([0.5, 0.0, 0.5]) == [1, 0, 1]
    assert integer_weights([]) == integer_weights([])[:0]
    assert integer_weights([0.0, 0.0]) == [0, 0]


@needs("the configuration of HAProxy", "haproxy")
@pytest.mark.parametrize("scheduler", ["kubernetes", "slurm", "none"])
def test_haproxy_takes_the_configuration(tmp_path, scheduler):
    files = scheduled_files(scheduler)
    (tmp_path / "haproxy.cfg").write_text(files["router/haproxy.cfg"])
    done = run("haproxy", "-c", "-f", tmp_path / "haproxy.cfg")
    assert done.returncode == 0, done.stderr
    strange = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert all("could not resolve address" in line for line in strange), strange


@needs("the configuration of HAProxy", "haproxy")
def test_haproxy_takes_any_name_of_a_model(answer, tmp_path, monkeypatch):
    names = {"tiny-cut": """/models/it's "{x}" ${HOME} # \\""", "chat-amd": "a", "chat-big": "a"}
    monkeypatch.setattr(router, "_served_name", lambda part: names[part.name])
    files = router_files(answer, fleet_parts(answer))
    (tmp_path / "haproxy.cfg").write_text(files["router/haproxy.cfg"])
    done = run("haproxy", "-c", "-f", tmp_path / "haproxy.cfg")
    assert done.returncode == 0, done.stderr
    routes = list(yaml.safe_load_all(files["router/routes.yaml"]))
    assert routes[-1]["spec"]["rules"][1]["matches"][0]["headers"][0]["value"] == names["tiny-cut"]


class Echo(BaseHTTPRequestHandler):
    """A server of a model: it is healthy, and says which one it is and what it was asked."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        text = f"{self.server.server_port} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def ask(port, path, model):
    body = json.dumps({"model": model}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answered:
        return answered.read().decode().split()


@needs("routing by HAProxy", "haproxy")
def test_haproxy_sends_each_server_its_share(joined, tmp_path):
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Echo) for _ in range(3)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    big, amd, tiny = (server.server_port for server in servers)
    bind, stats = free_port(), free_port()
    (tmp_path / "haproxy.cfg").write_text(joined["router/haproxy.cfg"])
    variables = {
        "ROUTER_BIND": f"127.0.0.1:{bind}",
        "STATS_BIND": f"127.0.0.1:{stats}",
        "STATS_SOCKET": str(tmp_path / "s"),
        "ADDRESS_CHAT_BIG": f"127.0.0.1:{big}",
        "ADDRESS_CHAT_AMD": f"127.0.0.1:{amd}",
        "ADDRESS_TINY_CUT": f"127.0.0.1:{tiny}",
    }  # fmt: skip
    words = ["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")]
    router = subprocess.Popen(words, env=os.environ | variables, stderr=subprocess.DEVNULL)
    try:
        assert comes(lambda: not is_free(bind))
        asked = [ask(bind, "/v1/completions", "Qwen3-8B") for _ in range(50)]
        assert Counter(int(port) for port, _ in asked) == {big: 30, amd: 20}
        assert ask(bind, "/tiny/v1/completions", "any") == [str(tiny), "/v1/completions"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(bind, "/v1/completions", "nobody")
    finally:
        router.terminate()
        router.wait(PATIENCE)
        for server in servers:
            server.shutdown()
            server.server_close()


def test_weights_follow_the_periods(joined):
    night = joined["router/weights-night.txt"].splitlines()
    assert "set server model-chat/chat-big weight 1" in night  # 1 replica beside 2
    assert "set server model-chat/chat-amd weight 2" in night


def test_models_under_one_name_are_routed_by_path_alone(answer):
    tiny = replace(answer.models[1], placements=answer.models[0].placements)
    twins = replace(answer, models=(answer.models[0], tiny), jobs=())
    config = router_files(twins, fleet_parts(twins))["router/haproxy.cfg"]
    assert "Qwen3-8B" not in config
    assert "path_beg /tiny/" in config


# --- Kubernetes


def test_every_object_is_valid_by_its_schema(joined):
    found = objects_in(joined)
    kinds = {document["kind"] for document in found.values()}
    assert kinds >= {
        "ClusterQueue",
        "ResourceFlavor",
        "Cohort",
        "LocalQueue",
        "Topology",
        "HTTPRoute",
    }
    assert kinds >= {"PriorityClass", "ScaledObject", "ResourceClaimTemplate", "Namespace"}
    assert_strictly_valid(found)


@needs("overlays of the bundles", "kubectl")
def test_kubectl_builds_the_overlays(folder):
    names = ["kubernetes", "kueue", *(f"dra/{n}" for n in ("chat-big", "chat-amd", "tiny-cut"))]
    built = {}
    for name in names:
        done = run("kubectl", "kustomize", folder / name)
        assert done.returncode == 0, done.stderr
        built[f"{name}.yaml"] = done.stdout
    found = objects_in(built)
    assert_strictly_valid(found)
    pods = {
        (path.removesuffix(".yaml"), document["metadata"]["name"]): document["spec"]["template"]
        for (path, _), document in found.items()
        if document["kind"] == "Deployment"
    }
    chat, tiny = pods["kubernetes", "chat-big"], pods["kubernetes", "tiny-cut"]
    assert tiny["metadata"]["labels"]["cost-centre"] == label_value("CC 7")
    assert chat["metadata"]["labels"]["team"] == label_value(HOSTILE)
    keys = [rule["topologyKey"] for rule in chat["spec"]["topologySpreadConstraints"]]
    assert sorted(keys) == ["kubernetes.io/hostname", "recipe-builder.io/rack"]
    assert chat["spec"]["nodeSelector"] == {"recipe-builder.io/pool": "big"}
    assert tiny["spec"]["nodeSelector"] == {"gpu-pool": "cut"}
    claimed = pods["dra/tiny-cut", "tiny-cut"]["spec"]
    resources = claimed["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "devices", "request": "devices-0"}]
    assert not [name for name in resources["limits"] if name.startswith("nvidia.com/")]
    assert claimed["resourceClaims"][0]["resourceClaimTemplateName"] == "tiny-cut"


@needs("overlays of the bundles", "kubectl")
def test_replicas_over_several_nodes_stay_in_a_rack_and_claim_on_each(tmp_path):
    place = write_fleet(over_nodes(), tmp_path / "prod")
    built = {}
    for name in ("kubernetes", "dra/chat-big"):
        done = run("kubectl", "kustomize", place / name)
        assert done.returncode == 0, done.stderr
        built[f"{name}.yaml"] = done.stdout
    found = objects_in(built)
    assert_strictly_valid(found)
    sets = {p: d for (p, _), d in found.items() if d["kind"] == "LeaderWorkerSet"}
    outer = sets["kubernetes.yaml"]["spec"]["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        metadata = outer[name]["metadata"]
        rack = metadata["annotations"]["kueue.x-k8s.io/podset-preferred-topology"]
        assert rack == "recipe-builder.io/rack"
        assert metadata["labels"]["team"] == label_value(HOSTILE)
    claimed = sets["dra/chat-big.yaml"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    claims = [d for d in found.values() if d["kind"] == "ResourceClaimTemplate"]
    requests = {c["metadata"]["name"]: c["spec"]["spec"]["devices"]["requests"] for c in claims}
    name = claimed["resourceClaims"][0]["resourceClaimTemplateName"]
    assert [request["exactly"]["count"] for request in requests[name]] == [8]
    scaled = parse_yaml((place / "nights/scaledobjects.yaml").read_text().split("---\n")[1])
    assert scaled["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"


def test_bundles_have_the_replicas_queues_and_priorities_of_the_plan(folder):
    deployment = parse_yaml(
        (folder / "models/chat/big/targets/kubernetes/deployment.yaml").read_text()
    )
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == "prod-serving-100"
    queues = {
        q["metadata"]["name"]
        for q in yaml.safe_load_all((folder / "kueue/queues.yaml").read_text())
    }
    assert deployment["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] in queues
    for part in fleet_parts(placed_fleet()):
        assert read_bundle(folder / part.folder).recipe.name == part.name


def test_quotas_add_up_to_the_devices(answer):
    flavors = {flavor.name: flavor for flavor in plan_flavors(answer, fleet_parts(answer))}
    assert {name: flavor.amount for name, flavor in flavors.items()} == {
        "prod-big": 16,
        "prod-amd": 8,
        "prod-cut": 6,  # two of eight are cut
        "prod-cut-1g-10gb-67b92e": 14,
    }
    # serving has its own by day; the run at night borrows
    assert sorted(flavors["prod-big"].quotas.values()) == [0, 6]
    assert flavors["prod-big"].idle == 10
    assert flavors["prod-cut-1g-10gb-67b92e"].quotas == {"search": 9}


def test_queues_hold_all_devices_of_the_plan_and_one_group_each(answer, joined):
    """A pod takes all its resources from one flavour, and all have a topology or none has."""
    totals = Counter()
    for place, document in objects_in(joined).items():
        groups = document.get("spec", {}).get("resourceGroups", [])
        assert len(groups) <= 1, place
        for group in groups:
            for flavor in group["flavors"]:
                names = [row["name"] for row in flavor["resources"]]
                assert names == group["coveredResources"], place
                devices = {
                    n: row["nominalQuota"]
                    for n, row in zip(names, flavor["resources"], strict=True)
                }
                totals[flavor["name"]] += sum(v for n, v in devices.items() if "/" in n)
    assert totals == {f.name: f.amount for f in plan_flavors(answer, fleet_parts(answer))}
    flavors = [d for d in objects_in(joined).values() if d["kind"] == "ResourceFlavor"]
    assert all("topologyName" in flavor["spec"] for flavor in flavors)
    pools = [pool.model_copy(update={"racks": None}) for pool in answer.request.pools]
    flat = replace(answer, request=answer.request.model_copy(update={"pools": tuple(pools)}))
    text = joining_files(flat)["kueue/flavors.yaml"]
    assert "opology" not in text


def test_serving_goes_before_preemptible_jobs_and_not_before_fixed_ones(answer):
    fixed = replace(answer, jobs=(replace(answer.jobs[0], preemptible=False),))

    def values(placed):
        found = objects_in({"p.yaml": joining_files(placed)["kubernetes/priorities.yaml"]}).values()
        return {row["metadata"]["name"]: (row["value"], row["preemptionPolicy"]) for row in found}

    serving, job = values(answer)["prod-serving-100"], values(answer)["prod-jobs-10"]
    assert serving[0] > job[0]
    assert (serving[1], job[1]) == ("PreemptLowerPriority", "Never")
    assert values(fixed)["prod-fixed-jobs-10"][0] > serving[0]


# --- hours


def test_replicas_follow_the_clock(answer, joined):
    big = fleet_parts(answer)[0]
    assert clock_replicas(big, period_hours(answer)) == [*[1] * 7, *[3] * 14, *[1] * 3]
    scaled = parse_yaml(joined["nights/scaledobjects.yaml"].split("---\n")[1])["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 3)
    assert scaled["triggers"][0]["metadata"]["start"].startswith("0 7 ")


def test_nothing_is_scheduled_where_periods_are_alike(answer):
    def even(owner):
        return tuple(replace(p, replicas={"day": 2, "night": 2}) for p in owner.placements)

    models = tuple(replace(model, placements=even(model)) for model in answer.models)
    files = joining_files(replace(answer, models=models, jobs=()))
    assert not [path for path in files if path.startswith("nights/")]


@needs("timers of systemd", "systemd-analyze")
def test_systemd_takes_the_timers(joined, tmp_path):
    for path, text in joined.items():
        if path.endswith((".timer", ".service")):
            (tmp_path / Path(path).name).write_text(text)
    units = ["prod@day.service", "prod-day.timer", "prod-night.timer"]
    done = run("systemd-analyze", "verify", *(f"./{unit}" for unit in units), cwd=tmp_path)
    assert "prod" not in done.stderr, done.stderr
    assert done.returncode == 0


@needs("scripts", "shellcheck")
@pytest.mark.parametrize("scheduler", ["kubernetes", "slurm", "none"])
def test_scripts_are_sound(scheduler, tmp_path):
    scripts = {p: t for p, t in scheduled_files(scheduler).items() if p.endswith(".sh")}
    assert "nights/period.sh" in scripts
    for path, text in scripts.items():
        place = tmp_path / path.replace("/", "-")
        place.write_text(text)
        done = run("shellcheck", place)
        assert done.returncode == 0, done.stdout


# --- Slurm


@pytest.mark.nightly
@pytest.mark.skipif(bool(MISSING), reason=f"NOT TESTED: Slurm, without {', '.join(MISSING)}")
def test_slurm_takes_partitions_and_keeps_replicas(tmp_path, monkeypatch):
    answer = on_scheduler("slurm", partition="serve", nodes="n[0-1]")
    place = write_fleet(answer, tmp_path / "prod")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("vllm", "torchrun"):
        (programs / name).write_text("#!/bin/bash\nexec sleep 600\n")
    (programs / "nvidia-smi").write_text("#!/bin/bash\necho 'NVIDIA H100 80GB HBM3'\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    configure = slurm_fixture._configure

    def configure_pool(root, *parts):
        configure(root, *parts)
        conf = root / "etc" / "slurm.conf"
        text = conf.read_text().replace("RealMemory=16000", "RealMemory=2000000")
        text += "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
        conf.write_text(text + (place / "slurm/partitions.conf").read_text())

    monkeypatch.setattr(slurm_fixture, "_configure", configure_pool)
    with slurm_fixture.cluster(tmp_path / "slurm", {"all": ("h100", 2)}) as slurm:
        shown = slurm.run("scontrol", "show", "partition", "serve-idle").stdout
        assert "PreemptMode=REQUEUE" in shown
        assert "Nodes=n[0-1]" in shown

        def jobs():
            lines = slurm.run("squeue", "--noheader", "--format", "%j %T").stdout.splitlines()
            return sorted(line.strip() for line in lines)

        path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
        by_day = [f"chat-big-{k} RUNNING" for k in range(3)]
        done = slurm.run("bash", place / "slurm/replicas.sh", "day", PATH=path)
        assert done.returncode == 0, done.stderr
        assert comes(lambda: jobs() == by_day), (jobs(), done.stdout)
        done = slurm.run("bash", place / "slurm/replicas.sh", "day", PATH=path)
        assert done.returncode == 0, done.stderr
        assert jobs() == by_day  # again it changes nothing
        done = slurm.run("bash", place / "slurm/replicas.sh", "night", PATH=path)
        assert done.returncode == 0, done.stderr
        names = ["chat-big-0", "tune-big-0"]
        assert comes(lambda: [job.split()[0] for job in jobs()] == names), jobs()


def test_slurm_has_an_account_and_a_class_a_team(tmp_path):
    script = scheduled_files("slurm")["slurm/accounts.sh"]
    told = tmp_path / "told"
    fake = tmp_path / "sacctmgr"
    fake.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" >>{told}\nprintf "\\n" >>{told}\n')
    fake.chmod(0o755)
    (tmp_path / "accounts.sh").write_text(script)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run("bash", tmp_path / "accounts.sh", env=os.environ | {"PATH": path}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip("\0").split("\0") for line in told.read_text().splitlines()]
    assert ["--immediate", "add", "qos", "search-jobs"] in lines
    assert any(line[-1] == "GrpTRES=gres/gpu=6" for line in lines)
    assert not (tmp_path / "pwned").exists()


def wide_on_slurm():
    """Two replicas, each on two nodes that do not follow each other."""
    scheduled, answer = on_scheduler("slurm").request, over_nodes()
    wide = answer.models[0].placements[0]
    nodes = tuple(NodeShare(f"big-{k}", "big-r0", 1, 8.0) for k in (0, 2, 1, 3))
    model = replace(answer.models[0], placements=(replace(wide, nodes=nodes),))
    return replace(answer, models=(model,), request=scheduled)


def test_routers_ask_the_first_node_of_each_replica():
    files = joining_files(wide_on_slurm())
    servers = [line for line in files["router/haproxy.cfg"].splitlines() if "ADDRESS_CHAT" in line]
    assert [line.split()[-1] for line in servers[:2]] == ['"big-0:8000"', '"big-1:8001"']
    for k in range(2):
        job = files[f"slurm/chat-big/{k}/targets/slurm/job.sbatch"]
        assert "#SBATCH --nodes=2" in job


def test_slurm_is_told_nothing_of_what_it_cannot_start(monkeypatch):
    def refuse(context):
        raise NoAnswer("Slurm starts no such layout.")

    monkeypatch.setitem(SERVING, "slurm", refuse)
    files = joining_files(wide_on_slurm())
    assert "chat-big" not in files["slurm/replicas.sh"]
    assert not [path for path in files if path.startswith("slurm/chat-big/")]
    assert "- chat-big: Slurm starts no such layout." in files["README.md"]


def test_the_readme_names_only_files_that_are_there():
    for answer in (placed_fleet(), wide_on_slurm(), on_scheduler("none")):
        files = joining_files(answer)
        named = re.findall(r"`((?:nights|router|slurm)/[\w.-]+)`", files["README.md"])
        assert "router/haproxy.cfg" in named
        assert set(named) <= files.keys()


# --- charges, the report, the folder


def test_charges_come_back_as_they_were(joined):
    rows = list(csv.DictReader(io.StringIO(joined["charges/charges.csv"])))
    assert rows[0]["team"] == HOSTILE
    assert rows[0]["usd_per_month"] == "6935.00"
    assert rows[1]["team"] == "'=SUM(A1)"  # no spreadsheet computes it
    assert parse_json(joined["charges/tags.json"])["chat"]["team"] == HOSTILE
    labels = parse_yaml(joined["charges/opencost.yaml"])["kubecostProductConfigs"]
    assert labels["labelMappingConfigs"]["team_label"] == "team"


def test_what_a_user_wrote_stands_in_no_configuration(joined):
    documents = ("fleet.yaml", "answer.json", "report.html")
    quoted = (*documents, "charges/charges.csv", "charges/tags.json")
    assert [path for path, text in joined.items() if "pwned)" in text and path not in quoted] == []


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.attributes = Counter(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def test_the_report_is_one_file_that_runs_nothing(answer):
    page = fleet_report(replace(answer, notes=("<script>alert(1)</script>",)))
    read = Tags()
    read.feed(page)
    assert len(page.encode()) < 300_000
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name == "src"]
    assert "<script>alert(1)</script>" in read.texts  # as text
    assert any(HOSTILE in text for text in read.texts)
    assert "big-0 ×2, big-1" in read.texts  # chat's nodes with their replicas
    assert "cut-0 ×9" in read.texts
    assert "All of the load is served" in page


def test_the_report_of_a_large_fleet_stays_small(answer):
    """Fifty models with four placements each, on forty nodes each."""
    part = answer.models[0].placements[0]

    def spread(k):
        nodes = tuple(
            replace(part.nodes[0], node=f"big-{n}", rack=f"big-r{n}", devices=1.0 + (k + n) % 5)
            for n in range(k, 2000, 50)
        )
        return tuple(replace(part, nodes=nodes if n == 0 else ()) for n in range(4))

    names = [f"model-{k}" for k in range(50)]
    models = tuple(
        replace(answer.models[0], name=name, placements=spread(k)) for k, name in enumerate(names)
    )
    pools = tuple(replace(use, nodes=2500) if use.name == "big" else use for use in answer.pools)
    page = fleet_report(replace(answer, models=models, pools=pools))
    assert all(name in page for name in names)
    assert 100_000 < len(page.encode()) < 300_000
    assert "big-0 ×2, big-50 ×2, " in page
    assert "and 32 more" in page


def test_the_report_says_what_is_not_served(answer):
    model = replace(answer.models[0], served={"day": 7.5, "night": 6.0}, reason="Too few devices.")
    page = fleet_report(replace(answer, status="partial", models=(model, answer.models[1])))
    assert "25 % of its load at most is not served. Too few devices." in page


def test_the_folder_is_whole_and_the_same_again(answer, folder, tmp_path):
    files = fleet_folder(answer)
    written = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    assert written == files
    assert FleetRequest.parse(parse_yaml(files["fleet.yaml"].decode())) == answer.request
    assert parse_json(files["answer.json"].decode())["usd_per_hour"] == 21.0
    shutil.copytree(folder, tmp_path / "prod")
    write_fleet(replace(answer, usd_per_hour=20.0), tmp_path / "prod")
    assert parse_json((tmp_path / "prod" / "answer.json").read_text())["usd_per_hour"] == 20.0
    assert [path.name for path in tmp_path.iterdir()] == ["prod"]


def test_nothing_of_a_user_is_replaced(answer, folder, tmp_path):
    place = tmp_path / "prod"
    shutil.copytree(folder, place)
    run_file = place / "models/chat/big/run/state.json"
    run_file.parent.mkdir()
    run_file.write_text("{}")
    with pytest.raises(InputError, match=r"holds models/chat/big/run/state\.json"):
        write_fleet(answer, place)
    assert run_file.read_text() == "{}"
    other = tmp_path / "other"
    other.mkdir()
    (other / "MANIFEST.json").write_text('{"recipe": "x", "files": {}}')
    with pytest.raises(InputError, match="which no fleet wrote"):
        write_fleet(answer, other)
    with pytest.raises(InputError, match="cannot write"):
        write_fleet(answer, tmp_path / "none" / "prod")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "prod"]
