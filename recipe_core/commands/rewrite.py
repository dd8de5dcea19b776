"""Another layout in a command's own words, and what changed from one command to another.

Every word that need not change stays as the user wrote it: containers, ports, limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from recipe_core.commands.arguments import Arguments, is_open
from recipe_core.commands.edits import set_options
from recipe_core.commands.launches import Launch, first_launch
from recipe_core.commands.render import Rendered, program_words
from recipe_core.commands.words import Words
from recipe_core.engines.options import OPTIONS, USUAL, Meaning

if TYPE_CHECKING:
    from recipe_core.commands.verdict import Case

DEGREES: tuple[Meaning, ...] = ("tp", "pp", "dp")
# Programs before an engine's own that start several processes of it.
LAUNCHERS = frozenset({"mpirun", "mpiexec", "srun", "torchrun"})
# Parts of a command up to which single ones are compared.
MOST_COMPARED = 1000

# Reads a case with other words after its program, and checks it; its model is that of the case.
Reread = Callable[["Case", Words], "Case"]


def whole_command(launch: Launch, words: Words) -> Rendered | None:
    """The user's command with other words after its program, in front of which all stays.

    None where words are left open: a shell would read them otherwise once they are quoted.
    """
    before = launch.before or program_words(launch.program)
    if any(is_open(word) for word in (*before, *words)):
        return None
    return Rendered((*before, *words), dict(launch.assigned) if launch.before else {})


def rewrite_layout(
    case: Case, candidate: Mapping[str, Any], per_node: int, reread: Reread
) -> Rendered | None:
    """The command of a case with only the words changed that make another layout of it.

    ``candidate``: the layout, with all other fields as the command has them; ``per_node``: devices
    of a machine. None where the command's own words cannot say it, or not surely: over several
    machines or processes, with words left open, or read back as another layout.
    """
    devices = candidate["tp"] * candidate["pp"] * candidate["dp"]
    if devices > per_node or not _starts_one_server(case, devices):
        return None
    if any(candidate.get(name) for name in ("prefill", "replicas")):
        return None
    for words in _layout_words(case, candidate):
        changed = reread(case, words)
        if _means(changed, candidate) and not changed.findings.errors:
            return whole_command(case.launch, words)
    return None


def _starts_one_server(case: Case, devices: int) -> bool:
    """Return whether the command starts one process of a server, which sees so many devices."""
    launch, rank = case.launch, case.grammar.rank
    if case.attention_dp or (case.nodes or 1) > 1:
        return False
    if rank is not None and rank[0] in case.arguments.values:
        return False
    if launch.visible_devices is not None and launch.visible_devices < devices:
        return False
    return not LAUNCHERS & {word.rpartition("/")[2] for word in launch.before}


def _layout_words(case: Case, candidate: Mapping[str, Any]) -> Iterator[Words]:
    """Words that may make a layout: with its degrees, and with experts shared, or cut again."""
    names, table = case.by_meaning, case.arguments.table.by_name
    degrees: dict[str, Any] = {}
    for degree in DEGREES:
        if candidate[degree] == case.candidate.get(degree):
            continue
        if names.get(degree) not in table:
            return
        degrees[names[degree]] = candidate[degree]
    yield set_options(case.arguments, degrees)
    switch, number = (names.get(meaning) for meaning in ("all_experts", "ep"))
    if number in table:
        yield set_options(case.arguments, {**degrees, str(number): candidate.get("ep") or 1})
    if switch in table and (candidate.get("ep") or 1) > 1:
        yield set_options(case.arguments, {**degrees, str(switch): True})
    elif switch in table:
        yield set_options(case.arguments, degrees, without=(str(switch),))


def _means(case: Case, candidate: Mapping[str, Any]) -> bool:
    """Return whether a command is read as a layout, and states nothing else otherwise."""
    degrees = all(
        (case.candidate.get(name) or 1) == (candidate.get(name) or 1) for name in (*DEGREES, "ep")
    )
    limits = (option.name for option in OPTIONS if option.name in case.candidate)
    return degrees and all(
        case.candidate[name] == candidate.get(name, USUAL.get(name)) for name in limits
    )


# What changed


def compare_commands(case: Case, command: Rendered) -> list[dict[str, Any]]:
    """Runs of words that another command keeps, removes and adds; see `compare_parts`."""
    launch = case.launch
    front = (*_assigned(launch.assigned), *(launch.before or program_words(launch.program)))
    parts = (part.words for part in case.arguments.parts)
    return compare_parts([*((word,) for word in front), *parts], _read_parts(command))


def compare_parts(before: Sequence[Words], after: Sequence[Words]) -> list[dict[str, Any]]:
    """Runs of parts as ``{"kind", "words"}``; ``kind`` is ``kept``, ``removed`` or ``added``.

    The kept and the added words are those after, the kept and the removed ones those before.
    """
    runs: list[tuple[str, Sequence[Words]]] = [("removed", before), ("added", after)]
    if max(len(before), len(after)) <= MOST_COMPARED:
        runs = []
        matcher = SequenceMatcher(None, before, after, autojunk=False)
        for tag, start, end, other_start, other_end in matcher.get_opcodes():
            if tag == "equal":
                runs.append(("kept", before[start:end]))
            else:
                runs += [("removed", before[start:end]), ("added", after[other_start:other_end])]
    return [
        {"kind": kind, "words": [word for part in parts for word in part]}
        for kind, parts in runs
        if parts
    ]


def _assigned(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _read_parts(command: Rendered) -> list[Words]:
    """The parts of a command that was rendered; each word one where it starts no known engine."""
    front, launch = _assigned(command.env), first_launch(command.argv, command.env)
    if launch is None:
        return [(word,) for word in (*front, *command.argv)]
    program = command.argv[: len(command.argv) - len(launch.args)]
    arguments = Arguments(launch.engine, launch.args, None, launch.program)
    single = [(word,) for word in (*front, *program)]
    return [*single, *(part.words for part in arguments.parts)]
