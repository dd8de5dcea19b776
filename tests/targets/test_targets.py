"""Targets of contexts of every shape: what they offer, refuse and say."""

import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.bundle.write import bundle_files
from recipe_core.launch.process import Process
from recipe_core.recipe import with_parameters as recipe_with
from recipe_core.recipe.place import Parameters
from recipe_core.request.over_time import Start
from recipe_core.request.scaling import Scaling
from recipe_core.targets import target_files, target_names, target_refusals
from recipe_core.targets.layout import INDEX, launch_units, same_pod
from recipe_core.targets.monitoring import warm_up_s
from recipe_core.targets.node_script import IN_COMPOSE, IN_KUBERNETES, Variable, fill_placeholders
from recipe_core.targets.notes import reach_section
from recipe_core.targets.pod import object_name
from tests.conftest import make_request
from tests.fixtures.recipes import recipe_for_request, recipe_of
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import holds, over, table
from tests.fixtures.sizes import examples
from tests.fixtures.targets import (
    AMD,
    EXAMPLES,
    LAUNCHES,
    NVIDIA,
    REVIEWED,
    ROCM,
    TARGET_GOLDENS,
    UNFILLED,
    VLLM,
    context,
    document,
    mappings,
    pools,
    replicas,
    single,
    spread,
    training,
    with_parameters,
)


@pytest.mark.parametrize("name", REVIEWED)
def test_examples_are_as_they_were_reviewed(name):
    """Byte for byte; ``python -m tests.fixtures.targets`` writes them anew."""
    folder = TARGET_GOLDENS / name
    files = [path for path in folder.rglob("*") if path.is_file()]
    goldens = {path.relative_to(folder).as_posix(): path.read_text() for path in files}
    assert goldens == target_files(EXAMPLES[name])


def test_every_target_is_offered_or_refused_and_those_of_examples_are_reviewed():
    """Schemas and reading back (test_targets_schemas, test_by_hand) hold the other examples."""
    written = {}
    for name, value in EXAMPLES.items():
        found = written[name] = {
            path.removeprefix("targets/").split("/")[0] for path in target_files(value)
        }
        assert sorted([*found, *target_refusals(value)]) == sorted(target_names(value))
    assert set().union(*written.values()) == set().union(*(written[name] for name in REVIEWED))


@over("stated", table("targets", "written"))
def test_targets_write_what_is_stated(stated):
    name, *sizes = stated.get("launch", ["single"])
    launch = LAUNCHES[name](*sizes, **stated.get("split", {}))
    launch = replace(launch, files={**launch.files, **stated.get("files", {})})
    parts = stated.get("fields", {}) | ({"image": ROCM} | AMD if "vendor" in stated else {})
    if "scaling" in stated:
        parts["scaling"] = Scaling(**stated["scaling"])
    value = with_parameters(context(launch, **parts), **stated.get("parameters", {}))
    files, refused = target_files(value), target_refusals(value)
    for target, words in stated.get("refused", {}).items():
        assert words in refused[target]
    for suffix, places in stated.get("documents", {}).items():
        assert holds(document(value, suffix), places)
    for path, words in stated.get("has", {}).items():
        assert words in files[f"targets/{path}"]
    for suffix, words in stated.get("lacks", {}).items():
        assert not [path for path in files if path.endswith(suffix) and words in files[path]]


def test_workers_that_need_root_or_differ_otherwise_are_refused_on_kubernetes():
    leader, worker = spread(2).processes
    shell = replace(worker, argv=("/usr/sbin/sshd", "-D"))
    value = context(replace(spread(2), processes=(leader, shell)))
    assert "sshd, which needs root" in target_refusals(value)["kubernetes"]
    ranks = spread(3).processes
    processes = tuple(replace(p, argv=(*p.argv, f"--start={8 * p.node}")) for p in ranks)
    value = context(replace(spread(3), processes=processes))
    assert "one template" in target_refusals(value)["kubernetes"]
    assert "--start=16" in target_files(value)["targets/slurm/node.sh"]
    large = context(replace(single(), files={"big": "x" * 1_100_000}))
    assert "1,000,000" in target_refusals(large)["kubernetes"]


def test_autoscaling_waits_for_a_node_its_image_and_weights_from_the_hub():
    value = with_parameters(context(replicas(4, 2)), max_replicas=3)
    assert warm_up_s(value) > 2 * warm_up_s(replace(value, start=Start(node="ready")))


def test_long_names_are_cut_and_stay_apart_and_placeholders_are_filled():
    names = {object_name(context(name=f"{'a' * 50}-{end}")) for end in "xy"}
    assert len(names) == 2
    assert all(len(name) <= 40 for name in names)
    # placeholders are filled, literals kept
    address = fill_placeholders("http://${head}:1/$(x)", {"head": Variable("LWS")}, IN_KUBERNETES)
    assert address == "http://$(LWS):1/$$(x)"
    assert fill_placeholders("$HOME ${model}", {"model": "a$b"}, IN_COMPOSE) == "$$HOME a$$b"
    assert fill_placeholders("${unknown}", {}, IN_KUBERNETES) == "$${unknown}"
    with pytest.raises(NoAnswer, match=r"\$\{head\}"):
        fill_placeholders("${head}", {"model": "m"}, IN_COMPOSE)


