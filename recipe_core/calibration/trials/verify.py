"""`recipe verify`: how far a bundle's outputs repeat, in numbers.

Each deployment is started once, asked everything, and stopped before the next one starts: they need
the same devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.base.errors import InputError, NoAnswer, RecipeError
from recipe_core.bundle.verify import read_bundle, unpack
from recipe_core.calibration.trials.answers import Answer, Asker, Questions
from recipe_core.calibration.trials.compare import Agreement, Distance, agreement, distance
from recipe_core.calibration.trials.deployment import Deployment, deployed
from recipe_core.calibration.trials.errors import TrialError
from recipe_core.calibration.trials.tolerances import (
    EXACT,
    Verdict,
    formats,
    judge,
    kind_of,
    tolerance,
)
from recipe_core.calibration.trials.workplace import Workplace, workplace
from recipe_core.engines.reproducibility import Reproducibility, Switch, reproducibility
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.build import recipe_of
from recipe_core.recipe.decision import decide
from recipe_core.recipe.user_options import passing_on
from recipe_core.request.edit import change
from recipe_core.request.serving_workload import ServingWorkload

PROMPTS, TOKENS = 32, 64
# Requests at once where answers alone are held against answers in a batch.
AT_ONCE = 16
Tell = Callable[[str], None]
# Starts a recipe's bundle in a folder, as ``deployment.deployed``.
Deploy = Callable[..., AbstractContextManager[Deployment]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a verification asks for: how many prompts, and how many tokens of each answer."""

    prompts: int = PROMPTS
    tokens: int = TOKENS
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pair of answers: what was compared, the numbers, the bounds and the verdict."""

    name: str
    title: str
    alike: Agreement
    apart: Distance | None
    kind: str
    verdict: Verdict
    broken: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "agreement": self.alike.to_json(),
            "logprobs": self.apart.to_json() if self.apart else None,
            "tolerance": {"kind": self.kind, **tolerance(self.kind).to_json()},
            "verdict": self.verdict,
            "broken": list(self.broken),
        }


@dataclass(slots=True)
class Report:
    """A reproducibility report; ``left_out``: what was not compared, and why."""

    recipe: Recipe
    choice: Choice
    comparisons: list[Comparison] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """``outside`` where any comparison is; ``not judged`` where none could be judged."""
        verdicts = {comparison.verdict for comparison in self.comparisons}
        if "outside" in verdicts:
            return "outside"
        return "within" if "within" in verdicts else "not judged"

    def to_json(self) -> dict[str, Any]:
        """Plain values, as ``recipe verify --json`` prints them."""
        recipe = self.recipe
        return {
            "schema_version": 1,
            "recipe": recipe.name,
            "recipe_digest": recipe.digest,
            "engine": {"name": recipe.engine.name, "version": recipe.engine.version},
            "device": {"name": recipe.device.name, "count": recipe.device.count},
            "formats": dict(zip(("weights", "cache"), formats(recipe), strict=True)),
            "prompts": self.choice.prompts,
            "tokens": self.choice.tokens,
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "not_compared": [{"what": k, "why": why} for k, why in self.left_out.items()],
            "seconds": self.seconds,
            "verdict": self.verdict,
        }

    def add(
        self, name: str, title: str, kind: str, left: Sequence[Answer], right: Sequence[Answer]
    ) -> None:
        """Compare two lists of answers to the same questions and judge them."""
        alike, apart = agreement(left, right), distance(left, right)
        verdict, broken = judge(tolerance(kind), alike, apart)
        self.comparisons.append(Comparison(name, title, alike, apart, kind, verdict, tuple(broken)))


@dataclass(frozen=True, slots=True)
class Subject:
    """A deployment to ask: its recipe, where its model lies, and the switch that is on, if any."""

    name: str
    recipe: Recipe
    model: str | None
    switch: Switch | None = None

    @property
    def engine(self) -> Reproducibility:
        return reproducibility(self.recipe.engine.name)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a deployment answered: alone, again alone, many at once, drawn twice, its reading."""

    alone: list[Answer]
    again: list[Answer] = field(default_factory=list)
    batched: list[Answer] = field(default_factory=list)
    drawn: list[Answer] = field(default_factory=list)
    drawn_again: list[Answer] = field(default_factory=list)
    reading: list[Answer] = field(default_factory=list)
    alone_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Table:
    """Where and how deployments are asked."""

    place: Workplace
    questions: Questions
    choice: Choice
    tell: Tell
    clock: Callable[[], float]
    deploy: Deploy
    asker: Callable[[Deployment, Reproducibility], Asker]


