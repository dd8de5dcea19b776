"""The monitoring pack, held against Prometheus' own tool and the rules of Grafana's model."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.request.start import Start
from recipe_core.targets import refusals
from recipe_core.targets.monitoring.metrics import engine_metrics, exporter
from recipe_core.targets.monitoring.pack import monitoring_files
from recipe_core.targets.monitoring.rules import jobs, rules
from recipe_core.targets.monitoring.thresholds import thresholds, warm_up_s
from tests.fixtures.targets import AMD, ESTIMATE, EXAMPLES, ROCM, context, needs, pools, replicas

SERVING = {name: value for name, value in EXAMPLES.items() if value.kind == "serving"}


def alerts(value):
    return {
        rule["alert"]: rule
        for group in rules(value)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def written(value, folder):
    for path, text in monitoring_files(value).items():
        (folder / path.split("/")[-1]).write_text(text)


def promtool(folder, *words):
    return subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True)


@needs("promtool")
@pytest.mark.parametrize("name", SERVING)
def test_prometheus_takes_configuration_and_rules(name, tmp_path):
    written(SERVING[name], tmp_path)
    within = parse_yaml((tmp_path / "prometheus-kubernetes.yaml").read_text())
    for job in within[
        "scrape_configs"
    ]:  # some builds of Prometheus, Debian's too, leave out discovery by Kubernetes
        job.pop("kubernetes_sd_configs")
    (tmp_path / "kubernetes.yaml").write_text(to_yaml(within))
    for kind, file in (
        ("rules", "rules.yaml"),
        ("config", "prometheus.yaml"),
        ("config", "kubernetes.yaml"),
    ):
        done = promtool(tmp_path, "check", kind, file)
        assert done.returncode == 0, done.stdout + done.stderr


def series(name, values, **labels):
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


def fires(value, folder, alert, *given, at="20m"):
    """Whether promtool's own engine fires the alert for the series given, one sample a minute."""
    written(value, folder)
    silent = {"eval_time": at, "alertname": alert, "exp_alerts": []}
    tests = [{"interval": "1m", "input_series": list(given), "alert_rule_test": [silent]}]
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yaml").write_text(to_yaml(test))
    done = promtool(folder, "test", "rules", "test.yaml")
    assert done.returncode == 0 or f"alertname: {alert}" in done.stdout + done.stderr, (
        done.stdout + done.stderr
    )
    return done.returncode != 0


VALUE = context()
JOB, DEVICES = jobs(VALUE)
M = engine_metrics("vllm")


@needs("promtool")
@pytest.mark.parametrize(("seconds", "expected"), [(0.039, False), (0.041, True)])
def test_the_limit_of_the_recipe_is_where_the_alert_fires(seconds, expected, tmp_path):
    sums = (
        series(f"{M.tpot}_{part}", f"0+{step}x30", job=JOB, instance="a")
        for part, step in (("sum", 600 * seconds), ("count", 600))
    )
    assert fires(VALUE, tmp_path, "RecipeTpotHigh", *sums) is expected


@needs("promtool")
@pytest.mark.parametrize(("slow", "expected"), [(2, False), (8, True)])
def test_a_percentile_is_held_against_its_quantile(slow, expected, tmp_path):
    """5 % may be slow when 95 % must be quick; 20 % may not."""
    value = replace(VALUE, limits={"ttft_ms": 1000, "percentile": 95})
    buckets = {"0.5": 100 - slow, "1.0": 100 - slow, "10.0": 100, "+Inf": 100}
    given = (
        series(f"{M.ttft}_bucket", f"0+{count}x30", job=JOB, instance="a", le=le)
        for le, count in buckets.items()
    )
    assert fires(value, tmp_path, "RecipeTtftHigh", *given) is expected


@needs("promtool")
@pytest.mark.parametrize(("waiting", "expected"), [((5, 5), False), ((9, 5), True)])
def test_the_queue_is_counted_for_each_server(waiting, expected, tmp_path):
    given = (
        series(M.waiting, f"{count}x30", job=JOB, instance=f"server-{n}")
        for n, count in enumerate(waiting)
    )
    assert fires(VALUE, tmp_path, "RecipeQueue", *given) is expected


