"""`recipe verify`: how far a bundle's outputs repeat, in numbers.

Each deployment is started once, asked everything, and stopped before the next one starts: they need
the same devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.bundle.verify import unpack_bundle
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
from recipe_core.calibration.trials.deployment import Deployment, TrialError
from recipe_core.calibration.trials.workplace import (
    Experiment,
    Machine,
    bundle_model_folder,
    experiment,
    serving_recipe,
)
from recipe_core.engines.trials import Reproducibility, Switch, reproducibility
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.build import recipe_of
from recipe_core.recipe.decision import decide
from recipe_core.recipe.options import passing_on
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload

PROMPTS, TOKENS = 32, 64
# Requests at once where answers alone are held against answers in a batch.
AT_ONCE = 16


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


Answers = Mapping[str, list[Answer]]


@dataclass(slots=True)
class _Verification:
    """The deployments of a verification, and what the bundle itself answered."""

    report: Report
    experiment: Experiment
    asker: Callable[[Deployment, Reproducibility], Asker]
    answers: Answers = field(default_factory=dict)

    @property
    def questions(self) -> Questions:
        """Prompts that leave room for the answer in the longest request that is accepted."""
        choice, longest = self.report.choice, self.report.recipe.max_context or 1024
        tokens = max(1, min(choice.tokens, longest // 2))
        return Questions.of(choice.prompts, tokens, (longest - tokens) // 4)

    def ask(self, subject: Subject, *, everything: bool) -> Answers:
        """Start a deployment, ask it, and stop it.

        Its answers alone and what it reads; of ``everything`` also again, many at once, and drawn
        twice.
        """
        questions, machine = self.questions, self.experiment.machine
        machine.tell(f"{subject.name}: starting {subject.recipe.name}")
        variables = subject.switch.environment if subject.switch else {}
        with self.experiment.start(
            subject.name, subject.recipe, subject.model, variables
        ) as deployment:
            asker = self.asker(deployment, reproducibility(subject.recipe.engine.name))
            machine.tell(f"{subject.name}: asking {len(questions.prompts)} prompts")
            asker.greedy(Questions(questions.prompts[:1], 1))  # builds lazily made kernels
            began = machine.clock()
            answers = {"alone": asker.greedy(questions)}
            self.report.seconds[subject.name] = round(machine.clock() - began, 3)
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

    def compare(self, title: str, make: Callable[[], Subject], doubted: str) -> None:
        """Ask another deployment and compare it with the bundle.

        One that cannot be made or fails is left out: as ``doubted``, or by its title.
        """
        try:
            subject = make()
        except RecipeError as error:
            self.report.left_out[doubted] = error.message
            return
        try:
            answers = self.ask(subject, everything=subject.switch is not None)
        except TrialError as error:
            self.report.left_out[title] = error.message
            return
        if subject.switch is not None:
            self.judge_alone(subject, answers)
        kind = coarsest_format_class(self.report.recipe, subject.recipe)
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
    machine: Machine | None = None,
    asker: Callable[[Deployment, Reproducibility], Asker] = Asker,
) -> Report:
    """Start a bundle and what it is held against, one after the other, and compare their outputs.

    ``against``: other bundles of the same model. ``machine``: where they run, by default this one;
    ``asker``: how they are asked.

    Raises:
        InputError: for a bundle of training or of several nodes, one that runs, and one whose
            variables are wrong.
        TrialError: when the bundle itself does not start or answer.
    """
    folder = unpack_bundle(bundle)
    recipe = serving_recipe(folder)
    other_bundles = [(path, unpack_bundle(path)) for path in against]
    report = Report(recipe, choice or Choice())
    engine = reproducibility(recipe.engine.name)
    timeout_s = report.choice.timeout_s
    with experiment(folder, recipe, "verify", machine or Machine(), timeout_s) as started:
        table = _Verification(report, started, asker)
        base = Subject("base", recipe, started.model)
        table.answers = table.ask(base, everything=True)
        table.judge_alone(base, table.answers)
        if not engine.most_logprobs:
            report.left_out["log-probabilities"] = (
                f"{recipe.engine.title} tells none; words of the answers are compared"
            )
        unsplit = partial(_unsplit_subject, base)
        table.compare("split against one device", unsplit, "split against unsplit")
        if not engine.switches:
            report.left_out["determinism switches"] = f"none is known of {recipe.engine.title}"
        for switch in engine.switches:
            make = partial(_switched_subject, base, switch)
            table.compare(switch.title, make, f"switch {switch.name}")
        for path, other in other_bundles:
            started.machine.tell(f"against {path}")
            make = partial(_other_subject, report, other, table.questions.tokens)
            table.compare(str(path), make, str(path))
    return report


def _unsplit_subject(base: Subject) -> Subject:
    """The recipe on one device, everything else the same.

    Raises:
        NoAnswer: where it is on one already, or does not fit there.
    """
    if base.recipe.device.count == 1:
        raise NoAnswer("the bundle runs on one device: nothing is split")
    candidate = {**base.recipe.candidate, "tp": 1, "pp": 1, "dp": 1, "ep": 1, "cp": 1}
    candidate = {k: v for k, v in candidate.items() if k not in ("prefill", "replicas")}
    changed = change(recipe_request(base.recipe), {"candidate": candidate})
    return Subject("unsplit", _recipe_for(changed), base.model)


def _switched_subject(base: Subject, switch: Switch) -> Subject:
    """The recipe with a switch's options; its variables are set where it is started.

    Raises:
        NoAnswer: where the switch does not work here.
    """
    recipe = base.recipe
    if doubt := switch.doubt(recipe.device.runtime, recipe.device.architecture):
        raise NoAnswer(doubt)
    if switch.options:
        recipe = _recipe_for(passing_on(recipe_request(recipe), switch.options, {}))
    return Subject(switch.name, recipe, base.model, switch)


def _recipe_for(request: PlanRequest) -> Recipe:
    return recipe_of(decide(request), request)


def _other_subject(report: Report, folder: Path, tokens: int) -> Subject:
    """Another bundle, where both serve the same model and it takes answers of ``tokens``.

    Raises:
        NoAnswer: where it does not.
    """
    base, other = report.recipe, serving_recipe(folder)
    if base.model.parameters != other.model.parameters or (
        base.model.digest != other.model.digest
        and base.model.weight_dtype == other.model.weight_dtype
    ):
        raise NoAnswer(f"it serves {other.model.id}, another model than {base.model.id}")
    served = isinstance(recipe_request(other).workload, ServingWorkload)
    longest = served and other.max_context
    if longest and longest < 2 * tokens:
        raise NoAnswer(f"it accepts requests of {longest} tokens, too few for these questions")
    name = f"against-{1 + sum(c.name.startswith('against-') for c in report.comparisons)}"
    return Subject(name, other, bundle_model_folder(other, folder))
