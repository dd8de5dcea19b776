"""Conditions and the merge: what applies where, in which order, and that changes compose."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from recipe_core.base.errors import NoAnswer
from recipe_core.bundle.verify import read_bundle
from recipe_core.bundle.write import bundle_files, write_bundle
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.payload.launcher.checks import find_unmet
from recipe_core.payload.launcher.choices import list_launch_choices, misfit, next_choice
from recipe_core.payload.launcher.devices import Device as LaunchDevice
from recipe_core.payload.launcher.machine import Machine as LaunchMachine
from recipe_core.payload.launcher.plan import load_plan
from recipe_core.payload.launcher.preflight import check_variants
from recipe_core.recipe import Additions, make_recipe, passing_on, with_variants
from recipe_core.recipe import variants as rules
from recipe_core.recipe.place import Parameters, parse_recipe_variants
from recipe_core.recipe.resolve import (
    hardware_named,
    machine_of,
    recipe_for,
    resolve_recipe,
    settings_of,
)
from recipe_core.recipe.variants import Change, Machine, Settings, Variant, When, matching
from tests.conftest import make_request
from tests.fixtures.command_line import recipe as run
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table

NAMES = st.sampled_from("abcdef")
VALUES = st.dictionaries(NAMES, st.integers(0, 3), max_size=4)
TEXTS = st.dictionaries(NAMES, st.sampled_from(["x", "y"]), max_size=4)
NOTES = st.lists(NAMES, max_size=4, unique=True).map(tuple)
SETTINGS = st.builds(Settings, candidate=VALUES, options=VALUES, environment=TEXTS, notes=NOTES)


@st.composite
def changes(draw) -> Change:
    sets = {"candidate": draw(VALUES), "options": draw(VALUES), "environment": draw(TEXTS)}
    removed = {"notes": draw(NOTES)}
    for name, values in sets.items():
        removed[name] = tuple(sorted(draw(st.sets(NAMES, max_size=3)) - set(values)))
    return Change.model_validate({"set": sets, "remove": removed, "add": {"notes": draw(NOTES)}})


@given(SETTINGS, changes())
def test_nothing_is_the_identity_and_a_change_twice_is_once(settings, change):
    assert Change().applied(settings) == settings
    once = change.applied(settings)
    assert_same_but_for_order(change.applied(once), once)


def assert_same_but_for_order(settings, other):
    """Notes of settings have no order."""
    first, second = (each.model_dump(exclude={"notes"}) for each in (settings, other))
    assert (first, set(settings.notes)) == (second, set(other.notes))


@given(SETTINGS, changes())
def test_what_is_removed_is_gone_and_what_is_set_is_there(settings, change):
    after = change.applied(settings)
    for name in ("candidate", "options", "environment"):
        assert not set(getattr(change.remove, name)) & set(getattr(after, name))
        assert getattr(change.set, name).items() <= getattr(after, name).items()
        before = getattr(settings, name)
        untouched = set(before) - {*getattr(change.remove, name), *getattr(change.set, name)}
        assert all(getattr(after, name)[key] == before[key] for key in untouched)


@given(SETTINGS, SETTINGS)
def test_a_difference_makes_one_of_the_other(before, after):
    assert_same_but_for_order(rules.settings_change(before, after).applied(before), after)
    assert rules.settings_change(before, before) == Change()


MI300X = Machine(
    **{"vendor": "amd", "architecture": "gfx942", "device": "mi300x", "count": 8},
    **{"memory_bytes": 206 << 30, "engine": "vllm", "version": "0.32.0"},
)


def test_all_conditions_must_hold():
    for when, holds in table("recipe", "conditions"):
        assert When.model_validate(when).holds(MI300X) is holds, when
    # the exact device goes before architecture, vendor and default
    conditions = {"device": {"device": "mi300x"}, "default": {}, "vendor": {"vendor": "amd"}}
    conditions |= {"architecture": {"architecture": "gfx942"}}
    variants = [Variant(name=name, when=When(**when)) for name, when in conditions.items()]
    order = [each.name for each in matching(variants, MI300X)]
    assert order == ["default", "vendor", "architecture", "device"]


def test_wrong_variants_are_named():
    for value, field in table("recipe", "wrong_variants"):
        assert refusal(parse_recipe_variants, [value]).field == f"variants.0.{field}"
    with pytest.raises(ValidationError, match=r"options\.a is both set and removed"):
        Change.model_validate({"set": {"options": {"a": 1}}, "remove": {"options": ["a"]}})
    for text in ("mi300x:", "mi300x:0", "mi300x:many", "nosuch:8"):
        refusal(hardware_named, text)


def test_a_variant_is_the_recipe_of_that_hardware():
    """What the variant resolves to is what is built there, option for option."""
    request = make_request()
    recipe = make_recipe(request)
    hardware = [hardware_named(each) for each in ("mi300x:8", "mi300x:2", "l40s:8")]
    computed = with_variants(recipe, request, Additions(), hardware)
    for name, applied in (("mi300x:8", "mi300x-8"), ("mi300x:4", "mi300x-2"), ("l40s:8", "l40s-8")):
        there, found = recipe_for(computed, hardware_named(name))
        assert found.applied == (applied,)
        assert found.settings == settings_of(there)
        layers = {name: layer for name, layer in there.provenance.items() if name[:8] == "options."}
        assert layers.items() <= found.provenance.items()
    found = resolve_recipe(computed, machine_of(hardware_named("h100-sxm:8"), computed))
    assert (found.applied, found.settings) == ((), settings_of(computed))
    with pytest.raises(NoAnswer, match="cannot run"):  # too large for an L4
        with_variants(recipe, request, Additions(), [hardware_named("l4:1")])


def test_a_variant_of_one_kind_of_device_is_started_there_as_its_bundle_would_be(tmp_path):
    request = small()
    written = [
        {"name": "amd", "when": {"vendor": "amd"}, "set": {"environment": {"NCCL_DEBUG": "WARN"}}},
        {"name": "odd", "when": {"device": "l4"}, "set": {"options": {"no_such": 1}}},
    ]
    own = make_recipe(request, Additions(variants=parse_recipe_variants(written)))
    hardware = [hardware_named(each) for each in ("mi300x:1", "mi300x:2", "l40s:2")]
    recipe = with_variants(own, request, Additions(), hardware)
    files = bundle_files(recipe)
    choices = json.loads(files["launch.json"])["choices"]
    order = [choice["title"] for choice in choices if choice["kind"] in ("variant", "first")]
    first = "the recipe's first choice"
    assert order == ["l40s-2", "mi300x-2", "mi300x-1", first, "odd", "amd"]
    advised = [choice["name"] for choice in choices if "advised" in choice]
    assert advised == ["2-variant", "1-variant"]
    for choice, name in zip(choices, ("l40s:2", "mi300x:2", "mi300x:1"), strict=False):
        folder = f"fallbacks/{choice['name']}"
        there = json.loads(files[f"{folder}/launch.json"])
        moved = recipe_for(recipe, hardware_named(name))[0]
        alone = json.loads(bundle_files(moved)["launch.json"])
        for part in ("processes", "engine", "parameters", "workload", "api"):
            assert there[part] == alone[part]
        bounds = {"at_most": 1} if name == "mi300x:1" else {}
        assert choice["needs"] == [alone["needs"] | bounds]
        environment = there["processes"][0]["env"]
        assert environment.get("NCCL_DEBUG") == ("WARN" if "mi300x" in name else None)
        expected = json.loads(files[f"{folder}/expected.json"])
        assert expected["serving"] == moved.estimate["serving"]
    plan = load_plan(write_bundle(recipe, tmp_path / "bundle"))
    here = launch_machine("rocm", [device_profile("mi300x").aliases[0]])
    options = list_launch_choices(plan)
    assert next_choice(options, here, tried=()).title == "mi300x-1"
    (check,) = check_variants(plan.choices, here, 1, plan.root)
    assert "mi300x-1, amd" in check.detail
    assert check.hint.endswith(f"--choice {choices[2]['name']}")
    # another device of the first one's vendor would only be warned of, but has its own
    here = launch_machine("cuda", [device_profile("l40s").aliases[0]] * 2)
    assert next_choice(options, here, tried=()).title == "l40s-2"
    assert misfit(options[3], here) is None
    # many of them are only advised
    many = [
        {"name": f"{n}", "when": {"device": "mi300x", "count": {"at_least": n}}}
        for n in range(1, 20)
    ]
    recipe = make_recipe(request, Additions(variants=parse_recipe_variants(many)))
    listed = json.loads(bundle_files(recipe)["launch.json"])["choices"]
    assert sum(each["kind"] == "variant" and "advised" not in each for each in listed) <= 8


def small(**parts):
    return make_request("Qwen/Qwen3-8B", "h100-sxm", 1, **parts)


def test_what_the_user_set_stays():
    options = {"max_num_seqs": 8, "tool_call_parser": "x"}
    mine = {"name": "mine", "when": {"vendor": "amd"}, "set": {"options": options}}
    asked = passing_on(small(candidate={"max_num_seqs": 64}), {"tool_call_parser": "hermes"}, {})
    recipe = make_recipe(asked, Additions(variants=parse_recipe_variants([mine])))
    found = resolve_recipe(recipe, machine_of(hardware_named("mi300x:1"), recipe))
    kept = {"max_num_seqs": 64, "tool_call_parser": "hermes"}
    assert kept.items() <= found.settings.options.items()
    assert (len(found.kept_out), "mine" in found.kept_out[0]) == (2, True)


def test_what_names_the_own_device_does_not_travel():
    of_engine, mine = f"vllm/vllm-openai:v0.32.0@sha256:{'ab' * 32}", "registry.local/mine:1.2"
    for image, there in ((of_engine, None), (mine, mine)):
        place = Parameters(image=image, gpu_type="h100", partition="gpu")
        recipe = make_recipe(small(), Additions(parameters=place))
        moved, _ = recipe_for(recipe, hardware_named("mi300x:1"))
        assert moved.parameters == Parameters(image=there, partition="gpu")
        assert moved.lock.image.reference == (there or "vllm/vllm-openai-rocm:v0.32.0")
        same, _ = recipe_for(recipe, hardware_named("h100-sxm:1"))
        assert same.parameters == place


def launch_machine(runtime, names):
    devices = tuple(LaunchDevice(index, name, None) for index, name in enumerate(names))
    return LaunchMachine(runtime, devices, "", 1, None, None)


def test_the_launcher_finds_the_variants_that_resolving_applies(tmp_path):
    """Preflight names, on every device and several counts, what ``recipe resolve`` would apply."""
    instinct = {"architecture": "gfx942", "count": {"at_least": 8}}
    large = {"vendor": "nvidia", "memory_bytes": {"at_least": 140_000_000_000}}
    debug, noted = {"set": {"environment": {"NCCL_DEBUG": "WARN"}}}, {"add": {"notes": ["x"]}}
    written = [
        {"name": "instinct", "when": instinct, **debug},
        {"name": "large", "when": large, **noted},
        {"name": "many", "when": {"count": {"at_least": 16}}, **noted},
        {"name": "older", "when": {"device": "a100-sxm-80gb", "engine": "vllm<0.1"}, **noted},
    ]
    request = make_request("Qwen/Qwen3-32B", "h100-sxm", 8, candidate={"tp": 2, "pp": 1, "dp": 1})
    recipe = make_recipe(request, Additions(variants=parse_recipe_variants(written)))
    plan = load_plan(write_bundle(recipe, tmp_path / "bundle"))
    variants = [choice for choice in plan.choices if choice.kind == "variant"]
    assert {choice.advised for choice in variants} == {True}  # several kinds, or several nodes
    seen = set()
    for name in device_names():
        profile = device_profile(name)
        for count in (1, 8, 16):
            alias = (profile.aliases or (name,))[0]
            names = [] if profile.runtime == "cpu" else [alias] * count
            here = launch_machine(profile.runtime, names)
            hardware = hardware_named(f"{name}:{count if names else 1}")
            wanted = {v.name for v in matching(recipe.variants, machine_of(hardware, recipe))}
            if name != "h100-sxm":  # a number alone is said of the recipe's own kind
                wanted -= {"many"}
            found = {c.title for c in variants if None in [find_unmet(n, here) for n in c.needs]}
            if profile.aliases or not names:
                assert found == wanted, (name, count)
            seen |= found
    assert seen == {"instinct", "large", "many"}
    here = launch_machine("rocm", [device_profile("mi300x").aliases[0]] * 8)
    (check,) = check_variants(plan.choices, here, 1, tmp_path / "bundle")
    assert "instinct" in check.detail
    how = check.hint.partition(": recipe ")[2]
    words = how.replace("OTHER.zip", str(tmp_path / "other.zip")).split()
    assert run(*words).returncode == 0
    assert read_bundle(tmp_path / "other.zip").recipe.environment["NCCL_DEBUG"] == "WARN"
    elsewhere, _ = recipe_for(recipe, hardware_named("h200-sxm:8"))
    assert "NCCL_DEBUG" not in elsewhere.environment
