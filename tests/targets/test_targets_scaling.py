"""What is written into autoscalers is the policy that was simulated: written, read back, equal."""

from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.bundle.write import bundle_of
from recipe_core.recipe import Additions, Recipe, make_recipe
from recipe_core.recipe.place import Parameters
from recipe_core.request.scaling import Period, Scaling, Trigger
from recipe_core.scaling.policies import controller_of
from recipe_core.scaling.policies.rows import policy_row
from recipe_core.targets import each_target, kserve, target_names, target_refusals
from recipe_core.targets.notes import scaling_notes
from recipe_core.targets.scale import keda
from recipe_core.targets.scale.policy import refuse_other_bounds, stated_fields
from tests.conftest import make_request
from tests.fixtures.cluster_schemas import assert_valid
from tests.fixtures.read_scaling import read_behavior, read_files, read_scaling
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples
from tests.fixtures.targets import (
    context,
    replicas,
    single,
    spread,
    with_parameters,
)

GATEWAY = 'nginx_ingress_controller_requests{ingress="llm"}'
WRITTEN_BY = table("targets_scaling", "written_by")
SCALED = ("kubernetes-keda", "kubernetes-hpa", "kserve", "kserve-llm", "skypilot", "ray-serve")
"""Targets that scale, and so refuse a policy that they do not run; and Knative."""
ONE = {
    policy: Scaling.model_validate({"policy": policy} | fields)
    for policy, fields in table("targets_scaling", "policies").items()
}


def scaled(scaling, launch=None, **parts):
    value = replace(context(launch), scaling=scaling)
    return with_parameters(value, gateway_metric=GATEWAY, api_key_secret="key", **parts)


def written(value, target):
    if target == "ray-serve":  # which asks nobody for a key
        value = with_parameters(value, api_key_secret=None)
    files = each_target(value)[target]
    assert isinstance(files, dict), files
    return files


def said(scaling):
    """A policy by what it does: hours in place of periods, defaults that objects must state."""
    fields = scaling.model_dump(exclude_defaults=True)
    fields["triggers"] = sorted((trigger.metric, trigger.target) for trigger in scaling.triggers)
    if scaling.policy == "schedule":
        hours = keda.replicas_by_hour(scaling)
        fields |= {"periods": hours, "min_replicas": min(hours)}
    fields.setdefault("min_replicas", 1)
    fields["policy"] = scaling.policy
    return fields


@over("policy", ONE)
def test_a_policy_comes_back_from_what_was_written_and_other_targets_refuse_it(policy):
    scaling = ONE[policy]
    for target, launch in product(WRITTEN_BY[policy], (single(), replicas(4, 2))):
        if policy != "llm-d":
            read = read_files(written(scaled(scaling, launch), target))
            assert said(read) == said(scaling), target
            assert read.max_replicas == scaling.max_replicas  # servers, whatever the recipe has
    for launch in (single(), spread(2)):
        assert_valid(scaled(scaling, launch))
    refused = target_refusals(scaled(scaling))
    if "ray-serve" in WRITTEN_BY[policy] and "no caller for a key" in refused["ray-serve"]:
        del refused["ray-serve"]
    for target in {*SCALED, "knative"} & set(target_names(scaled(scaling))):
        if target in WRITTEN_BY[policy]:
            assert target not in refused
        else:
            assert f"the chosen policy is {policy}" in refused[target]
    assert "kubernetes" not in refused  # what overlays scale


seconds = st.none() | st.integers(0, 3600)
steps = st.none() | st.tuples(st.integers(1, 99), st.integers(1, 1800))
thousandths = st.integers(1, 10_000_000).map(lambda number: number / 1000)


def triggers(*metrics):
    drawn = st.builds(Trigger, metric=st.sampled_from(metrics), target=thousandths)
    several = st.lists(drawn, min_size=1, max_size=4, unique_by=lambda trigger: trigger.metric)
    return several.map(tuple)


@st.composite
def policies(draw, policy, least):
    """KEDA's and HPA's policies with any numbers that can be written."""
    low = draw(st.integers(least, 40))
    up, down = draw(steps), draw(steps)
    fields = {
        "policy": policy,
        "min_replicas": low,
        "max_replicas": draw(st.integers(max(1, low), 400)),
        "triggers": draw(triggers("waiting", "running", "in-flight", "kv-usage", "request-rate")),
        "tolerance": draw(st.none() | st.integers(0, 1000).map(lambda number: number / 1000)),
        "window_s": draw(st.none() | st.integers(1, 600).filter(lambda value: value != 60)),
        "up_delay_s": draw(seconds),
        "down_delay_s": draw(seconds),
    }
    if up:
        fields["up_step"], fields["up_period_s"] = up
    if down:
        fields["down_step"], fields["down_period_s"] = down
    if policy == "keda":
        fields["interval_s"] = draw(st.none() | st.integers(1, 600))
        fields["idle_s"] = draw(st.none() | st.integers(0, 7200))
    return Scaling(**fields)


