"""Scales of estimated times, learned from measured runs of one's own.

Times of an estimate are multiplied by two scales: one of decode steps, one of prompts. What a run
shows of the logarithm of a scale is taken for a sum of normal effects, each shared by the runs of
its scope, from wide to narrow, with shares of variance of its own for each scale:

    log s = device + version + model + deployment + load + noise

A ``version`` is of an engine on a device, a ``model`` is one on a device and an engine, a
``deployment`` is a model's formats and split under a version. ``load`` is shared by runs of a model
as far as their loads and lengths are alike. Two runs thus correlate by the shares of variance
(``Prior``) of the scopes that they have in common, ``K``. With ``y`` the logarithms of measured /
estimated, ``H`` how much of each measured time is steps and prompts, ``T`` the variances of both
scales and ``B`` what a case has in common with the runs,

    C = Σ K ∘ (h·t·hᵀ) + noise     log s = B·C⁻¹·y       variance = T - B·C⁻¹·Bᵀ

which is the best linear unbiased prediction of random effects (Henderson 1975; Robinson 1991, "That
BLUP is a good thing"). With one scope it is the credibility n / (n + k) of Bühlmann, k the variance
inside over that between. Without runs in common a scale is 1 and keeps its variance.

A figure counts as far as it lies within ``cap`` standard deviations of what the others let expect:
one that is ten times the estimate moves it as one that is three times, two that agree are believed.

A layout without a run borrows the effects of its nearest neighbours (``LENT``): else what was
measured slow loses to what nobody has tried. With ``B'`` what it has in common, the loan included,
its scale is B'·C⁻¹·y and less sure than theirs: variance = T - 2·B'·C⁻¹·Bᵀ + B'·C⁻¹·B'ᵀ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.base.arrays import Float
from recipe_core.engines.spec import Engine
from recipe_core.estimates.columns.prior import WIDE_TO_NARROW, Prior, Scopes
from recipe_core.estimates.columns.scales import SCOPES, Scales
from recipe_core.estimates.columns.serving import POOL, Cases, Setting

# Columns that, with those of a prefill pool and the formats, make a deployment.
SPLIT = ("tp", "pp", "dp", "ep", "cp", "copies", "draft_tokens")

# Shares of its neighbours' effects that a layout without a run borrows, of steps and prompts: more
# of prompts made errors larger over the published cells.
LENT = (1.0, 0.5)

# Part of a measured time from which its run counts as one that shows a scale.
TELLING = 0.25

_VERSION = re.compile(r"\d+(?:\.\d+)+(?:\.?(?:post|rc|dev|a|b)\d+)?")


def version_in_text(text: str) -> str:
    """The version in a text: ``0.19.0`` of ``image:vllm-v0.19.0-nightly``; without one the text."""
    match = _VERSION.search(text)
    return match.group() if match else text.strip()


def assumed_version(engine: Engine) -> str:
    """The version that estimates of an engine assume."""
    return version_in_text(engine.as_of or engine.version)


class Residual(NamedTuple):
    """A measured figure of a run: log(measured / estimated), and what of it the scales explain."""

    log_ratio: float
    steps: float
    prompts: float


@dataclass(frozen=True, slots=True, eq=False)
class OwnRun:
    """A measured run: its case, the ``version`` of the engine that really ran, what it shows."""

    name: str
    setting: Setting
    case: Cases
    version: str
    residuals: tuple[Residual, ...]


class Labels(NamedTuple):
    """The labels of scopes that the cases of a setting share."""

    version: tuple[str, str]
    model: tuple[str, str]
    formats: tuple[str, str]
    mode: str

    @staticmethod
    def of(setting: Setting, version: str | None = None) -> Labels:
        """Those of a setting, under the version that estimates assume or that really ran."""
        engine = setting.engine
        return Labels(
            (engine.name, version or assumed_version(engine)),
            (setting.model.digest, engine.name),
            (setting.weight_dtype, setting.kv_dtype),
            setting.mode,
        )


def _case_splits(cases: Cases) -> Float:
    names = (*SPLIT, *(f"prefill_{name}" for name in POOL))
    return np.column_stack([getattr(cases, name) for name in names]).astype(np.float64)


def _kin(splits: Float) -> Float:
    """The columns by which layouts are neighbours: tp, then those of a draft and of a pool."""
    names = (*SPLIT, *(f"prefill_{name}" for name in POOL))
    return splits[:, [names.index("tp"), *range(names.index("draft_tokens"), len(names))]]


def _log_loads(cases: Cases) -> Float:
    """Logarithms (base 2) of load per replica, of lengths, and of replicas, a row each."""
    load, replicas = cases.load, cases.replicas
    columns = (load / replicas, cases.input_tokens, cases.output_tokens, replicas)
    return np.log2(np.maximum(np.column_stack(columns), 1e-9))


def _solve_shown(covariance: Float, shown: Float, cap: float) -> tuple[Float, Float]:
    """C⁻¹·y with what is shown cut where the others do not let expect it, and C⁻¹ for variances.

    Deletion residuals (Cook and Weisberg 1982): figure i is off by ``(C⁻¹·y)ᵢ / (C⁻¹)ᵢᵢ`` from what
    the others say of it, with the variance ``1 / (C⁻¹)ᵢᵢ``. What was cut makes its figure unsure.
    """
    inverse = np.linalg.inv(covariance)
    precision = np.diag(inverse)
    off = inverse @ shown / precision
    cut = off - np.clip(off, -cap / np.sqrt(precision), cap / np.sqrt(precision))
    solved = inverse @ (shown - cut)
    if cut.any():
        inverse = np.linalg.inv(covariance + np.diag(cut**2))
    return np.asarray(solved), np.asarray(inverse)


class DeviceRuns:
    """Own runs on one device, with what they show."""

    def __init__(self, prior: Prior, runs: Sequence[OwnRun]) -> None:
        self.prior = prior
        self.labels = [Labels.of(run.setting, run.version) for run in runs]
        self.numbers = [
            {name: k for k, name in enumerate(dict.fromkeys(column))}
            for column in zip(*self.labels, strict=True)
        ]
        self.coded = np.array([self._coded(labels) for labels in self.labels])
        self.splits = np.concatenate([_case_splits(run.case) for run in runs])
        self.loads = np.concatenate([_log_loads(run.case) for run in runs])
        self.row = np.repeat(np.arange(len(runs)), [len(run.residuals) for run in runs])
        residuals = np.array([residual for run in runs for residual in run.residuals])
        self.shown, self.weights = residuals[:, 0], residuals[:, 1:]
        self.priors = np.array([scale.spread**2 for scale in prior.scales])
        telling = np.abs(self.weights) >= TELLING
        self.shows = np.zeros((len(runs), 3), dtype=np.int64)
        for figure, row in enumerate(self.row.tolist()):
            self.shows[row] |= (*telling[figure].tolist(), True)

    @cached_property
    def covariance(self) -> Float:
        """C of the module: of what each figure shows."""
        scopes, rows = self.with_each_other(), np.ix_(self.row, self.row)
        out: Float = np.zeros((len(self.row), len(self.row)))
        for k, scale in enumerate(self.prior.scales):
            weights, variance = self.weights[:, k], self.priors[k]
            out += scale.common(scopes)[rows] * (variance * np.outer(weights, weights))
            out += np.diag(scale.shares.noise * variance * weights**2)
        return out

    @cached_property
    def believed(self) -> tuple[Float, Float]:
        """C⁻¹·y and C⁻¹ of the module."""
        return _solve_shown(self.covariance, self.shown, self.prior.cap)

    def _coded(self, labels: Labels) -> list[int]:
        """The labels as numbers, -1 for one that no run has: quicker to compare."""
        return [codes.get(name, -1) for codes, name in zip(self.numbers, labels, strict=True)]

    def with_each_other(self) -> Scopes:
        """Return what the runs have in common: `in_common` of each."""
        pairs = zip(self.labels, self.splits[:, None], self.loads[:, None], strict=True)
        same, of_model, apart = zip(*(self.in_common(*traits) for traits in pairs), strict=True)
        return Scopes(np.concatenate(same, axis=1), np.concatenate(of_model), np.concatenate(apart))

    def in_common(self, labels: Labels, splits: Float, loads: Float) -> Scopes:
        """Return what cases share with each run."""
        version, model, formats, same_mode = (self.coded == self._coded(labels)).T
        split = (splits[:, None] == self.splits[None]).all(axis=2)
        shape = split.shape
        same = (
            np.ones(shape),
            np.broadcast_to(version, shape),
            np.broadcast_to(model, shape),
            split & version & model & formats,
        )
        return Scopes(
            np.stack(same).astype(np.float64),
            np.broadcast_to(same_mode & model, shape).astype(np.float64),
            loads[:, None, :3] - self.loads[None, :, :3],
        )

    def _lent(self, labels: Labels, splits: Float, loads: Float, scopes: Scopes) -> list[Float]:
        """Return what each case without a run of its own borrows: of each scale cases × runs.

        The deployment effect, in mean over the nearest deployments: of its model, device and
        engine, those of its tp first, then of its draft, formats and version. And the effect of
        their load where the whole load is more alike than that of a replica.
        """
        version, model, formats, _ = (self.coded == self._coded(labels)).T
        alike = _kin(splits)[:, None] == _kin(self.splits)[None]
        rank = 8 * alike[..., 0] + 4 * alike[..., 1:].all(axis=2) + 2 * formats + version
        rank = np.where(model, rank, -1)
        measured = scopes.same[WIDE_TO_NARROW.index("deployment")].any(axis=1, keepdims=True)
        nearest = (rank == rank.max(axis=1, keepdims=True)) & (rank >= 0) & ~measured
        deployments = np.column_stack([self.coded[:, :3], self.splits])
        lenders = [max(len(np.unique(deployments[runs], axis=0)), 1) for runs in nearest]
        off = loads[:, None] - self.loads[None]
        whole_loads = np.concatenate([off[..., :1] + off[..., 3:], off[..., 1:3]], axis=2)
        lent = []
        for scale in self.prior.scales:
            borrowed = np.where(measured, 0.0, scale.alike(whole_loads)) - scale.alike(scopes.apart)
            load = scopes.of_model * np.maximum(borrowed, 0.0)
            deployment = nearest / np.array(lenders)[:, None]
            lent.append(scale.shares.deployment * deployment + scale.shares.load * load)
        return lent

    def scales(self, labels: Labels, splits: Float, loads: Float) -> Scales:
        """The scales of cases of a setting."""
        scopes = self.in_common(labels, splits, loads)
        scaled = self.weights * self.priors
        shared_with, told_by = [], []
        for k, lent in enumerate(self._lent(labels, splits, loads, scopes)):
            common = self.prior.scales[k].common(scopes)
            shared_with.append(common[:, self.row] * scaled[:, k])
            told_by.append(shared_with[k] + LENT[k] * lent[:, self.row] * scaled[:, k])
        (own_steps, own_prompts), (steps, prompts) = shared_with, told_by
        solved, inverse = self.believed
        known_steps, known_prompts = steps @ inverse, prompts @ inverse
        counts = [scopes.same[WIDE_TO_NARROW.index(name)] @ self.shows for name in SCOPES]
        return Scales(
            steps=np.exp(steps @ solved),
            prompts=np.exp(prompts @ solved),
            variances=(
                self.priors[0] - (known_steps * (2 * own_steps - steps)).sum(axis=1),
                self.priors[1] - (known_prompts * (2 * own_prompts - prompts)).sum(axis=1),
            ),
            covariance=(known_steps * (prompts - own_prompts)).sum(axis=1)
            - (known_prompts * own_steps).sum(axis=1),
            priors=(float(self.priors[0]), float(self.priors[1])),
            runs=np.stack(counts, axis=2).astype(np.int64),
        )


@dataclass(frozen=True, slots=True, eq=False)
class SettingCorrection:
    """Corrections by own runs to the cases of one setting."""

    runs: DeviceRuns | None
    labels: Labels
    run_count: int

    @property
    def without(self) -> str:
        """Say what a figure rests on that no run tells of."""
        if self.runs is None:
            return f"computed: none of {self.run_count:,} own runs is on this device"
        return "computed"

    def scales(self, cases: Cases) -> Scales | None:
        """Scales of each case; None where no run is on the device.

        Computed once for cases alike: of a search with thousands of splits few differ in what they
        have in common with own runs.
        """
        if self.runs is None:
            return None
        splits, loads = _case_splits(cases), _log_loads(cases)
        deployment = np.zeros(len(cases))
        for k, split in enumerate(np.unique(self.runs.splits, axis=0), 1):
            deployment[(splits == split).all(axis=1)] = k
        points = np.column_stack([deployment, _kin(splits), loads])
        _, first, place = np.unique(points, axis=0, return_index=True, return_inverse=True)
        few = self.runs.scales(self.labels, splits[first], loads[first])
        return few.take(np.asarray(place).reshape(-1))


class LeftOut(NamedTuple):
    """An own run that teaches nothing, and why."""

    name: str
    reason: str


class Stored(NamedTuple):
    """Counts of a calibration's runs: used, waiting for another that agrees, and expired."""

    used: int
    held: int
    expired: int


