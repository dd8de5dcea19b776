"""A bundle's README: run, expected, and what happens on the target that it is for."""

import pytest

from recipe_core.bundle.readme import FAILURES
from recipe_core.bundle.write import bundle_of
from recipe_core.recipe.build import with_parameters
from recipe_core.recipe.place import Parameters
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.targets.by_hand import target_uses
from recipe_core.targets.restarts import LAUNCHER, target_restarts
from tests.fixtures.recipes import recipe_for_request
from tests.fixtures.refusals import refusal

REQUESTS = {
    "serving": DEFAULT,
    "training": change(DEFAULT, {"workload.kind": "training", "workload.tokens": 1e9}),
}


def section(readme, title):
    """The lines of a README below a heading, without empty ones."""
    _, _, rest = readme.partition(f"\n## {title}")
    return [line for line in rest.partition("\n## ")[0].splitlines()[1:] if line]


PLACES = {
    "serving": {"min_replicas": 1, "max_replicas": 3},
    "training": {"image": "registry.example/trainer:1.0"},
}


@pytest.mark.parametrize("kind", ["serving", "training"])
def test_a_readme_says_run_expected_and_what_breaks_on_the_target_that_it_is_for(kind):
    """Docker's troubles are not in the bundle for Slurm."""
    recipe = recipe_for_request(REQUESTS[kind])
    stated = PLACES[kind]
    open_bundle = bundle_of(with_parameters(recipe, Parameters(**stated)))
    said = {None: open_bundle}
    for name, result in open_bundle.targets.items():
        place = Parameters(target=name, **stated)
        if isinstance(result, dict) and name != "monitoring":
            said[name] = bundle_of(with_parameters(recipe, place))
        else:
            assert refusal(bundle_of, with_parameters(recipe, place)).field == "parameters.target"
    assert len(said) > (8 if kind == "serving" else 5)
    for name, bundle in said.items():
        readme = bundle.files["README.md"].decode()
        places = [readme.index(f"\n## {title}") for title in ("Run", "Expected", "When something")]
        assert places == sorted(places)
        rows = target_restarts(bundle.context, name or LAUNCHER)
        lines = section(readme, "When something breaks")
        expected = [f"| {', '.join(row.events)} | {row.answer.who} | " for row in rows]
        table = [line for line in lines if line.startswith("| ")][1:]
        assert len(table) == len(expected) <= 7
        assert all(map(str.startswith, table, expected))
        runs = "\n".join(section(readme, "Run"))
        uses = target_uses(bundle.targets[name], bundle.context.name, kind) if name else []
        assert all(f"\n{use.start}\n{use.stop}" in runs for use in uses)
        assert ("\n## Where else it runs" in readme) is (name is None)
        others = {use.title for use in target_uses(bundle.files, bundle.context.name, kind)}
        elsewhere = readme if name is None else runs
        assert all(title in elsewhere for title in others)
        assert bundle.files[FAILURES] == open_bundle.files[FAILURES]
    error = refusal(bundle_of, with_parameters(recipe, Parameters(target="heroku")))
    assert (error.field, "slurm" in error.hint) == ("parameters.target", True)
