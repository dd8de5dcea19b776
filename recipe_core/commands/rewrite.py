"""Another layout in a command's own words, and what changed from one command to another.

Every word that need not change stays as the user wrote it: containers, ports, limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

# What options of a layout mean.
LAYOUT: frozenset[Meaning] = frozenset(
    {"tp", "pp", "dp", "ep", "cp", "all_experts", "attention_dp", "attention_dp_switch"}
)
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
    case: Case, launch: Rendered, candidate: Mapping[str, Any], reread: Reread
) -> Rendered | None:
    """The command of a case with only the words changed that make another layout of it.

    ``launch``: the command that starts the layout, one process of one server; ``candidate``: the
    layout, with all other fields as the case has them. None where the case's own words cannot say
    it, or not surely: of one rank among several, with words left open, or read back as another
    layout.
    """
    if not _starts_one_server(case, candidate["tp"] * candidate["pp"] * candidate["dp"]):
        return None
    words = _layout_words(case, launch)
    if words is None:
        return None
    changed = reread(case, words)
    if changed.findings.errors or not _means(changed, candidate):
        return None
    return whole_command(case.launch, words)


def _starts_one_server(case: Case, devices: int) -> bool:
    """Return whether the command starts one process of a server, which sees so many devices."""
    launch, options = case.launch, case.arguments.values
    if (case.nodes or 1) > 1 or not options.keys().isdisjoint(case.grammar.placed):
        return False
    if launch.visible_devices is not None and launch.visible_devices < devices:
        return False
    return not LAUNCHERS & {word.rpartition("/")[2] for word in launch.before}


def _layout_words(case: Case, launch: Rendered) -> Words | None:
    """The words of a case with the layout's options as a launch states them.

    None where the release of the case lacks one. What is 1 or off stays unsaid where it was not
    said.
    """
    arguments, table = case.arguments, case.arguments.table.by_name
    stated_options = {**arguments.values, **arguments.open}
    started = first_launch(launch.argv, launch.env)
    if started is None:
        return None
    values = Arguments(started.engine, started.args, None, started.program).values
    layout = [name for name, meaning in case.grammar.means.items() if meaning in LAYOUT]
    settings = {
        name: values[name]
        for name in layout
        if name in values
        and (name in stated_options or values[name] not in (1, False, "none"))
        and values[name] != arguments.values.get(name)
    }
    if not settings.keys() <= table.keys():
        return None
    gone = [name for name in layout if name in stated_options and name not in values]
    return set_options(arguments, settings, without=gone)


def _means(case: Case, candidate: Mapping[str, Any]) -> bool:
    """Return whether a command is read as a layout, and states nothing else otherwise."""
    degrees = ("tp", "pp", "dp", "ep")
    limits = (option.name for option in OPTIONS if option.name in case.candidate)
    return all((case.candidate.get(name) or 1) == (candidate[name] or 1) for name in degrees) and (
        all(case.candidate[name] == candidate.get(name, USUAL.get(name)) for name in limits)
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
