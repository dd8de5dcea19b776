"""Verdicts on engines' command lines: whether they start, what they waste, and a better command.

Nothing of them is executed. Commands that share model, device, engine and number formats are
columns of one estimate, each with all other splits of its devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.commands.arguments import is_open
from recipe_core.commands.checks import (
    by_pinned,
    check_named_files,
    check_release,
    check_rules,
    check_surroundings,
    command_setting,
    media_of,
    running_release,
    take_all_devices,
)
from recipe_core.commands.context import DEFAULT_INPUT, DEFAULT_OUTPUT, CommandContext, Models
from recipe_core.commands.launches import Launch, find_launches, first_launch
from recipe_core.commands.remedies import find_attempts
from recipe_core.commands.verdict import Case, Unknown, View, plan_commands
from recipe_core.commands.words import MAX_CHARACTERS, Words, read_script
from recipe_core.engines.grammar import programs
from recipe_core.engines.option_releases import ReleaseTable, memory_release
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.hardware.cluster import device_profile, fabric, fits_node
from recipe_core.models.catalog import BY_NAME
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.plans import plan_splits, shared_key
from recipe_core.plans.problem import ServingProblem, resolve_problem
from recipe_core.plans.remedies import helpful_changes
from recipe_core.plans.serving_candidates import every_split, stated_serving_case
from recipe_core.plans.serving_settings import requested_engine, served_context, serving_setting
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest


@dataclass(frozen=True, slots=True)
class Item:
    """A command and where it stands; ``ground`` is what its line says to judge it on.

    ``about``: what its verdict says besides. ``error``: why it cannot be read, in place of a
    command.
    """

    source: str
    command: str | list[str] | Launch = ""
    ground: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    error: RecipeError | None = None


def judge_command(
    command: str | Sequence[str], context: CommandContext, *, folders: bool = True
) -> dict[str, Any]:
    """The verdict on the first server that a command starts, and changes where none can run.

    Args:
        command: text, a JSON list as text, or words.
        context: devices, load and goal to judge it on.
        folders: whether models may be read from paths and asked of the hub.

    Raises:
        InputError: when it cannot be read or starts no known engine. What is wrong with its model
            or a value is in the answer.
    """
    [verdict] = _judge_with_attempts([_first_case(command, context)], folders)
    answer = verdict.answer()
    without_help = answer.get("better") is None and not answer.get("changes")
    if isinstance(verdict, View) and not answer["ok"] and without_help:
        any_split = plan_splits(_any_split_request(verdict.problem.request), folders=folders)
        answer["changes"] = [change.to_json() for change in helpful_changes(any_split)]
    return answer


def judge_items(
    items: Iterable[Item], usual: dict[str, Any], *, folders: bool = True
) -> list[list[dict[str, Any]]]:
    """Verdicts on every server of every item, in order; what cannot be judged is its error.

    Args:
        items: commands, scripts or launches.
        usual: fields of `CommandContext` where an item states none.
        folders: whether models may be read from paths and asked of the hub.
    """
    results: list[list[Case] | RecipeError] = []
    for item in items:
        try:
            if item.error is not None:
                raise item.error
            context = CommandContext.of(**{**usual, **item.ground})
            results.append(_read_cases(item.command, context))
        except RecipeError as error:
            results.append(error)
    cases = [case for result in results if isinstance(result, list) for case in result]
    verdicts = iter(_judge_with_attempts(cases, folders))
    return [
        [result.to_json()]
        if isinstance(result, RecipeError)
        else [next(verdicts).answer() for _ in result]
        for result in results
    ]


def _any_split_request(request: PlanRequest) -> PlanRequest:
    """The same question for any split of the same engine."""
    engines = (request.candidate.engine,) if request.candidate else ()
    options = request.options.model_copy(update={"engines": engines})
    return request.model_copy(update={"options": options, "candidate": None})


def read_command(command: str | Sequence[str] | Launch, context: CommandContext) -> Case:
    """The first server that a command starts, by the pinned release, which a recipe starts.

    Raises:
        InputError: when it starts no known engine.
    """
    return _first_case(command, context, pinned=True)


# Reading


def _first_case(
    command: str | Sequence[str] | Launch, context: CommandContext, *, pinned: bool = False
) -> Case:
    cases = _read_cases(command, context, pinned=pinned)
    if not cases:
        raise no_engine()
    if len(cases) > 1:
        message = f"the command starts {len(cases)} servers; the first is judged."
        cases[0].findings.say("note", "several", message)
    return cases[0]


def no_engine() -> InputError:
    """Return the error of a command that starts no known engine."""
    hint = f"Known: {programs()}."
    return InputError("no known engine in the command.", field="command", hint=hint)


def _read_cases(
    command: str | Sequence[str] | Launch, context: CommandContext, *, pinned: bool = False
) -> list[Case]:
    """Each server of a command; ``pinned``: by the release that a recipe of it starts."""

    def case_of(launch: Launch) -> Case:
        release = None if pinned else context.engine_version
        judged = by_pinned(launch) if pinned else running_release(launch, release)
        case = _read_case(launch, judged, context)
        check_release(case, release)
        return case

    if isinstance(command, Launch):
        return [case_of(command)]
    words = _list_words(command)
    if words is not None:
        launch = first_launch(words)
        return [case_of(launch)] if launch else []
    script = read_script(str(command))
    launches, programs_beside = find_launches(script)
    cases = [case_of(launch) for launch in launches]
    for case in cases[:1]:
        if programs_beside:
            names = list(dict.fromkeys(name[:40] for name in programs_beside[:20]))
            more = ["…"] if len(programs_beside) > 20 else []
            case.findings.say("note", "others", f"not checked: {', '.join(names + more)}.")
        if script.loose_ends:
            lines = f"{script.loose_ends} lines end in a backslash and a space"
            message = f"{lines}: a shell ends the command there."
            case.findings.say("warning", "loose-end", message)
    return cases


def _list_words(command: str | Sequence[str]) -> tuple[str, ...] | None:
    """The words of a command that is given as a list, None for text."""
    if isinstance(command, str):
        if len(command) > MAX_CHARACTERS or not command.lstrip().startswith("["):
            return None
        command = parse_json(command, "the command")
    if not isinstance(command, list | tuple) or not all(isinstance(word, str) for word in command):
        raise InputError("a command is text or a list of words.", field="command")
    if sum(map(len, command)) > MAX_CHARACTERS:
        message = f"the command has more than {MAX_CHARACTERS:,} characters."
        raise InputError(message, field="command")
    return tuple(command)


def _read_case(launch: Launch, judged: ReleaseTable, context: CommandContext) -> Case:
    case = Case(context, launch, judged)
    check_named_files(case)
    check_surroundings(case)
    return case


def _reread(case: Case, words: Words) -> Case:
    return _read_case(replace(case.launch, args=words), case.arguments.judged, case.context)


def _resettle(case: Case, words: Words, model: ModelSpec) -> Case:
    """Read a case with other words after its program, with all that is checked of it alone."""
    changed = _reread(case, words)
    changed.settle(model)
    check_rules(changed, model)
    return changed


# Judging


def _judge_with_attempts(cases: list[Case], folders: bool) -> list[View | Unknown]:
    """Each command's part of an estimate, with the changes that make it start; or why not."""
    models = Models(folders)
    verdicts = _judge_cases(cases, models)
    views = (verdict for verdict in verdicts if isinstance(verdict, View))
    tries = [attempt for view in views for attempt in find_attempts(view, _reread)]
    for mends in (True, False):  # layouts are offered for a command without what is refused
        attempts = [attempt for attempt in tries if attempt.mends == mends]
        changed = _judge_cases([attempt.case for attempt in attempts], models, alone=not mends)
        for attempt, verdict in zip(attempts, changed, strict=True):
            if isinstance(verdict, View):
                attempt.keep(verdict)
    return verdicts