def verify(
    bundle: Path,
    against: Sequence[Path] = (),
    choice: Choice | None = None,
    *,
    tell: Tell = print,
    clock: Callable[[], float] = time.monotonic,
    deploy: Deploy = deployed,
    asker: Callable[[Deployment, Reproducibility], Asker] = Asker,
    alone: Callable[[Path, str], AbstractContextManager[Workplace]] = workplace,
) -> Report:
    """Start a bundle and what it is held against, one after the other, and compare their outputs.

    ``against``: other bundles of the same model. ``tell`` gets a line for each step.
    ``clock``, ``deploy``, ``asker`` and ``alone`` are the machine's time, servers, how they are
    asked, and folders.

    Raises:
        InputError: for a bundle of training or of several nodes, one that runs, and one whose
            variables are wrong.
        TrialError: when the bundle itself does not start or answer.
    """
    choice = choice or Choice()
    folder = unpack(bundle)
    recipe = serving_recipe(folder)
    others = [(path, unpack(path)) for path in against]
    report = Report(recipe, choice)
    with alone(folder, "verify") as place:
        if place.stopped:
            tell(f"stopped {place.stopped} processes that an earlier run had left")
        base = Subject("base", recipe, model_of(recipe, folder))
        questions = _questions(recipe, choice)
        table = _Table(place, questions, choice, tell, clock, deploy, asker)
        whole = _ask(base, table, everything=True)
        _within(report, base, whole)
        if not base.engine.most_logprobs:
            report.left_out["log-probabilities"] = (
                f"{recipe.engine.title} tells none; words of the answers are compared"
            )
        for subject, title, kind, full in _variants(report, base):
            _hold(report, table, whole, (subject, title, kind, full))
        for path, other in others:
            _against(report, table, (base, whole), (path, other))
    return report


def serving_recipe(folder: Path) -> Recipe:
    """The recipe of a bundle that serves on one node.

    Raises:
        InputError: for another one.
    """
    recipe = read_bundle(folder).recipe
    if recipe.kind != "serving":
        raise InputError(
            f"{recipe.name} trains; its outputs are weights.",
            field="bundle",
            hint="Give a bundle that serves.",
        )
    if recipe.device.count > (recipe.device.per_node or recipe.device.count):
        raise InputError(
            f"{recipe.name} runs on several nodes, of which this is one.",
            field="bundle",
            hint="Give a bundle of one node, for example of one replica.",
        )
    return recipe


def model_of(recipe: Recipe, folder: Path) -> str | None:
    """The model's folder where the bundle names one relative to itself; else None."""
    model = recipe.parameters.model or recipe.model.id
    return str((folder / model).resolve()) if model.startswith(("./", "../")) else None


