"""Who restarts what where: every setting that is named is in the files, with the recipe's value;
and one time limit of a start, which grows with the weights, wherever something waits for it.
"""

import json
import math
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import getitem

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.bundle.readme import FAILURES
from recipe_core.launch.start import limit_s, startup_rates, weights_s
from recipe_core.payload.launcher.world import HERE
from recipe_core.request.supervision import LAUNCHERS, Supervision
from recipe_core.targets import each_target, supervise, target_files, target_names
from recipe_core.targets.by_hand import TITLES
from recipe_core.targets.restarts import (
    EVENTS,
    LAUNCHER,
    restart_answers,
    restart_rows,
    restarting_targets,
)
from recipe_core.targets.supervise import (
    expected_failures,
    hang_looks,
    rollout_limits,
    unready_looks,
)
from tests.conftest import make_request
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import comes
from tests.fixtures.ports import free_port
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.rows import over, table
from tests.fixtures.targets import (
    CONTEXTS,
    EXAMPLES,
    LAUNCHES,
    context,
    document,
    documents,
    mappings,
    needs,
    replicas,
    single,
    spread,
    with_parameters,
)

ODD = Supervision(**table("targets", "odd_supervision"))
BESIDE = ("monitoring", "kubernetes-keda", "kubernetes-hpa")
"""Targets that start nothing themselves."""


def supervised(value, supervision=ODD):
    return replace(value, supervision=supervision)


def chains(document, names):
    """Values at a chain of keys that begins anywhere in a document."""
    for value in mappings(document):
        with suppress(KeyError, TypeError):
            yield reduce(getitem, names, value)


def stands_in(setting, path, text):
    """Whether a file has the setting with its value, in the language of the file."""
    value = list(setting.value) if isinstance(setting.value, tuple) else setting.value
    if path.endswith((".yaml", ".json")):
        return value in chains(parse_yaml(text, path), setting.name.split("."))
    lines = {line.strip(" \\").removeprefix("#SBATCH ") for line in text.splitlines()}
    written = {f"{setting.name}={value}", f"{setting.name} {value}"}
    return bool(lines & ({setting.name} if value is None else written))


def missing(target, value, files):
    """Settings of a target's answers that no file has."""
    lost = []
    for event, answer in restart_answers(target, value).items():
        for setting in answer.settings:
            own = setting.file or f"targets/{target}/"
            places = [path for path in files if path.startswith(own)]
            if not any(stands_in(setting, path, files[path]) for path in places):
                lost.append(f"{event}: {setting}")
    return lost


@over("name, supervision", product(CONTEXTS, [Supervision(), ODD]))
def test_every_setting_is_in_its_files_with_the_recipes_value(name, supervision):
    value = supervised(CONTEXTS[name], supervision)
    files = target_files(value)
    offered = [key for key, result in each_target(value).items() if isinstance(result, dict)]
    lost = {target: missing(target, value, files) for target in offered if target not in BESIDE}
    assert lost
    assert not any(lost.values()), lost


def test_a_setting_that_is_not_there_is_missed():
    """The test above can fail: files of other values lack what the answers name."""
    value, files = supervised(context()), target_files(context())
    targets = "systemd compose docker kubernetes kserve llm-d ray-serve slurm skypilot"
    assert all(missing(name, value, files) for name in targets.split())


@over("name", ["nvidia-one-node", "training-two-nodes"])
def test_every_target_that_starts_something_answers_every_event(name):
    value = EXAMPLES[name]
    starting = [target for target in target_names(value) if target not in BESIDE]
    targets = restarting_targets(value.kind)
    assert sorted(targets) == sorted([LAUNCHER, *starting])
    listed = restart_rows(value, targets)
    assert {row.target for row in listed} == set(targets)
    for target in targets:
        assert list(restart_answers(target, value)) == list(EVENTS)
        named = [event for row in listed if row.target == target for event in row.events]
        assert sorted(named) == sorted(EVENTS.values())


def test_a_bundle_tells_the_launcher_and_its_reader():
    """``launch.json`` has what the launcher reads, the README a row of every target's answers."""
    stated = ODD.model_dump()
    bundle = bundle_for_request(make_request(options={"supervision": stated}))
    text = bundle.files["launch.json"].decode()
    assert json.loads(text)["supervision"] == {name: stated[name] for name in LAUNCHERS}
    for answer in restart_answers(LAUNCHER, bundle.context).values():
        assert all(stands_in(setting, "launch.json", text) for setting in answer.settings)
    failures = bundle.files[FAILURES].decode()
    for name, result in bundle.targets.items():
        if isinstance(result, dict) and name not in BESIDE:
            assert f"\n| {TITLES[name]} | process dies" in failures
    assert "`supervision.hang_s: 97`" in failures
    assert "`terminationGracePeriodSeconds: 71`" in failures
    readme = bundle.files["README.md"].decode()
    assert "`supervision.hang_s: 97`" in readme
    assert "`terminationGracePeriodSeconds: 71`" not in readme
    # where a mean request takes longer than the drain, a reader is told
    for seconds, cut in ((1, True), (600, False)):
        request = make_request(options={"supervision": {"drain_s": seconds}})
        readme = bundle_for_request(request).files["README.md"].decode()
        assert ("longer ones are cut off" in readme) is cut