@settings(max_examples=examples(200), deadline=None)
@given(policies("keda", 0) | policies("hpa", 1))
def test_any_policy_of_keda_and_hpa_is_read_back_with_the_same_numbers(scaling):
    target = f"kubernetes-{scaling.policy}"
    assert said(read_files(written(scaled(scaling), target))) == said(scaling)


@st.composite
def schedules(draw):
    starts = draw(st.lists(st.integers(0, 167), min_size=1, max_size=40))
    periods = tuple(
        Period(
            from_hour=start,
            to_hour=draw(st.integers(start + 1, 168)),
            replicas=draw(st.integers(0, 30)),
        )
        for start in starts
    )
    least = draw(st.integers(0, 20))
    return Scaling(policy="schedule", min_replicas=least, max_replicas=30, periods=periods)


@settings(max_examples=examples(200), deadline=None)
@given(schedules())
def test_any_schedule_runs_the_same_number_at_every_hour(scaling):
    hours = keda.replicas_by_hour(scaling)
    if len(set(hours)) == 1:
        return
    spec = scaled_object(scaling)
    assert kedas_week(spec) == hours
    assert said(read_scaling([{"kind": "ScaledObject", "spec": spec}])) == said(scaling)


def kedas_week(spec):
    """Replicas of every hour as KEDA's cron scaler decides: active while the end comes first."""
    counts = []
    for hour in range(168):
        wanted = [spec["minReplicaCount"]]
        for trigger in spec["triggers"]:
            start, end = (next_time(trigger["metadata"][key], hour) for key in ("start", "end"))
            if end < start:
                wanted.append(int(trigger["metadata"]["desiredReplicas"]))
        counts.append(max(wanted))
    return tuple(counts)


def next_time(expression, hour):
    """Hours from half past an hour of the week until a cron expression comes next."""
    minute, at, day, month, weekdays = expression.split()
    assert (minute, day, month) == ("0", "*", "*")
    moments = [(int(weekday) - 1) % 7 * 24 + int(at) for weekday in weekdays.split(",")]
    return min((moment - hour - 1) % 168 for moment in moments)


def documents_of(value, target):
    texts = {path: text for path, text in written(value, target).items() if "yaml" in path}
    parsed = [parse_yaml(text, path) for path, text in texts.items()]
    return {found.get("kind", ""): found for found in parsed}


def scaled_object(scaling):
    return documents_of(scaled(scaling), "kubernetes-keda")["ScaledObject"]["spec"]


def test_scale_to_zero_is_waked_by_the_gateway():
    scaling = ONE["keda"].model_copy(update={"min_replicas": 0})
    *_, waking = scaled_object(scaling)["triggers"]
    arrivals, *held = waking["metadata"]["query"].split(" + ")
    assert arrivals == f"sum(rate({GATEWAY}[60s]))"
    # a request that runs keeps its replica, and without a replica the sum is not empty
    assert [term.rpartition(" or ")[2] for term in held] == ["vector(0))", "vector(0))"]
    assert waking["metadata"]["activationThreshold"] == "0"
    # of however many requests, its target asks for one replica
    assert float(waking["metadata"]["threshold"]) >= 1e9


@over("policy, changes, reason", table("targets_scaling", "refused"))
def test_what_a_target_cannot_be_told_is_refused(policy, changes, reason):
    fields = ONE[policy].model_dump(exclude_unset=True) | changes
    assert reason in target_refusals(scaled(Scaling(**fields)))[WRITTEN_BY[policy][0]]


def test_the_planner_forecasts_as_it_was_simulated():
    simulated = controller_of([ONE["dynamo"]], capacity_per_s=1.0, start_s=60.0)
    name = documents_of(scaled(ONE["dynamo"]), "dynamo-planner")[""]["load_predictor"]
    assert type(simulated._arrivals._forecast).__name__.lower() == name


