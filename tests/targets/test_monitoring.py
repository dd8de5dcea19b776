"""The monitoring pack, held against Prometheus' own tool and the rules of Grafana's model."""

import json
import re
import subprocess
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.request.over_time import Start
from recipe_core.targets import target_refusals
from recipe_core.targets.monitoring import (
    alert_thresholds,
    device_exporter,
    monitoring_files,
    prometheus_rules,
    scrape_job_names,
    warm_up_s,
)
from tests.fixtures.rows import over, table
from tests.fixtures.targets import AMD, ESTIMATE, EXAMPLES, ROCM, context, needs

SERVING = [value for value in EXAMPLES.values() if value.kind == "serving"]


def written(value, folder):
    for path, text in monitoring_files(value).items():
        (folder / path.split("/")[-1]).write_text(text)


def promtool(folder, *words):
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@needs("promtool")
@over("value", SERVING)
def test_prometheus_takes_configuration_rules_and_queries(value, tmp_path):
    written(value, tmp_path)
    within = parse_yaml((tmp_path / "prometheus-kubernetes.yaml").read_text())
    for job in within["scrape_configs"]:  # Debian's build leaves out discovery by Kubernetes
        job.pop("kubernetes_sd_configs")
    (tmp_path / "kubernetes.yaml").write_text(to_yaml(within))
    board = json.loads((tmp_path / "dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    records = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(queries)]
    groups = [{"name": "queries", "rules": records}]
    (tmp_path / "queries.yaml").write_text(to_yaml({"groups": groups}))
    for words in (
        ("rules", "rules.yaml", "queries.yaml"),
        ("config", "prometheus.yaml"),
        ("config", "kubernetes.yaml"),
    ):
        code, said = promtool(tmp_path, "check", *words)
        assert code == 0, said


VALUE = context()
JOB, DEVICES = scrape_job_names(VALUE)
RECIPES = {
    "mean": VALUE,
    "percentile": replace(VALUE, limits={"ttft_ms": 1000, "percentile": 95}),
    "amd": context(hardware=AMD, image=ROCM),
}


@needs("promtool")
@over("recipe, expected", product(RECIPES, (True, False)))
def test_alerts_fire_at_their_thresholds(recipe, expected, tmp_path):
    """By promtool's own engine, which is told that none fires and names those that do."""
    written(RECIPES[recipe], tmp_path)
    alerts, tests = table("monitoring", "alerts"), []
    rows = [row[1::2] for row in alerts if row[::2] == [recipe, expected]]
    for alert, given in rows:
        place = f'{{job="{DEVICES if alert.startswith("Device") else JOB}",'
        series = [{"series": n.replace("{", place), "values": v} for n, v in given.items()]
        at = "30m" if alert == "RecipeThroughputLow" else "20m"
        fires = [{"eval_time": at, "alertname": alert}]
        tests.append({"interval": "1m", "input_series": series, "alert_rule_test": fires})
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(to_yaml(test))
    code, said = promtool(tmp_path, "test", "rules", "test.yaml")
    fired = Counter(re.findall(r"alertname: (\w+)", said))
    assert fired == Counter(alert for alert, _ in rows if expected), said
    assert (code != 0) is expected, said


def test_thresholds_come_from_limits_and_else_from_the_band():
    found = alert_thresholds(VALUE)
    assert (found.tpot.value, found.tpot.basis) == (0.04, "the recipe's limit, 40 ms")
    assert (found.ttft.value, found.ttft.basis) == (0.798, "the upper end of the estimate, 798 ms")
    assert (found.waiting, found.load, found.tokens_per_s) == (6, 64, 1672.0)
    # a cache that is meant to be full is not alarming
    tight = ESTIMATE | {"memory": ESTIMATE["memory"] | {"kv_needed_bytes": 53.5e9}}
    usage = alert_thresholds(replace(VALUE, estimate=tight)).kv_usage
    assert usage == pytest.approx(53.5 / 54.9, abs=1e-3)
    # a load by rate has no full load to compare with
    open_loop = {"mode": "open", "request_rate": 2.0, "input_tokens": 100, "output_tokens": 100}
    value = replace(VALUE, workload=open_loop)
    every = [rule for group in prometheus_rules(value)["groups"] for rule in group["rules"]]
    assert "RecipeThroughputLow" not in {rule.get("alert") for rule in every}
    assert alert_thresholds(value).waiting == round(0.1 * 1047)
    # larger weights take longer to warm up
    ready = replace(VALUE, start=Start(node="ready", weights="nvme"))
    assert 120 <= warm_up_s(ready) < warm_up_s(VALUE)  # nothing is pulled or downloaded
    assert warm_up_s(replace(VALUE, weights_bytes=10**13)) == 1800


def test_an_engine_without_metrics_still_has_device_alerts():
    value = replace(VALUE, engine="unheard-of")
    assert [group["name"].removeprefix(JOB) for group in prometheus_rules(value)["groups"]] == [
        "-devices"
    ]
    with pytest.raises(NoAnswer, match="not known"):
        monitoring_files(replace(value, vendor="cpu"))
    assert "not known" in target_refusals(replace(value, vendor="cpu"))["monitoring"]


@over("value", SERVING)
def test_dashboards_are_grafanas(value):
    """What its importer needs: unique ids, panels side by side, queries with a data source."""
    board = json.loads(monitoring_files(value)["monitoring/dashboard.json"])
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert len({(place["x"], place["y"]) for place in places}) == len(panels)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    targets = [target for panel in panels for target in panel["targets"]]
    assert all(each["expr"] and each["datasource"]["uid"] == "$datasource" for each in targets)
    assert board["templating"]["list"][0]["type"] == "datasource"


def test_the_dashboard_asks_for_what_the_rules_record():
    board = monitoring_files(VALUE)["monitoring/dashboard.json"]
    every = [rule for group in prometheus_rules(VALUE)["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in every if "record" in rule}
    asked = set(re.findall(r"recipe:[^\s{\"\\]+", board))
    assert asked <= recorded
    assert len(asked) >= 8


def test_counters_hold_every_field_that_alerts_use():
    devices = device_exporter("nvidia")
    listed = {row[0] for row in devices.counters}
    used = " ".join([*devices.throttled, *(fault.when for fault in devices.faults)])
    assert set(re.findall(r"\bDCGM_\w+", used)) <= listed
    shown = (devices.memory_used, devices.memory_free, devices.use, devices.power_w)
    assert {*shown, devices.temperature_c} <= listed