def _judge_cases(cases: list[Case], models: Models, *, alone: bool = False) -> list[View | Unknown]:
    """Each command's part of an estimate, or why there is none.

    ``alone``: without the other splits of its devices.
    """
    groups: defaultdict[tuple[str, str], list[View]] = defaultdict(list)
    verdicts: list[View | Unknown] = []
    for case in cases:
        try:
            view = _prepare_case(case, models)
            key = case.context.model_dump_json(), shared_key(view.problem, view.setting)
            groups[key].append(view)
            verdicts.append(view)
        except RecipeError as error:
            verdicts.append(Unknown(case, error))
    for views in groups.values():
        plan_commands(views, alone=alone)
    return verdicts


def prepare_command(case: Case, *, folders: bool = True) -> View:
    """The columns of a command; raises InputError where something is missing or unknown."""
    return _prepare_case(case, Models(folders))


def _prepare_case(case: Case, models: Models) -> View:
    context, name = case.context, case.context.model or case.model
    if not name:
        hint = "Write it after serve, or as --model."
        raise InputError("the command names no model.", field="command", hint=hint)
    if is_open(name):
        message = f"the command leaves its model open: {name}."
        raise InputError(message, field="command", hint="Name it with --model.")
    model = models.named(name)
    take_all_devices(case)
    case.settle(model)
    for note in model.notes:
        if note.startswith(BY_NAME):
            case.findings.say("note", "by-name", note)
    config = {**model.config, **case.config, "_name_or_path": name}
    request = {
        "model": config if case.config else name,
        "hardware": _command_hardware(case),
        "workload": _command_workload(case, model),
        "objective": {"optimize": context.optimize},
        "candidate": {"engine": case.engine, **case.candidate},
    }
    if case.kv_offload is not None:
        request["options"] = {"kv_offload": case.kv_offload}
    check_rules(case, model)
    problem = _resolve_command(case, request, models)
    columns = _command_columns(case, problem)
    return View(case, problem, *columns, partial(_resettle, model=model))


