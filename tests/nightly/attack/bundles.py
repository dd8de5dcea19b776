"""Hostile bundles, read, started, stopped and built over, as a user would.

``python -m tests.nightly.attack.bundles --count 2000 --seed 1``. Each bundle is read in a process
of its own with limits on time and memory. It must end with 0, 1 or 2 and no traceback, write
nowhere but where it may, and be accepted only with what its author wrote, or else be called
unsigned. ``--only FAMILY:INDEX`` runs one again and prints what it said.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import resource
import signal
import socket
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock, patch

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.signing import SIGNATURE, new_key
from recipe_core.bundle.verify import read_bundle, unpack
from recipe_core.bundle.write import bundle_files
from recipe_core.launcher.main import main as launcher_main
from recipe_core.request.schema import PlanRequest
from tests.fixtures.command_line import recipe as command_line
from tests.fixtures.recipes import recipe_for_request, recipe_of
from tests.nightly.attack import hostile_archives as archives
from tests.nightly.attack import hostile_documents as documents
from tests.nightly.attack.hostile_bundles import Draw, Hostile, Maker, Material
from tests.nightly.attack.hostile_folders import odd_folder

CPU_S, WALL_S, MEMORY = 60, 120.0, 1 << 30
"""What one bundle may take: seconds of processor and wall, and bytes beyond the program's own."""
CRASHED = 99
Snapshot = dict[str, tuple[object, ...]]
PRECIOUS = b"precious"

FAMILIES: dict[str, tuple[Maker, int]] = {
    "zip-bytes": (archives.zip_bytes_changed, 8),
    "zip-directory": (archives.zip_directory_changed, 8),
    "zip-cut": (archives.zip_cut, 4),
    "file-bytes": (archives.file_changed, 8),
    "names": (archives.name_added, 8),
    "members": (archives.odd_member, 8),
    "bombs": (archives.bomb, 1),
    "folders": (odd_folder, 5),
    "manifests": (documents.odd_manifest, 6),
    "yaml": (documents.yaml_bomb, 2),
    "recipes": (documents.recipe_values, 8),
    "launches": (documents.launch_values, 8),
    "keys": (documents.keys, 4),
}
"""Makers by name, each with its share of the cases."""


@dataclass
class Tally:
    """What was tried and accepted by families, failures, and what a process took at most."""

    tried: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    most: dict[str, tuple[float, str]] = field(default_factory=dict)

    def add(self, case: str, results: list[Ended | str]) -> None:
        ends = [result for result in results if isinstance(result, Ended)]
        family = case.partition(":")[0]
        self.tried[family] += 1
        self.accepted[family] += ends[0].code == 0
        self.failures += [(case, result) for result in results if isinstance(result, str)]
        for name in ("cpu_s", "wall_s", "memory"):
            figures = [(float(getattr(end, name)), case) for end in ends]
            self.most[name] = max([*figures, self.most.get(name, (0.0, ""))])


def material() -> Material:
    """A serving and a training bundle, both signed, and the key."""
    private, public = new_key()
    request = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": "h100-sxm", "per_node": 4, "nodes": 2},
        "workload": {
            "kind": "training",
            "sequence_length": 1024,
            "global_batch": 64,
            "tokens": 1e7,
        },
    }
    recipes = [
        recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2),
        recipe_for_request(PlanRequest.parse(request)),
    ]
    bundles = tuple(bundle_files(recipe, private) for recipe in recipes)
    return Material(bundles, private, public)


def cases(count: int) -> Iterator[tuple[str, int]]:
    """Families and indices: each family once, then in proportion to their shares."""
    shares = [name for name, (_, share) in FAMILIES.items() for _ in range(share)]
    random.Random(0).shuffle(shares)
    seen: Counter[str] = Counter()
    for number in range(count):
        order = list(FAMILIES) if number < len(FAMILIES) else shares
        name = order[number % len(order)]
        yield name, seen[name]
        seen[name] += 1


@dataclass
class Ended:
    """How a process ended, what it printed and what it took."""

    code: int
    out: str
    err: str
    cpu_s: float
    wall_s: float
    memory: int


def in_a_process(work: Callable[[], int], folder: Path) -> Ended:
    """``work`` in a process of its own, within limits, its output in files of ``folder``."""
    began = time.monotonic()
    paths = [folder / name for name in ("stdout", "stderr")]
    pid = os.fork()
    if pid == 0:
        code = CRASHED
        try:
            code = _limited(work, paths)
        finally:
            os._exit(code)
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > WALL_S:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    out, err = (path.read_text(errors="replace") if path.exists() else "" for path in paths)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Ended(code, out, err, cpu_s, time.monotonic() - began, usage.ru_maxrss << 10)