@dataclass(frozen=True, eq=False)
class Corrections:
    """Corrections by own runs to every setting; ``left_out`` are runs that teach nothing.

    ``stored``: how many of them lie in the calibration of this machine; None where none was asked.
    ``compressed``: what checkpoints that were made here were measured to keep of their base.
    """

    prior: Prior
    runs: tuple[OwnRun, ...]
    left_out: tuple[LeftOut, ...] = ()
    stored: Stored | None = None
    compressed: tuple[MeasuredCompression, ...] = ()

    @cached_property
    def _by_device(self) -> dict[str, DeviceRuns]:
        devices: dict[str, list[OwnRun]] = {}
        for run in self.runs:
            devices.setdefault(run.setting.cluster.device.digest, []).append(run)
        return {device: DeviceRuns(self.prior, runs) for device, runs in devices.items()}

    def of(self, setting: Setting) -> SettingCorrection:
        """Return what they teach about cases of a setting."""
        runs = self._by_device.get(setting.cluster.device.digest)
        return SettingCorrection(runs, Labels.of(setting), len(self.runs))

    @property
    def count(self) -> int:
        """Runs that count."""
        return len(self.runs)

    @property
    def given(self) -> bool:
        """Return whether someone gave runs for the question, beside those of the calibration."""
        return self.stored is None or len(self.runs) > self.stored.used

    @property
    def teach(self) -> bool:
        """Return whether anything counts: runs, or measured checkpoints."""
        return bool(self.runs or self.compressed)

    @cached_property
    def title(self) -> str:
        """Say how many runs count, on which devices, and how many measured checkpoints."""
        names = sorted({run.setting.cluster.device.name for run in self.runs})
        count = len(self.runs)
        on = f" on {', '.join(names)}" if names else ""
        runs = f"{count:,} own run{'s' * (count != 1)}{on}"
        if not self.compressed:
            return runs
        checkpoint_count = len(self.compressed)
        checkpoints = f"{checkpoint_count:,} measured checkpoint{'s' * (checkpoint_count != 1)}"
        return f"{runs} and {checkpoints}" if count else checkpoints

    def to_json(self) -> dict[str, Any]:
        """Return how many runs are used, and which are not, with reasons."""
        left_out = [run._asdict() for run in self.left_out]
        stored = {} if self.stored is None else {"calibration": self.stored._asdict()}
        compressions = {"compressions": len(self.compressed)} if self.compressed else {}
        return {"used": len(self.runs), "left_out": left_out, **compressions, **stored}