def test_no_field_is_without_effect():
    """Each field changes ``launch.json`` or a file of a target."""
    before, value = Supervision(), context(replicas())
    plain = target_files(value)
    for field in Supervision.model_fields:
        other = {**ODD.model_dump(), "min_available": 0}[field]
        after = before.model_copy(update={field: other})
        written = plain != target_files(supervised(value, after))
        assert written or before.for_launcher() != after.for_launcher(), field
        assert written or field in ("stable_s", "poll_s", "backoff_most_s")


def labels_of(document):
    """Labels of the pods of a workload, one entry per kind of pod."""
    spec = document.get("spec", {})
    if document["kind"] == "Deployment":
        return [spec["template"]["metadata"]["labels"]]
    if document["kind"] == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        return [group[f"{part}Template"]["metadata"]["labels"] for part in ("leader", "worker")]
    return []


def selects(budget, labels):
    selector = budget["spec"]["selector"]
    exact = selector["matchLabels"].items() <= labels.items()
    several = selector.get("matchExpressions", [])
    return exact and all(labels.get(rule["key"]) in rule["values"] for rule in several)


@over("launch, kept", table("targets", "budgets"))
def test_every_pod_counts_in_one_budget(launch, kept):
    """The eviction of a pod that two budgets select is refused."""
    name, *sizes = launch
    value = context(LAUNCHES[name](*sizes))
    files = documents(value, ".yaml").items()
    objects = [each for path, each in files if path.startswith("targets/kubernetes/")]
    budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    found = {each["metadata"]["name"]: each["spec"]["minAvailable"] for each in budgets}
    assert found == {f"{value.name}-{part}".rstrip("-"): n for part, n in kept.items()}
    pods = [labels for each in objects for labels in labels_of(each)]
    assert pods
    for labels in pods:
        assert sum(selects(budget, labels) for budget in budgets) == 1


def test_an_update_leaves_up_what_must_be():
    for count in range(1, 9):
        for least in (None, 0, 1, count, count + 1):
            value = supervised(context(), Supervision(min_available=least))
            kept = value.supervision.available_of(count)
            update = rollout_limits(value, count)
            # both 0 would be refused, and never end
            assert update == {"maxSurge": 0, "maxUnavailable": max(1, count - kept)}
            assert 0 <= kept <= count


@over("hang_s", [5, 6, 11, 60, 97, 3600])
def test_a_hang_lasts_as_long_as_the_recipe_says(hang_s):
    value = supervised(context(), Supervision(hang_s=hang_s))
    looks = hang_looks(value)
    assert hang_s <= looks.period_s * looks.failures < hang_s + looks.period_s
    assert (
        1 <= unready_looks(value).failures < looks.failures
    )  # requests stop before the server does


def test_a_stop_has_time_for_the_requests_that_run():
    """The hook, which runs within the grace period, leaves time for the engine itself."""
    group = document(supervised(context(spread())), "kubernetes/leaderworkerset.yaml")["spec"]
    for part in ("leaderTemplate", "workerTemplate"):
        spec = group["leaderWorkerTemplate"][part]["spec"]
        (container,) = spec["containers"]
        assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "41"]
        assert spec["terminationGracePeriodSeconds"] >= 41 + 30
    # runs may fail as often as their devices are expected to
    assert expected_failures(context()) == 0
    long_run = CONTEXTS["long-run"]
    assert expected_failures(long_run) == 20  # twice ten in thirty days
    job_set = document(supervised(long_run), "jobset.yaml")
    assert job_set["spec"]["failurePolicy"]["maxRestarts"] == 7 + 20
    assert "most=24\n" in target_files(supervised(long_run))["targets/slurm/job.sbatch"]


@needs("systemd-analyze")
@over("name", ["nvidia-one-node", "two-nodes"])
def test_systemd_takes_the_unit(name, tmp_path):
    """``verify`` warns of unknown keys, and ends well; ``security`` fails above an exposure."""
    files = target_files(supervised(EXAMPLES[name]))
    (text,) = (text for path, text in files.items() if path.endswith(".service"))
    unit, drop_in = tmp_path / "recipe@.service", tmp_path / "recipe@.service.d" / "machine.conf"
    env = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}

    def asked(*words):
        words = ["systemd-analyze", *words, "--man=no", unit]
        done = subprocess.run(words, capture_output=True, text=True, env=env)
        told = [line for line in done.stderr.splitlines() if "recipe@" in line or ".conf" in line]
        return done.returncode, told

    unit.write_text(text)
    assert asked("verify") == (0, [])
    assert asked("security", "--offline=yes", "--threshold=60")[0] == 0
    drop_in.parent.mkdir()
    drop_in.write_text(files["targets/systemd/machine.conf"])
    assert asked("verify") == (0, [])
    assert asked("security", "--offline=yes", "--threshold=30")[0] == 0
    unit.write_text(text.replace("WatchdogSec", "WatchdogSecs"))
    assert "WatchdogSecs" in str(asked("verify"))