def _questions(recipe: Recipe, choice: Choice) -> Questions:
    """Prompts that leave room for the answer in the longest request that the engine accepts."""
    longest = recipe.max_context or 1024
    tokens = max(1, min(choice.tokens, longest // 2))
    return Questions.of(choice.prompts, tokens, (longest - tokens) // 4)


def _ask(subject: Subject, table: _Table, *, everything: bool) -> Asked:
    """Start a deployment, ask it, and stop it."""
    questions = table.questions
    table.tell(f"{subject.name}: starting {subject.recipe.name}")
    with table.deploy(
        subject.recipe,
        table.place.clear(subject.name),
        model=subject.model,
        environment=subject.switch.environment if subject.switch else {},
        timeout_s=table.choice.timeout_s,
    ) as deployment:
        asker = table.asker(deployment, subject.engine)
        table.tell(f"{subject.name}: asking {len(questions.prompts)} prompts")
        asker.greedy(Questions(questions.prompts[:1], 1))  # builds lazily made kernels
        began = table.clock()
        alone = asker.greedy(questions)
        alone_s = table.clock() - began
        reading = asker.read(questions)
        if not everything:
            return Asked(alone, reading=reading, alone_s=alone_s)
        return Asked(
            alone,
            again=asker.greedy(questions),
            batched=asker.greedy(questions, min(AT_ONCE, len(questions.prompts))),
            drawn=asker.sampled(questions),
            drawn_again=asker.sampled(questions),
            reading=reading,
            alone_s=alone_s,
        )


def _within(report: Report, subject: Subject, asked: Asked) -> None:
    """What one deployment shows by itself; a switch that is on must keep what it promises."""
    switch = subject.switch
    kind = EXACT if switch and switch.batch else kind_of(subject.recipe)
    on = f" with {switch.title}" if switch else ""
    tail = f"-{subject.name}" if switch else ""
    report.add(
        f"repeat-greedy{tail}", f"the same prompts twice{on}", EXACT, asked.alone, asked.again
    )
    seeds = f"the same seeds twice{on}"
    if all(a.text == b.text for a, b in zip(asked.alone, asked.drawn, strict=True)):
        report.left_out[seeds] = "drawn answers are the greedy ones: nothing was drawn"
    else:
        report.add(f"repeat-sampled{tail}", seeds, EXACT, asked.drawn, asked.drawn_again)
    report.add(
        f"batch{tail}",
        f"alone against {min(AT_ONCE, report.choice.prompts)} at once{on}",
        kind,
        asked.alone,
        asked.batched,
    )
    report.seconds[subject.name] = round(asked.alone_s, 3)


def _variants(report: Report, base: Subject) -> Iterator[tuple[Subject, str, str, bool]]:
    """What the bundle is held against by itself: unsplit, and with each switch that works here.

    With each a title, the kind of pair, and whether it is asked everything.
    """
    recipe = base.recipe
    try:
        unsplit = _unsplit(recipe)
    except (NoAnswer, InputError) as error:
        report.left_out["split against unsplit"] = error.message
    else:
        subject = Subject("unsplit", unsplit, base.model)
        yield subject, "split against one device", kind_of(recipe), False
    switches = base.engine.switches
    if not switches:
        report.left_out["determinism switches"] = f"none is known of {recipe.engine.title}"
    for switch in switches:
        doubt = switch.doubt(recipe.device.runtime, recipe.device.architecture)
        try:
            if doubt:
                raise NoAnswer(doubt)
            switched = _switched(recipe, switch)
        except RecipeError as error:
            report.left_out[f"switch {switch.name}"] = error.message
            continue
        subject = Subject(switch.name, switched, base.model, switch)
        yield subject, switch.title, kind_of(recipe), True


def _unsplit(recipe: Recipe) -> Recipe:
    """The recipe on one device, everything else the same.

    Raises:
        NoAnswer: where it is on one already, or does not fit there.
    """
    if recipe.device.count == 1:
        raise NoAnswer("the bundle runs on one device: nothing is split")
    request = recipe_request(recipe)
    whole = {**recipe.candidate, "tp": 1, "pp": 1, "dp": 1, "ep": 1, "cp": 1}
    whole = {k: v for k, v in whole.items() if k not in ("prefill", "replicas")}
    changed = change(request, {"candidate": whole})
    return recipe_of(decide(changed), changed)


def _switched(recipe: Recipe, switch: Switch) -> Recipe:
    """The recipe with a switch's options; its variables are set where it is started."""
    if not switch.options:
        return recipe
    changed = passing_on(recipe_request(recipe), switch.options, {})
    return recipe_of(decide(changed), changed)


def _hold(
    report: Report, table: _Table, whole: Asked, other: tuple[Subject, str, str, bool]
) -> None:
    """Ask another deployment and compare it with the bundle; one that fails is left out."""
    subject, title, kind, everything = other
    try:
        asked = _ask(subject, table, everything=everything)
    except TrialError as error:
        report.left_out[title] = error.message
        return
    if everything:
        _within(report, subject, asked)
    _pair(report, subject.name, f"the bundle against {title}", kind, whole, asked)
    report.seconds[subject.name] = round(asked.alone_s, 3)


def _pair(report: Report, name: str, title: str, kind: str, left: Asked, right: Asked) -> None:
    report.add(name, f"{title}, greedy", kind, left.alone, right.alone)
    if left.reading and right.reading:
        # The text is given, so that only what the models make of it differs.
        report.add(f"{name}-reading", f"{title}, prompts read", kind, left.reading, right.reading)


def _against(
    report: Report, table: _Table, base: tuple[Subject, Asked], other: tuple[Path, Path]
) -> None:
    """Compare with another bundle, where both serve the same model and the same lengths."""
    path, folder = other
    subject, whole = base
    title = str(path)
    try:
        recipe = serving_recipe(folder)
        if doubt := _not_comparable(subject.recipe, recipe, table.questions):
            raise NoAnswer(doubt)
    except RecipeError as error:
        report.left_out[title] = error.message
        return
    name = f"against-{1 + sum(c.name.startswith('against-') for c in report.comparisons)}"
    held = Subject(name, recipe, model_of(recipe, folder))
    table.tell(f"{name}: {title}")
    kind = kind_of(subject.recipe, recipe)
    _hold(report, table, whole, (held, title, kind, False))


def _not_comparable(base: Recipe, other: Recipe, questions: Questions) -> str | None:
    """Why answers of two recipes cannot be compared; None where they can."""
    if (base.model.digest, base.model.parameters) != (other.model.digest, other.model.parameters):
        stored = base.model.weight_dtype != other.model.weight_dtype
        if not stored or base.model.parameters != other.model.parameters:
            return f"it serves {other.model.id}, another model than {base.model.id}"
    longest = isinstance(recipe_request(other).workload, ServingWorkload) and other.max_context
    if longest and longest < 2 * questions.tokens:
        return f"it accepts requests of {longest} tokens, too few for these questions"
    return None