def _limited(work: Callable[[], int], paths: list[Path]) -> int:
    for number, path in enumerate(paths, 1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), errors="backslashreplace")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
    try:
        code = work()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else CRASHED
    except BaseException:
        traceback.print_exc()
        code = CRASHED
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def recipe(*words: str) -> int:
    """The exit code of a command; its output becomes this process's."""
    done = command_line(*words, cwd=Path.cwd())
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def check(bundle: Hostile, key: Path | None) -> int:
    """``recipe check --json``; of an accepted bundle also the digests of its files."""
    public = ["--public-key", str(key)] if key else []
    code = recipe("check", str(bundle.path), "--json", *public)
    if code == 0:
        print("\n===", json.dumps(digests(read_bundle(bundle.path, bundle.key).files)))
    return code


def start(bundle: Hostile) -> int:
    """What `recipe up` does before it starts something: unpack, and the launcher's checks.

    Programs are those of an empty PATH, and names are not resolved: nothing of a bundle is run.
    """
    folder = unpack(bundle.path)
    os.environ["PATH"] = str(folder.parent.parent / "bin")
    unresolved = socket.gaierror(-2, "Name or service not known")
    socket.getaddrinfo = Mock(side_effect=unresolved)
    node = ["--node", "0", "--head", "127.0.0.1"]
    codes = [
        launcher_main([command, *words], root=folder)
        for command in ("preflight", "status", "down")
        for words in ([], node)
    ]
    return max(codes)


def build_over(bundle: Hostile, files: dict[str, bytes]) -> int:
    """A build whose output is this folder."""
    replace_folder(bundle.path, files)
    return 0


def told(work: Callable[[], int]) -> Callable[[], int]:
    """``work`` with its errors as the command line's: a sentence and an exit code."""

    def run() -> int:
        try:
            return work()
        except RecipeError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code

    return run


