"""`recipe verify`: how far a bundle's outputs repeat, in numbers.

Each deployment is started once, asked everything, and stopped before the next one starts: they need
the same devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.base.errors import InputError, NoAnswer, RecipeError
from recipe_core.bundle.verify import read_bundle, unpack_bundle
from recipe_core.calibration.trials.answers import Answer, Asker, Questions
from recipe_core.calibration.trials.compare import (
    EXACT,
    Agreement,
    Distance,
    Verdict,
    answer_agreement,
    coarsest_format_class,
    judge_agreement,
    logprob_distance,
    stored_formats,
    tolerance,
)
from recipe_core.calibration.trials.deployment import Deployment, TrialError, running_deployment
from recipe_core.calibration.trials.workplace import Workplace, workplace
from recipe_core.engines.trials import Reproducibility, Switch, reproducibility
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.build import recipe_of
from recipe_core.recipe.decision import decide
from recipe_core.recipe.options import passing_on
from recipe_core.request.edit import change
from recipe_core.request.serving_workload import ServingWorkload

PROMPTS, TOKENS = 32, 64
# Requests at once where answers alone are held against answers in a batch.
AT_ONCE = 16
Tell = Callable[[str], None]
# Starts a recipe's bundle in a folder, as ``deployment.running_deployment``.
Deploy = Callable[..., AbstractContextManager[Deployment]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The size of a verification: how many prompts, and how many tokens of each answer."""

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
        bounds = tolerance(self.kind).model_dump(mode="json", exclude_none=True)
        return {
            "name": self.name,
            "title": self.title,
            "agreement": asdict(self.alike),
            "logprobs": asdict(self.apart) if self.apart else None,
            "tolerance": {"kind": self.kind, **bounds},
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
        recipe = self.recipe
        return {
            "schema_version": 1,
            "recipe": recipe.name,
            "recipe_digest": recipe.digest,
            "engine": {"name": recipe.engine.name, "version": recipe.engine.version},
            "device": {"name": recipe.device.name, "count": recipe.device.count},
            "formats": dict(zip(("weights", "cache"), stored_formats(recipe), strict=True)),
            "prompts": self.choice.prompts,
            "tokens": self.choice.tokens,
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "not_compared": [{"what": k, "why": why} for k, why in self.left_out.items()],
            "seconds": self.seconds,
            "verdict": self.verdict,
        }

    def add(
        self, name: str, title: str, kind: str, first: Sequence[Answer], second: Sequence[Answer]
    ) -> None:
        """Compare two lists of answers to the same questions and judge them."""
        alike, apart = answer_agreement(first, second), logprob_distance(first, second)
        verdict, broken = judge_agreement(tolerance(kind), alike, apart)
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


Answers = Mapping[str, list[Answer]]


@dataclass(slots=True)
class _Verification:
    """The deployments of a verification, and what the bundle itself answered."""

    report: Report
    base: Subject
    place: Workplace
    tell: Tell
    clock: Callable[[], float]
    deploy: Deploy
    asker: Callable[[Deployment, Reproducibility], Asker]
    answers: Answers = field(default_factory=dict)

    @property
    def questions(self) -> Questions:
        """Prompts that leave room for the answer in the longest request that is accepted."""
        choice, longest = self.report.choice, self.base.recipe.max_context or 1024
        tokens = max(1, min(choice.tokens, longest // 2))
        return Questions.of(choice.prompts, tokens, (longest - tokens) // 4)

    def ask(self, subject: Subject, *, everything: bool) -> Answers:
        """Start a deployment, ask it, and stop it.

        Its answers alone and what it reads; of ``everything`` also again, many at once, and drawn
        twice.
        """
        questions = self.questions
        self.tell(f"{subject.name}: starting {subject.recipe.name}")
        with self.deploy(
            subject.recipe,
            self.place.clear(subject.name),
            model=subject.model,
            environment=subject.switch.environment if subject.switch else {},
            timeout_s=self.report.choice.timeout_s,
        ) as deployment:
            asker = self.asker(deployment, subject.engine)
            self.tell(f"{subject.name}: asking {len(questions.prompts)} prompts")
            asker.greedy(Questions(questions.prompts[:1], 1))  # builds lazily made kernels
            began = self.clock()
            answers = {"alone": asker.greedy(questions)}
            self.report.seconds[subject.name] = round(self.clock() - began, 3)
            answers["reading"] = asker.read(questions)
            if everything:
                answers["again"] = asker.greedy(questions)
                answers["batched"] = asker.greedy(questions, min(AT_ONCE, len(questions.prompts)))
                answers["drawn"] = asker.sampled(questions)
                answers["drawn_again"] = asker.sampled(questions)
        return answers

    def judge_alone(self, subject: Subject, answers: Answers) -> None:
        """Judge one deployment by itself; a switch that is on must keep what it promises."""
        switch, report = subject.switch, self.report
        kind = EXACT if switch and switch.batch else coarsest_format_class(subject.recipe)
        on = f" with {switch.title}" if switch else ""
        tail = f"-{subject.name}" if switch else ""
        alone, drawn = answers["alone"], answers["drawn"]
        report.add(
            f"repeat-greedy{tail}", f"the same prompts twice{on}", EXACT, alone, answers["again"]
        )
        seeds = f"the same seeds twice{on}"
        if all(a.text == b.text for a, b in zip(alone, drawn, strict=True)):
            report.left_out[seeds] = "drawn answers are the greedy ones: nothing was drawn"
        else:
            report.add(f"repeat-sampled{tail}", seeds, EXACT, drawn, answers["drawn_again"])
        many = f"alone against {min(AT_ONCE, report.choice.prompts)} at once{on}"
        report.add(f"batch{tail}", many, kind, alone, answers["batched"])

    def compare(self, subject: Subject, title: str, kind: str) -> None:
        """Ask another deployment and compare it with the bundle; one that fails is left out."""
        try:
            answers = self.ask(subject, everything=subject.switch is not None)
        except TrialError as error:
            self.report.left_out[title] = error.message
            return
        if subject.switch is not None:
            self.judge_alone(subject, answers)
        # Prompts that are read: the text is given, only what the models make of it differs.
        for key, tail, manner in (("alone", "", "greedy"), ("reading", "-reading", "prompts read")):
            first, second = self.answers[key], answers[key]
            if first and second:
                name, text = f"{subject.name}{tail}", f"the bundle against {title}, {manner}"
                self.report.add(name, text, kind, first, second)


def verify_outputs(
    bundle: Path,
    against: Sequence[Path] = (),
    choice: Choice | None = None,
    *,
    tell: Tell = print,
    clock: Callable[[], float] = time.monotonic,
    deploy: Deploy = running_deployment,
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
    folder = unpack_bundle(bundle)
    recipe = serving_recipe(folder)
    other_bundles = [(path, unpack_bundle(path)) for path in against]
    report = Report(recipe, choice or Choice())
    with alone(folder, "verify") as place:
        if place.stopped:
            tell(f"stopped {place.stopped} processes that an earlier run had left")
        base = Subject("base", recipe, bundle_model_folder(recipe, folder))
        table = _Verification(report, base, place, tell, clock, deploy, asker)
        table.answers = table.ask(base, everything=True)
        table.judge_alone(base, table.answers)
        if not base.engine.most_logprobs:
            report.left_out["log-probabilities"] = (
                f"{recipe.engine.title} tells none; words of the answers are compared"
            )
        for subject, title in _bundle_variants(report, base):
            table.compare(subject, title, coarsest_format_class(recipe))
        for path, other_folder in other_bundles:
            _compare_bundle(table, path, other_folder)
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


def bundle_model_folder(recipe: Recipe, folder: Path) -> str | None:
    """The model's folder where the bundle names one relative to itself; else None."""
    model = recipe.parameters.model or recipe.model.id
    return str((folder / model).resolve()) if model.startswith(("./", "../")) else None


def _bundle_variants(report: Report, base: Subject) -> Iterator[tuple[Subject, str]]:
    """Yield variants to hold the bundle against: unsplit, and with each switch that works here."""
    recipe = base.recipe
    try:
        unsplit = _unsplit_recipe(recipe)
    except (NoAnswer, InputError) as error:
        report.left_out["split against unsplit"] = error.message
    else:
        yield Subject("unsplit", unsplit, base.model), "split against one device"
    switches = base.engine.switches
    if not switches:
        report.left_out["determinism switches"] = f"none is known of {recipe.engine.title}"
    for switch in switches:
        try:
            if doubt := switch.doubt(recipe.device.runtime, recipe.device.architecture):
                raise NoAnswer(doubt)
            switched = _switched_recipe(recipe, switch)
        except RecipeError as error:
            report.left_out[f"switch {switch.name}"] = error.message
            continue
        yield Subject(switch.name, switched, base.model, switch), switch.title


def _unsplit_recipe(recipe: Recipe) -> Recipe:
    """The recipe on one device, everything else the same.

    Raises:
        NoAnswer: where it is on one already, or does not fit there.
    """
    if recipe.device.count == 1:
        raise NoAnswer("the bundle runs on one device: nothing is split")
    request = recipe_request(recipe)
    candidate = {**recipe.candidate, "tp": 1, "pp": 1, "dp": 1, "ep": 1, "cp": 1}
    candidate = {k: v for k, v in candidate.items() if k not in ("prefill", "replicas")}
    changed = change(request, {"candidate": candidate})
    return recipe_of(decide(changed), changed)


def _switched_recipe(recipe: Recipe, switch: Switch) -> Recipe:
    """The recipe with a switch's options; its variables are set where it is started."""
    if not switch.options:
        return recipe
    changed = passing_on(recipe_request(recipe), switch.options, {})
    return recipe_of(decide(changed), changed)


def _compare_bundle(table: _Verification, path: Path, folder: Path) -> None:
    """Compare with another bundle, where both serve the same model and the same lengths."""
    report, base = table.report, table.base.recipe
    try:
        recipe = serving_recipe(folder)
        if doubt := _not_comparable(base, recipe, table.questions):
            raise NoAnswer(doubt)
    except RecipeError as error:
        report.left_out[str(path)] = error.message
        return
    name = f"against-{1 + sum(c.name.startswith('against-') for c in report.comparisons)}"
    table.tell(f"{name}: {path}")
    subject = Subject(name, recipe, bundle_model_folder(recipe, folder))
    table.compare(subject, str(path), coarsest_format_class(base, recipe))


def _not_comparable(base_recipe: Recipe, other_recipe: Recipe, questions: Questions) -> str | None:
    """Say why answers of two recipes cannot be compared; None where they can."""
    if (base_recipe.model.digest, base_recipe.model.parameters) != (
        other_recipe.model.digest,
        other_recipe.model.parameters,
    ):
        stored = base_recipe.model.weight_dtype != other_recipe.model.weight_dtype
        if not stored or base_recipe.model.parameters != other_recipe.model.parameters:
            return f"it serves {other_recipe.model.id}, another model than {base_recipe.model.id}"
    served = isinstance(recipe_request(other_recipe).workload, ServingWorkload)
    longest = served and other_recipe.max_context
    if longest and longest < 2 * questions.tokens:
        return f"it accepts requests of {longest} tokens, too few for these questions"
    return None
