"""At no moment does a kill or a loss of power take what was acknowledged."""

from types import SimpleNamespace

import pytest

from recipe_core.bundle import replace as builds
from recipe_core.bundle.replace import recover_build, replace_folder
from recipe_core.bundle.write import write_bundle, zip_bytes
from recipe_core.calibration.store import Overlay
from recipe_core.models.hub import keep_own_model, own_config
from recipe_core.payload.launcher import state
from recipe_core.payload.launcher.compress_run import put_output_in_place
from recipe_core.payload.launcher.files import read_object, sha256
from recipe_core.payload.launcher.making import RECORD
from tests.bundle.test_bundle_replace import RUNS, USUAL, bundle, own, runs, write
from tests.calibration.test_calibrate import NOW, incoming, measured
from tests.fixtures.needs import needs
from tests.fixtures.power import ALL, every_loss
from tests.fixtures.recipes import recipe_of


def nightly(way):
    return pytest.param(way, marks=pytest.mark.nightly)


def places(tmp_path):
    root = tmp_path / "disk"
    root.mkdir(parents=True)
    return root, tmp_path / "left"


def test_an_acknowledged_run_stays_in_the_calibration(tmp_path, monkeypatch):
    root, left = places(tmp_path)
    place, begun, stored = ("a", "folder", "calibration"), set(), set()

    def work():
        for factor in (1.1, 1.2, 1.3):
            coming = incoming(measured(factor))
            begun.update(one.id for one in Overlay.at(tmp_path / "x").add(coming).entries)
            added = Overlay.at(root.joinpath(*place)).add(coming, now=NOW)
            stored.update(one.id for one in added.entries)

    def survives(folder, _):
        found = {one.id for one in Overlay.at(folder.joinpath(*place)).entries}
        assert stored <= found <= begun, folder

    assert every_loss(root, work, survives, monkeypatch, left) > 30
    assert len(stored) == 3


def test_a_model_and_a_state_are_the_old_or_the_new(tmp_path, monkeypatch):
    root, left = places(tmp_path)
    known = []

    def work():
        for number in (1, 2):
            keep_own_model(root / "deep" / "own", "me/one", {"n": number}, "hub")
            state.save_state(root / "run", USUAL)
            known.append(number)

    def survives(folder, _):
        found = own_config("me/one", folder / "deep" / "own")
        numbers = [found[1]["n"]] if found else []
        assert numbers in ([*known[-1:]], [len(known) + 1]), folder
        assert not known or read_object(folder / "run" / "state.json"), folder

    assert every_loss(root, work, survives, monkeypatch, left) > 30


def test_a_compressed_model_is_whole_or_not_there(tmp_path, monkeypatch):
    root, left = places(tmp_path)
    made, done = root / "made", []
    about = {"title": "a tool", "technique": "awq", "method": "awq", "loaded": "", "name": "made"}
    making = SimpleNamespace(part=root / ".made.part", output=made, **about)

    def work():
        (making.part / "deep").mkdir(parents=True)
        (making.part / "config.json").write_text("{}")
        (making.part / "deep" / "weights").write_bytes(bytes(5000))
        put_output_in_place(making, "a job", "a source", 1.0)
        done.append(made)

    def survives(folder, _):
        model = folder / "made"
        assert not done or (model / RECORD).is_file(), folder
        if (model / RECORD).is_file():
            files = read_object(model / RECORD)["files"]
            assert {name: sha256(model / name) for name in files} == {
                name: about["sha256"] for name, about in files.items()
            }
            assert len(files) == 2

    assert every_loss(root, work, survives, monkeypatch, left) > 20


@needs("training", "torch")
def test_what_a_trainer_notes_or_lays_once_is_whole(tmp_path, monkeypatch):
    from recipe_core.payload.trainer.data import Tokens, write_tokens
    from recipe_core.payload.trainer.rollbacks import Event, read_record

    root, left = places(tmp_path)
    noted = []

    def work():
        write_tokens(root, "tokens", iter([[5, 6, 7]]), vocabulary=9)
        for first in (10, 20):
            event = Event("spike", first, first, 9.0, 1.0)
            read_record(root).roll_back(event, [5])[0].write()
            noted.append(first)

    def survives(folder, _):
        for tokens in folder.glob("tokens.u2"):
            assert len(Tokens(tokens)) == 3, folder
        found = [one.first for one in read_record(folder).rollbacks]
        assert found in (noted, [10, 20][: len(noted) + 1]), folder

    assert every_loss(root, work, survives, monkeypatch, left) > 20


def test_a_bundle_as_a_zip_is_whole_or_not_there(tmp_path, monkeypatch):
    root, left = places(tmp_path)
    recipe, written = recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2), []
    data = zip_bytes(recipe)

    def survives(folder, _):
        left = [path.read_bytes() for path in folder.glob("b.zip")]
        assert left in ([data], [])[: 2 - len(written)]

    def work():
        written.append(write_bundle(recipe, root / "b.zip"))

    assert every_loss(root, work, survives, monkeypatch, left) > 12


class Build:
    """A bundle with runs that is built over, in one of the ways."""

    def __init__(self, way, monkeypatch):
        self.way, self.patch, self.built = way, monkeypatch, False
        self.old, self.runs = (bundle("old"), RUNS) if way != "first" else ({}, {})
        if way == "renames":  # as on a file system that exchanges nothing
            monkeypatch.setattr(builds, "exchange_paths", lambda one, other: False)

    def every_loss(self, tmp_path, check):
        root, left = places(tmp_path)
        write(root / "b", self.old | self.runs)

        def work():
            replace_folder(root / "b", bundle("new"))
            self.built = True

        return self.losses(root, work, check, left)

    def losses(self, root, work, check, left):
        more = [] if self.way == "renames" else [(builds, "exchange_paths")]
        return every_loss(root, work, check, self.patch, left, *more)

    def check(self, folder, _):
        target = folder / "b"
        if self.way == "exchange":  # it never was away
            assert own(target) in (self.old, bundle("new")), folder
        recover_build(target)
        found = own(target) if target.exists() else {}
        assert found in ((bundle("new"),) if self.built else (self.old, bundle("new"))), folder
        assert runs(target) == self.runs, folder

    def check_twice(self, folder, loss):
        """The recovery is ended at every moment, too; what follows goes on as ever."""
        if loss == ALL:
            copy = folder / "disk"
            copy.mkdir()
            for path in (path for path in [*folder.iterdir()] if path != copy):
                path.rename(copy / path.name)
            self.losses(copy, lambda: recover_build(copy / "b"), self.check, folder / "left")
            replace_folder(copy / "b", bundle("newer"))
            assert (own(copy / "b"), runs(copy / "b")) == (bundle("newer"), self.runs)
            assert [path.name for path in copy.iterdir()] == ["b"], folder


@pytest.mark.parametrize("way", ["exchange", *map(nightly, ("renames", "first"))])
def test_a_bundle_over_another_keeps_runs_and_is_the_old_or_the_new(tmp_path, monkeypatch, way):
    build = Build(way, monkeypatch)
    assert build.every_loss(tmp_path, build.check) > 50


@pytest.mark.parametrize("way", [*map(nightly, ("exchange", "renames", "first"))])
def test_a_recovery_that_is_ended_anywhere_loses_nothing(tmp_path, monkeypatch, way):
    build = Build(way, monkeypatch)
    assert build.every_loss(tmp_path, build.check_twice) > 50