def _resolve_command(case: Case, request: dict[str, Any], models: Models) -> ServingProblem:
    """The request with its names looked up; without a draft that the model cannot have."""
    try:
        return resolve_problem(PlanRequest.parse(request), folders=models.folders)
    except InputError as error:
        about_draft = (error.field or "").startswith("workload.speculative")
        if "speculative" not in request["workload"] or not about_draft:
            raise
        del request["workload"]["speculative"]
        if error.field == "workload.speculative.method":
            case.findings.say("error", "draft", error.message)
        else:
            message = f"speculative decoding is not in the estimate: {error.message}"
            case.findings.say("note", "unmodelled", message)
        return resolve_problem(PlanRequest.parse(request), folders=models.folders)


def _command_hardware(case: Case) -> dict[str, Any]:
    context, chip = case.context, device_profile(case.context.device)
    node = chip.node
    used, per_node = case.devices, context.per_node or node.devices
    nodes = context.nodes or case.nodes or 1
    states_none = context.nodes is None and case.nodes is None and context.per_node is None
    fits_one_node = fits_node(chip, fabric(node.fabric), per_node)
    if nodes == 1 and not fits_one_node and per_node % node.devices == 0:
        # Sixteen devices of a kind that no node holds more than eight of are two nodes.
        nodes, per_node = per_node // node.devices, node.devices
    elif states_none and used and used > per_node:
        nodes = -(-used // per_node)
    if nodes != (context.nodes or case.nodes or 1):
        message = f"judged on {nodes} nodes of {per_node} devices."
        case.findings.say(
            "note", "nodes", message, "Set --gpus and --nodes to the hardware you have."
        )
    if context.nodes and case.nodes and context.nodes != case.nodes:
        message = f"the command is for {case.nodes} nodes; only {context.nodes} available."
        if context.nodes > case.nodes:
            message = f"the command is for {case.nodes} nodes, not {context.nodes}."
        case.findings.say("error", "nodes", message)
    visible, needed = case.launch.visible_devices, case.server_devices
    if visible is not None and needed is not None and nodes == 1 and needed > visible:
        message = f"the server sees {visible} devices but needs {needed}."
        case.findings.say("error", "visible", message, "Show it more, or use a smaller layout.")
    return {"device": context.device, "per_node": per_node, "nodes": nodes}


def _command_workload(case: Case, model: ModelSpec) -> dict[str, Any]:
    """The load, within the context that the command sets or the model has.

    A context of "auto" is as long as the load needs.
    """
    context, longest = case.context, case.max_context
    limit = longest if isinstance(longest, int) and longest > 0 else model.max_context
    task = case.served_task(model)
    workload: dict[str, Any] = {
        "input_tokens": context.input_tokens or max(1, min(DEFAULT_INPUT, limit // 2))
    }
    if task == "generate":
        answer = context.output_tokens or max(1, min(DEFAULT_OUTPUT, limit // 4))
        workload["output_tokens"] = answer
    media, media_tokens = media_of(case, model)
    tokens = sum(workload.values()) + media_tokens
    workload |= media
    if task != "generate":
        workload["task"] = task
    if tokens > limit:
        message = f"requests of {tokens:,} tokens exceed the server's limit of {limit:,}."
        case.findings.say("error", "too-long", message)
    if longest != "auto":
        workload["max_context"] = max(limit, tokens)
    draft = case.draft
    if draft is not None and isinstance(draft["tokens"], int) and context.acceptance is not None:
        speculative = {"tokens": draft["tokens"], "acceptance": context.acceptance}
        speculative |= {name: draft[name] for name in ("method", "model") if draft.get(name)}
        workload["speculative"] = speculative
    elif draft is not None:
        hint = "Give the share of accepted tokens: --acceptance."
        case.findings.say(
            "note", "unmodelled", "speculative decoding is not in the estimate.", hint
        )
    spreads = {"input_spread": context.input_spread, "output_spread": context.output_spread}
    workload |= {name: spread for name, spread in spreads.items() if spread is not None}
    return {**workload, "concurrency": context.concurrency}


def _command_columns(case: Case, problem: ServingProblem) -> tuple[Setting, Cases]:
    """The columns of the command's split, without what is not modelled.

    Where it leaves degrees open, those of every split that agrees with it.
    """
    fields, device = {"engine": case.engine, **case.candidate}, problem.cluster.device
    spec = requested_engine(case.engine, problem.cluster)
    release = memory_release(spec, case.arguments.judged.version)
    if release is not None:
        spec = spec.at(release, served_context(problem.workload, problem.model))
    if device.unified:  # where a plan would lower the default, a command keeps it
        limits = spec.batch_limits(device.usable_memory_bytes, device.architecture)
        fields.setdefault("memory_fraction", spec.memory.fraction.value)
        fields.setdefault("max_num_seqs", limits.max_num_seqs)
    while True:
        candidate = CandidateRequest.model_validate(fields)
        try:
            exact = stated_serving_case(problem, candidate, release)
            break
        except InputError as error:
            name = (error.field or "").removeprefix("candidate.").split(".")[0]
            if name not in fields or name == "engine":
                raise
            message = f"{name} {fields.pop(name)} is not in the estimate: {error.message}"
            case.findings.say("note", "unmodelled", message)
    if exact is not None:
        return command_setting(exact[0], case), exact[1]
    dtypes = candidate.weight_dtype or "auto", candidate.kv_dtype or "auto"
    open_setting = command_setting(serving_setting(problem, spec, *dtypes), case)
    columns = every_split(problem, open_setting, candidate)
    if not len(columns):
        message = f"no layout of {problem.cluster.devices} devices agrees with the command."
        raise InputError(message, field="command")
    return open_setting, columns
