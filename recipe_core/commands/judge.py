"""Verdicts on engines' command lines: whether they start, what they waste, and a better command. Nothing of them is executed.

Commands that share model, device, engine and number formats are columns of one estimate, each with all other splits of its devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError, ModelError, RecipeError
from recipe_core.commands.arguments import is_open, read_arguments
from recipe_core.commands.ground import DEFAULT_INPUT, DEFAULT_OUTPUT, Ground
from recipe_core.commands.launches import Launch, find_launches, image_tag, launch_of
from recipe_core.commands.meaning import check_rules, meaning_of, settle
from recipe_core.commands.verdict import KEPT, Case, Group, Ready, Unknown, View
from recipe_core.commands.words import MAX_CHARACTERS, read_script
from recipe_core.engines.grammar import programs
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import device, fabric
from recipe_core.model.catalog import load_model
from recipe_core.model.spec import ModelSpec
from recipe_core.request.schema import CandidateRequest, PlanRequest
from recipe_core.search.changes import helpful_changes
from recipe_core.search.plans import plan, shared_key
from recipe_core.search.problem import ServingProblem, resolve
from recipe_core.search.serving_candidates import engine_of, every_split, one_case, setting
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.space.serving import Cases, Setting, stack


def check_command(
    command: str | Sequence[str], ground: Ground, *, folders: bool = True
) -> dict[str, Any]:
    """The verdict on the first server that a command (text, a JSON list as text, or words) starts, and changes where none can run.

    Args:
        command: what to judge.
        ground: on what.
        folders: whether models may be read from paths and asked of the hub.

    Raises:
        InputError: when it cannot be read or starts no known engine. What is wrong with its model or a value is in the answer.
    """
    case = _first(command)
    verdict = _judge([case], ground, folders)[0]
    answer = verdict.answer(ground)
    if isinstance(verdict, View) and not answer["ok"] and answer["better"] is None:
        found = plan(_without_split(verdict.ready.found.request), folders=folders)
        answer["changes"] = [remedy.to_json() for remedy in helpful_changes(found)]
    return answer


def check_commands(
    commands: Iterable[str | Sequence[str]], ground: Ground, *, folders: bool = True
) -> list[list[dict[str, Any]]]:
    """Verdicts on every server of every command or script, in order; one that cannot be read answers its error."""
    read: list[list[Case] | RecipeError] = []
    for command in commands:
        try:
            read.append(_cases(command))
        except RecipeError as error:
            read.append(error)
    verdicts = iter(
        _judge(
            [case for cases in read if not isinstance(cases, RecipeError) for case in cases],
            ground,
            folders,
        )
    )
    return [
        [each.to_json()]
        if isinstance(each, RecipeError)
        else [next(verdicts).answer(ground) for _ in each]
        for each in read
    ]


def _without_split(request: PlanRequest) -> PlanRequest:
    """The same question for any split of the same engine."""
    options = request.options.model_copy(
        update={"engines": (request.candidate.engine,) if request.candidate else ()}
    )
    return request.model_copy(update={"options": options, "candidate": None})


def read_command(command: str | Sequence[str]) -> Case:
    """The first server that a command starts, read; raises InputError when it starts no known engine."""
    return _first(command)


def understood(case: Case, ground: Ground, *, folders: bool = True) -> Ready:
    """What a command asks for, on its ground; raises InputError where something is missing or unknown."""
    return _resolve(case, ground, _Models(folders))


# Reading


def _first(command: str | Sequence[str]) -> Case:
    cases = _cases(command)
    if not cases:
        raise InputError(
            "no known engine in the command.", field="command", hint=f"Known: {programs()}."
        )
    case = cases[0]
    if len(cases) > 1:
        case.say(
            "note", "several", f"the command starts {len(cases)} servers; the first is judged."
        )
    return case


def _cases(command: str | Sequence[str]) -> list[Case]:
    words = _words(command)
    if words is not None:
        launch = launch_of(words)
        return [_case(launch)] if launch else []
    script = read_script(str(command))
    launches, others = find_launches(script)
    cases = [_case(launch) for launch in launches]
    for case in cases[:1]:
        if others:
            named = ", ".join(dict.fromkeys(other[:40] for other in others[:20]))
            case.say(
                "note", "others", f"not looked at: {named}{', …' if len(others) > 20 else ''}."
            )
        if script.loose_ends:
            case.say(
                "warning",
                "loose-end",
                f"{script.loose_ends} lines end in a backslash and a blank: a shell ends the command there.",
            )
    return cases


def _words(command: str | Sequence[str]) -> tuple[str, ...] | None:
    """The words of a command that is given as a list, None for text."""
    if isinstance(command, str):
        if len(command) > MAX_CHARACTERS:
            raise InputError(
                f"the command has {len(command):,} characters; at most {MAX_CHARACTERS:,} are read.",
                field="command",
            )
        if not command.lstrip().startswith("["):
            return None
        command = parse_json(command, "the command")
    if not isinstance(command, list | tuple) or not all(isinstance(word, str) for word in command):
        raise InputError("a command is text or a list of words.", field="command")
    if sum(map(len, command)) > MAX_CHARACTERS:
        raise InputError(
            f"the command has more than {MAX_CHARACTERS:,} characters.", field="command"
        )
    return tuple(command)


def _case(launch: Launch) -> Case:
    arguments = read_arguments(launch.engine, launch.args)
    meant = meaning_of(arguments)
    meant.findings[:0] = arguments.findings
    case = Case(launch, arguments, meant, meant.findings)
    _check_surroundings(case)
    return case


def _check_surroundings(case: Case) -> None:
    """What the container and the environment do to the server."""
    launch, spec = case.launch, engine(case.launch.engine)
    if launch.image is None:
        return
    tag = image_tag(launch.image)
    if tag is None or tag == "latest":
        case.say(
            "note",
            "unpinned",
            f"{launch.image} changes without notice.",
            f"Pin it: judged with {spec.title} {spec.version}.",
        )
    elif (version := _version(tag)) is not None and version != spec.version:
        case.say(
            "note",
            "version",
            f"the image holds {spec.title} {version}; judged with the options of {spec.version}.",
        )
        case.findings[:] = [
            replace(f, level="warning") if f.code in ("unknown", "value") else f
            for f in case.findings
        ]
    if launch.repeated:
        words = " ".join(launch.program)
        case.say(
            "error",
            "repeated-program",
            f"the image starts {words} by itself.",
            f"Leave {words} out, or set --entrypoint.",
        )
    if (
        launch.shares_memory is False
        and (case.meant.candidate.get("tp") or 1) * (case.meant.candidate.get("pp") or 1) > 1
    ):
        case.say(
            "warning",
            "shared-memory",
            "several ranks share memory through /dev/shm.",
            "Add --ipc=host or --shm-size.",
        )


def _version(tag: str) -> str | None:
    """A release in a tag: ``v0.9.1``, ``v0.4.6-cu124``."""
    parts = tag.removeprefix("v").split("-")[0].split(".")
    return ".".join(parts) if len(parts) == 3 and all(part.isdecimal() for part in parts) else None


# Judging


class _Models:
    """Models by name, each looked up once."""

    def __init__(self, folders: bool) -> None:
        self.folders = folders
        self._known: dict[str, ModelSpec | RecipeError] = {}

    def named(self, name: str) -> ModelSpec:
        if name not in self._known:
            try:
                self._known[name] = load_model(name, folders=self.folders)
            except RecipeError as error:
                self._known[name] = error
            except (OSError, RuntimeError, ValueError) as error:  # what no path can be
                self._known[name] = ModelError(
                    f"{name[:80]!r} names no model: {error}.",
                    field="model",
                    hint="Give a catalog id or a folder.",
                )
        model = self._known[name]
        if isinstance(model, RecipeError):
            raise model
        return model


def _judge(cases: list[Case], ground: Ground, folders: bool) -> list[View | Unknown]:
    """Each command's part of an estimate, or why there is none."""
    models = _Models(folders)
    groups: defaultdict[str, list[tuple[int, Ready]]] = defaultdict(list)
    out: dict[int, View | Unknown] = {}
    for n, case in enumerate(cases):
        try:
            ready = _resolve(case, ground, models)
            groups[shared_key(ready.found, ready.setting)].append((n, ready))
        except RecipeError as error:
            out[n] = Unknown(case, error)
    for members in groups.values():
        group = _group([ready for _, ready in members])
        views = {n: View(ready, group) for n, ready in members}
        refused = group.refused(view.own for view in views.values())
        for view in views.values():
            view.refused = refused.get(view.own)
        out |= views
    return [out[n] for n in range(len(cases))]


