"""The cases of the gallery: each is planned, holds its load, and can be built."""

from recipe_core.base.data_files import DataFile
from recipe_core.bundle.write import bundle_of
from recipe_core.recipe import make_recipe
from recipe_core.request.examples import FILE, ExampleFile, examples
from recipe_core.request.link import from_query, link_query
from recipe_core.search.plans import plan
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over


def test_there_are_ten_and_they_differ():
    cases = examples().values()
    assert len(cases) >= 10
    assert len({case.title for case in cases}) == len(cases)
    kinds = {case.asked.workload.kind for case in cases}
    assert kinds == {"serving", "training"}
    vendors = {case.asked.hardware.device_name[:2] for case in cases}
    assert len(vendors) >= 3
    # a case with a wrong field names it
    document = DataFile(FILE, "example").read()
    document["examples"]["chat-70b"]["titel"] = "Chat"
    error = refusal(DataFile(FILE, "example").validated, document, ExampleFile)
    assert "examples.yaml: examples.chat-70b.titel" in str(error)


@over("name", examples(), share=4)
def test_a_case_is_a_link_whose_best_split_holds_its_load_and_can_be_built(name):
    request = examples()[name].asked
    assert from_query(link_query(request)) == (request, [])
    board = plan(request)
    assert board.feasible[board.best_row]
    assert board.holds[board.best_row]
    assert {"recipe.yaml", "launch.json"} <= set(bundle_of(make_recipe(request)).files)