def digests(files: dict[str, bytes]) -> dict[str, str]:
    """The SHA-256 of every file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def snapshot(root: Path, *, without: Path | None = None) -> Snapshot:
    """Kind, size, time and owner of everything below a folder, links not followed."""
    entries: Snapshot = {}
    for parent, folders, names in os.walk(os.fsencode(root)):
        if without is not None and Path(os.fsdecode(parent)) == without:
            folders[:] = []
            continue
        for name in [*folders, *names]:
            path = os.path.join(parent, name)  # noqa: PTH118 - bytes, which Path does not take
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            size = status.st_size if kind == stat.S_IFREG else 0
            changed = status.st_mtime_ns if kind == stat.S_IFREG else 0
            entries[repr(path)] = (kind, size, changed, status.st_ino)
    return entries


def judge_end(ended: Ended, step: str) -> list[str]:
    """How a process ended as none may."""
    if ended.code not in (0, 1, 2):
        return [f"{step}: exit code {ended.code}: {ended.err[-400:]}"]
    if "Traceback" in ended.err:
        return [f"{step}: traceback: {ended.err[-400:]}"]
    if ended.code and not ended.err.strip() and not ended.out.strip():
        return [f"{step}: no word about exit code {ended.code}"]
    return []


def judge_accepted(bundle: Hostile, ended: Ended) -> list[str]:
    """Why a bundle that `recipe check` accepts should not have been."""
    text, _, listed = ended.out.rpartition("\n===")
    answer, given = json.loads(text), json.loads(listed)
    wanted = digests(bundle.original)
    manifest = given.get(MANIFEST) == wanted[MANIFEST]
    content = {n: d for n, d in given.items() if n not in (MANIFEST, SIGNATURE)}
    same = content == {n: d for n, d in wanted.items() if n not in (MANIFEST, SIGNATURE)}
    if bundle.key is not None:
        trusted = answer["signed"] and answer["signed"]["trusted"]
        fine = same and manifest and trusted
        return [] if fine else ["accepted, though its key did not sign it"]
    if not same and not bundle.sealed:
        return ["accepted with other content than its author's"]
    if not same and answer["signed"] and manifest:
        return ["accepted as signed with other content"]
    if not any(answer["differs"].values()):
        changed = {n for n in content.keys() | wanted.keys() if content.get(n) != wanted.get(n)}
        # A recipe may say something else, and its files say it too.
        if untold := changed - {MANIFEST, SIGNATURE, "recipe.yaml"}:
            return [f"no difference is told of {sorted(untold)[:3]}"]
    if answer["signed"] is None and not answer["verdict"].startswith("unsigned"):
        return ["accepted without being called unsigned"]
    return []


def run_case(name: str, index: int, seed: int, wealth: Material, root: Path) -> list[Ended | str]:
    """Make one bundle, do everything to it, and return the ends of processes and what is wrong."""
    case = root / "case"
    case.mkdir()
    draw = Draw(random.Random(f"{seed}:{name}:{index}"), case, wealth, index)
    bundle = FAMILIES[name][0](draw)
    key = root / "key.pem" if bundle.key is not None else None
    if key is not None:
        key.write_bytes(bundle.key or b"")
    results: list[Ended | str] = []

    def step(what: str, work: Callable[[], int], without: Path | None = None) -> Ended:
        """Do something; it may write nowhere but to ``without``."""
        before = snapshot(root, without=without)
        ended = in_a_process(told(work), root / "output")
        wrong = judge_end(ended, what)
        if changed := differences(before, snapshot(root, without=without), without):
            wrong.append(f"{what} wrote {changed[:3]}")
        results.extend([ended, *wrong])
        return ended

    folder = bundle.path.is_dir()
    checked = step("check", lambda: check(bundle, key))
    if checked.code == 0 and len(results) == 1:
        results += judge_accepted(bundle, checked)
    step("start", lambda: start(bundle), bundle.path if folder else bundle.path.with_suffix(""))
    if folder:
        precious = (case / "b" / "run" / "checkpoints" / "step-1" / "weights").exists()
        if checked.code:  # what is refused can be looked at and stopped
            path = str(bundle.path)
            step("status and down", lambda: max(recipe("status", path), recipe("down", path)), case)
        step("build", lambda: build_over(bundle, wealth.bundles[0]), case)
        left = (path.read_bytes() for path in case.rglob("step-1/weights"))
        if precious and PRECIOUS not in left:
            results.append("build lost a run")
    return results


def differences(before: Snapshot, after: Snapshot, without: Path | None) -> list[str]:
    """Paths that were made, changed or removed, but for the output of our own processes."""
    paths = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    own = repr(os.fsencode(without)) if without else ""
    return sorted(path for path in paths if "/output/" not in path and path != own)


def attack(chosen: Iterable[tuple[str, int]], seed: int, *, verbose: bool = False) -> Tally:
    """Make and judge bundles by their families and indices."""
    wealth, tally = material(), Tally()
    for name, index in chosen:
        with sandbox() as root:
            results = run_case(name, index, seed, wealth, root)
        tally.add(f"{name}:{index}", results)
        for end in results if verbose else ():
            if isinstance(end, Ended):
                print(f"exit {end.code}, {end.cpu_s:.2f} s\n{end.out[-2000:]}{end.err[-2000:]}")
    return tally


@contextlib.contextmanager
def sandbox() -> Iterator[Path]:
    """A folder with everything that a process of ours may see: home, programs, a secret."""
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as path:
        root = Path(path)
        for name in ("home", "tmp", "bin", "outside", "output"):
            (root / name).mkdir()
        (root / "outside" / "secret").write_bytes(PRECIOUS)
        places = {"HOME": str(root / "home"), "TMPDIR": str(root / "tmp")}
        with patch.dict(os.environ, places), contextlib.chdir(root / "tmp"):
            yield root
        for folder, _, _ in os.walk(root):
            with contextlib.suppress(OSError):
                Path(folder).chmod(0o700)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="FAMILY:INDEX")
    options = parser.parse_args()
    began = time.monotonic()
    family, _, index = (options.only or "").partition(":")
    chosen = [(family, int(index))] if family else cases(options.count)
    tally = attack(chosen, options.seed, verbose=bool(family))
    for name in FAMILIES:
        print(f"{name:14} {tally.tried[name]:5} tried, {tally.accepted[name]:5} accepted")
    for case, reason in tally.failures:
        print(f"FAILED --seed {options.seed} --only {case}: {reason}")
    (cpu, slow), (wall, slower), (memory, large) = tally.most.values()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{tally.tried.total()} bundles in {time.monotonic() - began:.0f} s, seed {options.seed}: "
        f"{tally.accepted.total()} accepted, {len(tally.failures)} failures; at most {cpu:.1f} s "
        f"of processor ({slow}), {wall:.1f} s ({slower}) and {int(memory) >> 20} MiB ({large}; "
        f"the program alone has {own})"
    )
    return 1 if tally.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