def _resolve(case: Case, ground: Ground, models: _Models) -> Ready:
    """From what a command says to the columns of its estimate; raises InputError where something is missing or unknown."""
    meant = case.meant
    name = ground.model or meant.model
    if not name:
        raise InputError(
            "the command names no model.",
            field="command",
            hint="Write it after serve, or as --model.",
        )
    if is_open(name):
        raise InputError(
            f"the command leaves its model open: {name}.",
            field="command",
            hint="Say which it is with --model.",
        )
    model = models.named(name)
    settle(meant, model, case.launch.env)
    request = {
        "model": dict(model.config) | meant.config | {"_name_or_path": name}
        if meant.config
        else name,
        "hardware": _hardware(case, ground),
        "workload": _workload(case, ground, model),
        "objective": {"optimize": ground.optimize},
        "candidate": {"engine": meant.engine} | meant.candidate,
    }
    check_rules(meant, model)
    found = _looked_up(case, request, models)
    return Ready(case, found, *_own(case, found))


def _looked_up(case: Case, request: dict[str, Any], models: _Models) -> ServingProblem:
    """The request with its names looked up; without a draft where the model has none or it cannot be estimated."""
    try:
        return resolve(PlanRequest.parse(request), folders=models.folders)
    except InputError as error:
        if "speculative" not in request["workload"] or not (error.field or "").startswith(
            "workload.speculative"
        ):
            raise
        del request["workload"]["speculative"]
        if error.field == "workload.speculative.method":
            case.say("error", "draft", error.message)
        else:
            case.say(
                "note",
                "unmodelled",
                f"speculative decoding is not in the estimate: {error.message}",
            )
        return resolve(PlanRequest.parse(request), folders=models.folders)