@over("policy", ONE)
def test_fields_that_a_policy_honours_are_written_or_refused_by_name(policy):
    """Targets refuse only what their objects lack, never for want of knowing the field."""
    lacking = {"llm-d": ("window_s", "idle_s"), "dynamo": ("headroom",)}
    target = WRITTEN_BY[policy][0]
    for name in set(policy_row(policy).fields) - {"periods"}:
        changes = {name: 2}
        if name in ("tolerance", "headroom"):
            changes[name] = 0.25
        elif name.endswith("_s"):
            changes[name] = 60
        if name.endswith("_period_s"):
            changes[name.replace("_period_s", "_step")] = 2
        value = scaled(ONE[policy].model_copy(update=changes))
        value = with_parameters(value, api_key_secret="key" if target == "skypilot" else None)
        reason = target_refusals(value).get(target, "")
        assert bool(reason) == (name in lacking.get(policy, ())), reason
        assert name in reason or not reason


def test_stated_replicas_that_differ_are_an_error():
    scaling = ONE["keda"]
    refuse_other_bounds(scaling, Parameters(), replicas(4, 2))
    same = scaling.model_copy(update={"min_replicas": 4, "max_replicas": 8})
    refuse_other_bounds(same, Parameters(min_replicas=1, max_replicas=2), replicas(4, 2))
    error = refusal(refuse_other_bounds, scaling, Parameters(max_replicas=2), replicas(4, 2))
    assert "are 4 to 8 servers; options.scaling has 2 to 9" in str(error)


def test_the_readme_says_which_policy_is_written_and_where():
    value = scaled(ONE["keda"])
    names = [name for name in target_names(value) if name not in target_refusals(value)]
    first, fixed, second = scaling_notes(value, names)
    assert "policy keda, 2 to 9 servers, in-flight 24" in first
    assert "`kubernetes-keda`" in first
    assert "not simulated" in first
    assert "`llm-d` starts the fewest" in fixed
    assert "`docker`" in second  # which starts a number and keeps it
    known = {"scaling": {"simulated": {"current": True}}}
    over = replace(value, estimate=value.estimate | known)
    assert "the numbers that were simulated" in scaling_notes(over, names)[0]
    assert scaling_notes(context(), names) == []


def test_every_field_is_written_or_refused():
    """No stated field of a policy disappears on the way to its first target."""
    values = {"interval_s": 10.0, "window_s": 90.0, "up_delay_s": 10.0, "down_delay_s": 20.0}
    values |= {"idle_s": 600.0, "lead_s": 60.0, "tolerance": 0.2, "headroom": 0.3}
    values |= {"up_step": 2, "down_step": 3}
    policies = [each for each in ONE.items() if each[0] != "fixed"]
    for (policy, scaling), (name, value) in product(policies, values.items()):
        changed = scaled(scaling.model_copy(update={name: value}))
        result = each_target(changed)[WRITTEN_BY[policy][0]]
        if isinstance(result, dict):
            assert result != written(scaled(scaling), WRITTEN_BY[policy][0]), (policy, name)


def test_nothing_stated_reads_back_as_nothing():
    names = "scaleTargetRef minReplicaCount maxReplicaCount fallback triggers"
    assert set(scaled_object(ONE["keda"])) == set(names.split())
    assert read_behavior({}) == {}
    assert stated_fields(Scaling()) == []
    assert "none of the files" in str(refusal(read_scaling, [{"rules": {}}]))
    assert "a policy of its own" in str(refusal(kserve.knative_files, context(), kind=NoAnswer))


def test_a_bundle_has_the_requests_numbers():
    """From the request through the recipe to the files, and a recipe read again gives the same."""
    stated = {"policy": "keda", "min_replicas": 1, "max_replicas": 5, "down_delay_s": 777}
    stated["triggers"] = [{"metric": "in-flight", "target": 17.5}]
    request = make_request(options={"scaling": stated})
    bundle = bundle_for_request(request)
    spec = documents_of(bundle.context, "kubernetes-keda")["ScaledObject"]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 5)
    assert spec["triggers"][0]["metadata"]["threshold"] == "17.5"
    readme = bundle.files["README.md"].decode()
    assert "policy keda, 1 to 5 servers, in-flight 17.5, down_delay_s 777" in readme
    again = bundle_of(Recipe.model_validate(parse_yaml(bundle.files["recipe.yaml"].decode())))
    assert again.files == bundle.files
    other = make_recipe(request, Additions(parameters=Parameters(max_replicas=7)))
    assert "max_replicas" in str(refusal(bundle_of, other))