WEIGHTS = 690 * 10**9
"""DeepSeek-R1's checkpoint."""


def test_the_limit_of_a_start_grows_with_what_is_fetched_and_read():
    fetch_s, read_s = WEIGHTS / 90e6, WEIGHTS / 140e6
    assert limit_s(single(), WEIGHTS, "org/model", None) == math.ceil(1800 + fetch_s + read_s)
    # a folder is only read
    assert limit_s(single(), WEIGHTS, "/data/model", None) == math.ceil(1800 + read_s)
    assert limit_s(single(), 10**6, "org/model", None) == 1801
    for model in ("org/model", "/data/model"):  # a stated rate counts
        slow, fast = (weights_s(WEIGHTS, model, rate) for rate in (50, 1000))
        assert slow - fast == pytest.approx(WEIGHTS / 50e6 - WEIGHTS / 1000e6)
    rates = startup_rates()
    for rate in (rates.fetch_bytes_per_s, rates.read_bytes_per_s):
        assert rate.source in rates.sources


@over("stated", [{}, {"storage_mb_per_s": 40}, {"model": "/data/model"}])
def test_every_target_waits_equally_long(stated):
    value = replace(context(), weights_bytes=WEIGHTS)
    value = with_parameters(value, api_key_secret="key", **stated)
    limit = supervise.start_s(value)
    model, rate = stated.get("model", value.model), stated.get("storage_mb_per_s")
    assert limit == limit_s(single(), WEIGHTS, model, rate)
    files = target_files(value)
    assert f"initial_delay_seconds: {limit}" in files["targets/skypilot/service.yaml"]
    assert f"start_period: {limit}s" in files["targets/compose/compose.yaml"]
    pod = document(value, "kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    probe = pod["containers"][0]["startupProbe"]
    assert 0 <= probe["failureThreshold"] * probe["periodSeconds"] - limit < supervise.PROBE_S


def test_the_launcher_waits_as_long_as_the_targets():
    files = bundle_for_request(make_request()).files
    service = parse_yaml(files["targets/compose/compose.yaml"].decode())["services"]["server-0"]
    waits_s = int(service["healthcheck"]["start_period"].removesuffix("s"))
    assert json.loads(files["launch.json"])["startup_timeout_s"] == waits_s > 1800


@pytest.fixture
def engine(tmp_path):
    """A server of one token at a time; while the file is there it generates nothing."""
    port, stands = free_port(), tmp_path / "stands"
    words = ["--port", str(port), "--metrics", "--orders", str(stands), "--delay", "0.05"]
    script = ROOT / "tests" / "fixtures" / "fake_server.py"
    with subprocess.Popen([sys.executable, script, *words], stdout=subprocess.DEVNULL) as server:
        try:
            assert comes(lambda: HERE.ask("127.0.0.1", port, "/health", timeout_s=1)[0] == 200)
            yield port, stands
        finally:
            server.kill()


def test_a_pods_probe_sees_whether_its_server_generates(engine):
    """Its own command, as the kubelet runs it: a full server generates, one that hangs does not."""
    port, stands = engine
    (found,) = chains(document(context(), "kubernetes/deployment.yaml"), ["livenessProbe"])
    *words, seconds, _, figures, path, body = found["exec"]["command"]
    assert float(seconds) < found["timeoutSeconds"]

    def probe(seconds="1", port=port, body=body):
        command = [*words, seconds, str(port), figures, path, body]
        return subprocess.run(command, check=False).returncode

    def shows(text):
        return text in HERE.ask("127.0.0.1", port, figures, timeout_s=1, most_bytes=9999)[1]

    too_long = json.dumps({"prompt": "w " * 10_000, "max_tokens": 1})
    assert (probe(), probe(body=too_long), probe(port=free_port())) == (0, 0, 1)
    stands.touch()
    assert probe() == 1
    stands.unlink()
    asked = {"body": {"prompt": "w", "max_tokens": 1000}, "timeout_s": 60, "most_bytes": 1 << 20}
    HERE.ask_later("127.0.0.1", port, path, method="POST", **asked)
    assert comes(lambda: shows(b"running 1"))
    assert probe(seconds="0.001") == 0  # its count moves: nothing is asked