def test_layout_keeps_processes_that_know_each_other_together():
    for launch, shape in ((replicas(3), (3, 1, 1)), (pools(), (1, 1, 3)), (spread(3), (1, 3, 1))):
        (unit,) = launch_units(launch)
        assert (unit.copies, len(unit.pods), len(unit.leader)) == shape
    assert [unit.name for unit in launch_units(pools(2))] == ["prefill-0", "decode-0", "router"]
    # copies over several nodes have leaders of their own
    first, second = spread(2).processes, spread(2).processes
    moved = tuple(replace(p, node=p.node + 2, group=1, port_offset=1) for p in second)
    (unit,) = launch_units(replace(spread(2), processes=(*first, *moved)))
    assert (unit.copies, len(unit.pods)) == (2, 2)
    # a word that counts is the pod's number
    (worker,) = same_pod(launch_units(spread(4))[0].pods[1:], first=1) or ()
    assert INDEX in worker.argv
    first, second = (Process(name, ("x", word), {}, 0, ()) for name, word in ("a1", "b5"))
    assert same_pod([(first,), (second,)], first=1) is None


SECRET = "hf_plantedSecretThatMustNotLeak"
QUICK = (Phase.explicit, Phase.generate)  # to shrink a bundle takes minutes and makes it no clearer
DRAWN_LAUNCHES = st.one_of(
    st.builds(single, st.sampled_from([1, 2, 4, 8])),
    st.builds(replicas, st.integers(1, 4), st.sampled_from([1, 2])),
    st.builds(spread, st.integers(2, 5), st.sampled_from([4, 8])),
    st.builds(training, st.integers(1, 4), st.sampled_from([1, 8])),
    st.builds(pools, st.integers(1, 2)),
)
DRAWN = {name: st.sampled_from(some) for name, some in table("targets", "drawn_parameters").items()}
PARAMETERS = st.fixed_dictionaries(DRAWN | {"port": st.integers(1024, 60000)})


@settings(max_examples=examples(30), deadline=None, phases=QUICK)
@given(DRAWN_LAUNCHES, st.sampled_from([(NVIDIA, VLLM), (AMD, ROCM)]), PARAMETERS)
def test_outputs_are_filled_pinned_without_secrets_and_say_the_launchs_degrees(
    launch, hardware, parameters
):
    """Each command is found word by word in each target that starts commands, and no word was
    joined with another. With a key each command of a server is started so that it asks for it.
    """
    if any(process.role == "router" for process in launch.processes):
        parameters = parameters | {"api_key_secret": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", SECRET)
        patch.setenv("VLLM_API_KEY", SECRET)
        value = with_parameters(context(launch, hardware[0], image=hardware[1]), **parameters)
        files = target_files(value)
    token, said = re.compile(r"HF_TOKEN(=|: (?!null)|\n +value:)"), {}
    for path, text in files.items():
        assert not UNFILLED.search(text), path
        never = [":latest", SECRET, *(["None"] if "files.yaml" not in path else [])]
        assert not [word for word in never if word in text], path
        references = text.replace("${VLLM_API_KEY:?", "").replace("${RECIPE_USER:-", "")
        assert "${" not in references or path.endswith((".sh", ".sbatch")), path
        assert not token.search(text), path
        if path.startswith("targets/"):
            said.setdefault(path.split("/")[1], []).extend(commands(path, text))
    wanted = degrees(process.argv for process in launch.processes)
    for target, every in said.items():
        assert degrees(every) == (wanted if every else set()), target
        joined = [word for words in every for word in words if word[:1] == "-" and " --" in word]
        assert joined == [], target
        if value.key_variable:
            servers = [words for words in every if degrees([words]) and "--headless" not in words]
            assert all(value.key_variable in words for words in servers), target
    assert said["slurm"]
    assert ("skypilot" in said) == ("skypilot" not in target_refusals(value))


def degrees(every):
    """Flags of degrees in commands, each with the word after it."""
    flag = re.compile(r"--(tensor|pipeline|data)-parallel-size|--nnodes|--nproc-per-node")
    pairs = {pair for words in every for pair in pairwise(words)}
    return {pair for pair in pairs if flag.fullmatch(str(pair[0]))}


def commands(path, text):
    """The words of every engine's command in a target's file; a unit has the launcher's only."""
    if path.endswith((".service", ".conf")):
        return []
    if path.endswith((".sh", ".sbatch")):
        lines = text.replace("\\\n", " ").splitlines()
        return [shlex.split(line) for line in lines if "--tensor" in line or "torchrun --" in line]
    # compose cuts a command into entrypoint and rest, Kubernetes may into command and args
    found = [each for each in mappings(parse_yaml(text)) if isinstance(each.get("command"), list)]
    return [[*each["command"], *each.get("args", ())] for each in found]


def test_a_bundle_names_the_key_and_says_who_reaches_each_target():
    """What a reader of the README and the launcher are told of a recipe, with a key or without."""
    place = Parameters(api_key_secret="llm-key", host="10.0.0.5")
    for recipe, needed in ((recipe_of(), None), (recipe_with(recipe_of(), place), True)):
        files = bundle_files(recipe)
        api, readme = json.loads(files["launch.json"])["api"], files["README.md"].decode()
        assert (api["key_variable"], api.get("key_needed")) == ("VLLM_API_KEY", needed)
        told = table("targets", "told")["with a key" if needed else "without"]
        assert [words for words in told if words not in readme] == []
    for other in ({"engine": "tensorrt-llm"}, {"prefill": {"tp": 4, "pp": 1, "dp": 1, "ep": 1}}):
        request = make_request(candidate={"engine": "vllm", "tp": 4, "pp": 1, "dp": 1} | other)
        closed = recipe_with(recipe_for_request(request), place)
        assert "asks no caller for a key" in str(refusal(bundle_files, closed, kind=NoAnswer))
    assert reach_section(EXAMPLES["training-two-nodes"], ["slurm"]) == ""