def _hardware(case: Case, ground: Ground) -> dict[str, Any]:
    node = device(ground.device).node
    used, per_node = case.meant.devices, ground.per_node or node.devices
    nodes = ground.nodes or case.meant.nodes or 1
    if nodes == 1 and not fabric(node.fabric).joins(per_node) and per_node % node.devices == 0:
        nodes, per_node = (
            per_node // node.devices,
            node.devices,
        )  # sixteen of what no node holds more than eight of
    elif (
        ground.nodes is None
        and case.meant.nodes is None
        and ground.per_node is None
        and used
        and used > per_node
    ):
        nodes = -(-used // per_node)
    if nodes != (ground.nodes or case.meant.nodes or 1):
        case.say(
            "note",
            "nodes",
            f"judged on {nodes} nodes of {per_node} devices.",
            "Say what there is with --gpus and --nodes.",
        )
    if ground.nodes and case.meant.nodes and ground.nodes != case.meant.nodes:
        case.say(
            "error",
            "nodes",
            f"the command is for {case.meant.nodes} nodes; there are {ground.nodes}.",
        )
    seen = case.launch.visible_devices
    own = case.own_devices
    if seen is not None and own is not None and nodes == 1 and own > seen:
        case.say(
            "error",
            "visible",
            f"the server sees {seen} devices and uses {own}.",
            "Let it see more, or cut the split.",
        )
    return {"device": ground.device, "per_node": per_node, "nodes": nodes}


def _workload(case: Case, ground: Ground, model: ModelSpec) -> dict[str, Any]:
    """The load, within the context that the command sets (or the model has); "auto" is as long as the load needs."""
    longest = case.meant.max_context
    limit = longest if isinstance(longest, int) and longest > 0 else model.max_context
    given = ground.input_tokens, ground.output_tokens
    tokens = {
        "input_tokens": given[0] or max(1, min(DEFAULT_INPUT, limit // 2)),
        "output_tokens": given[1] or max(1, min(DEFAULT_OUTPUT, limit // 4)),
    }
    asked = sum(tokens.values())
    if asked > limit:
        case.say(
            "error",
            "too-long",
            f"requests of {asked:,} tokens are longer than the {limit:,} that the server takes.",
        )
    context = {} if longest == "auto" else {"max_context": max(limit, asked)}
    draft = case.meant.draft
    speculative = {}
    if draft is not None and isinstance(draft["tokens"], int) and ground.acceptance is not None:
        named = {name: draft[name] for name in ("method", "model") if draft.get(name)}
        speculative = {
            "speculative": {"tokens": draft["tokens"], "acceptance": ground.acceptance} | named
        }
    elif draft is not None:
        case.say(
            "note",
            "unmodelled",
            "speculative decoding is not in the estimate.",
            "Give the share of accepted tokens: --acceptance.",
        )
    return tokens | context | speculative | {"concurrency": ground.concurrency}


def _own(case: Case, found: ServingProblem) -> tuple[Setting, Cases]:
    """The columns of the command's split (of all that agree with it, where it leaves degrees open); what is not modelled is left out."""
    candidate = {"engine": case.meant.engine} | case.meant.candidate
    while True:
        stated = CandidateRequest.model_validate(candidate)
        try:
            exact = one_case(found, stated)
            break
        except InputError as error:
            name = (error.field or "").removeprefix("candidate.").split(".")[0]
            if name not in candidate or name == "engine":
                raise
            case.say(
                "note",
                "unmodelled",
                f"{name} {candidate.pop(name)} is not in the estimate: {error.message}",
            )
    if exact is not None:
        return exact
    chosen = setting(
        found,
        engine_of(stated.engine, found.cluster),
        stated.weight_dtype or "auto",
        stated.kv_dtype or "auto",
    )
    columns = every_split(found, chosen, stated)
    if not len(columns):
        raise InputError(
            f"no split of {found.cluster.devices} devices agrees with the command.", field="command"
        )
    return chosen, columns


def _group(members: list[Ready]) -> Group:
    """One estimate of all splits: of each member its own, and every other one on its devices with the same share of memory."""
    blocks: list[Cases] = []
    placed: dict[tuple[Any, ...], tuple[int, int]] = {}
    at = 0
    for ready in members:
        key = ready.others_key
        if key not in placed:
            limits = {
                name: value for name, value in zip(KEPT, key[-1], strict=True) if value is not None
            }
            others = every_split(
                ready.found, ready.setting, CandidateRequest.model_validate(limits)
            )
            blocks.append(others)
            placed[key] = (at, at + len(others))
            at += len(others)
        blocks.append(ready.own)
        ready.rows = (at, *placed[key])
        at += len(ready.own)
    first = members[0]
    return Group(ServingPlan.of(first.found, first.setting, stack(blocks)))