@needs("promtool")
@pytest.mark.parametrize(("running", "expected"), [(64, True), (10, False)])
def test_slow_output_matters_at_full_load_only(running, expected, tmp_path):
    tokens = series(M.output_tokens, f"0+{1600 * 60}x40", job=JOB, instance="a")
    busy = series(M.running, f"{running}x40", job=JOB, instance="a")
    assert fires(VALUE, tmp_path, "RecipeThroughputLow", tokens, busy, at="30m") is expected


@needs("promtool")
@pytest.mark.parametrize(("usage", "expected"), [("0.94", False), ("0.97", True)])
def test_a_full_cache_fires(usage, expected, tmp_path):
    assert (
        fires(
            VALUE,
            tmp_path,
            "RecipeKvCacheFull",
            series(M.kv_usage, f"{usage}x30", job=JOB, instance="a"),
        )
        is expected
    )


@needs("promtool")
@pytest.mark.parametrize(
    ("alert", "name", "values", "expected"),
    [
        ("DeviceXid", "DCGM_FI_DEV_XID_ERRORS", "0x15 79x15", True),
        (
            "DeviceXid",
            "DCGM_FI_DEV_XID_ERRORS",
            "79x30",
            False,
        ),  # an old one, from before this deployment
        ("DeviceDoubleBitEcc", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0x15 1x15", True),
        ("DeviceRowRemapFailure", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x30", False),
        ("DeviceThrottled", "DCGM_FI_DEV_THERMAL_VIOLATION", "0+1000x30", True),
        ("DeviceThrottled", "DCGM_FI_DEV_THERMAL_VIOLATION", "5000x30", False),
    ],
)
def test_faults_of_nvidia_devices_fire(alert, name, values, expected, tmp_path):
    assert (
        fires(VALUE, tmp_path, alert, series(name, values, job=DEVICES, gpu="3", Hostname="node-1"))
        is expected
    )


@needs("promtool")
@pytest.mark.parametrize(
    ("alert", "name", "values", "expected"),
    [
        ("DeviceRasUncorrectable", "gpu_ecc_uncorrect_total", "0x15 1x15", True),
        ("DeviceRasUncorrectable", "gpu_ecc_uncorrect_total", "1x30", False),
        ("DeviceRasCorrectable", "gpu_ecc_correct_total", "0+10x30", True),
        ("DeviceThrottled", "gpu_violation_socket_thermal_residency_percentage", "12x30", True),
    ],
)
def test_faults_of_amd_devices_fire(alert, name, values, expected, tmp_path):
    value = context(hardware=AMD, image=ROCM)
    assert (
        fires(
            value, tmp_path, alert, series(name, values, job=DEVICES, gpu_id="3", hostname="node-1")
        )
        is expected
    )


@needs("promtool")
def test_memory_that_is_full_fires(tmp_path):
    used, free = (
        series(f"DCGM_FI_DEV_FB_{name}", f"{mib}x30", job=DEVICES, gpu="0")
        for name, mib in (("USED", 81000), ("FREE", 500))
    )
    assert fires(VALUE, tmp_path, "DeviceMemoryFull", used, free)


def test_thresholds_come_from_limits_and_else_from_the_band():
    found = thresholds(VALUE)
    assert (found.tpot.value, found.tpot.basis) == (0.04, "the recipe's limit, 40 ms")
    assert (found.ttft.value, found.ttft.basis) == (0.798, "the upper end of the estimate, 798 ms")
    assert (found.waiting, found.load, found.tokens_per_s) == (6, 64, 1672.0)


def test_a_cache_that_is_meant_to_be_full_is_not_alarming():
    tight = ESTIMATE | {"memory": ESTIMATE["memory"] | {"kv_needed_bytes": 53.5e9}}
    assert thresholds(replace(VALUE, estimate=tight)).kv_usage == pytest.approx(
        53.5 / 54.9, abs=1e-3
    )


def test_a_load_by_rate_has_no_full_load_to_compare_with():
    value = replace(
        VALUE,
        workload={"mode": "open", "request_rate": 2.0, "input_tokens": 100, "output_tokens": 100},
    )
    assert "RecipeThroughputLow" not in alerts(value)
    assert thresholds(value).waiting == round(0.1 * 1047)


def test_larger_weights_take_longer_to_warm_up():
    ready = replace(VALUE, start=Start(node="ready", weights="nvme"))
    assert 120 <= warm_up_s(ready) < warm_up_s(VALUE)  # nothing is pulled or downloaded
    assert warm_up_s(replace(VALUE, weights_bytes=10**13)) == 1800


def test_every_server_is_scraped_and_no_router():
    targets = [
        target
        for job in json_of(context(pools()))["scrape_configs"][:1]
        for target in job["static_configs"][0]["targets"]
    ]
    assert targets == ["127.0.0.1:8001", "127.0.0.1:8002"]
    within = monitoring_files(context(pools()))["monitoring/prometheus-kubernetes.yaml"]
    assert {
        "source_labels": ["__meta_kubernetes_pod_container_name"],
        "regex": "router",
        "action": "drop",
    } in parse_yaml(within)["scrape_configs"][0]["relabel_configs"]
    assert (
        len(json_of(context(replicas(4, 2)))["scrape_configs"][0]["static_configs"][0]["targets"])
        == 4
    )


def json_of(value):
    return parse_yaml(monitoring_files(value)["monitoring/prometheus.yaml"])


def test_an_engine_without_metrics_still_has_device_alerts():
    value = replace(VALUE, engine="unheard-of")
    assert [group["name"].removeprefix(JOB) for group in rules(value)["groups"]] == ["-devices"]
    with pytest.raises(NoAnswer, match="not known"):
        monitoring_files(replace(value, vendor="cpu"))
    assert "not known" in refusals(replace(value, vendor="cpu"))["monitoring"]


@pytest.mark.parametrize("name", SERVING)
def test_dashboards_are_grafanas(name):
    """What its importer needs: unique ids, panels side by side, queries with a data source."""
    board = json.loads(monitoring_files(SERVING[name])["monitoring/dashboard.json"])
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(taken) == len(panels)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)
    assert all(
        t["expr"] and t["datasource"]["uid"] == "$datasource" for p in panels for t in p["targets"]
    )
    assert board["templating"]["list"][0]["type"] == "datasource"


@needs("promtool")
@pytest.mark.parametrize("name", SERVING)
def test_queries_of_the_dashboard_parse(name, tmp_path):
    board = json.loads(monitoring_files(SERVING[name])["monitoring/dashboard.json"])
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    records = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(queries)]
    (tmp_path / "queries.yaml").write_text(
        to_yaml({"groups": [{"name": "queries", "rules": records}]})
    )
    assert promtool(tmp_path, "check", "rules", "queries.yaml").returncode == 0


def test_the_dashboard_asks_for_what_the_rules_record():
    board = monitoring_files(VALUE)["monitoring/dashboard.json"]
    recorded = {
        rule["record"]
        for group in rules(VALUE)["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    asked = {
        word
        for word in board.replace("{", " ").replace('"', " ").split()
        if word.startswith("recipe:")
    }
    assert asked <= recorded
    assert len(asked) >= 8


def test_counters_hold_every_field_that_alerts_use():
    devices = exporter("nvidia")
    listed = {row[0] for row in devices.counters}
    used = " ".join([*devices.throttled, *(fault.when for fault in devices.faults)])
    assert {
        word
        for word in used.replace("(", " ").replace("{", " ").split()
        if word.startswith("DCGM_")
    } <= listed
    assert {
        devices.memory_used,
        devices.memory_free,
        devices.use,
        devices.power_w,
        devices.temperature_c,
    } <= listed
