"""The file of a calibration: measured runs and checkpoints as they were added, read and written.

It is written whole; writers take turns by a lock beside it.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.accuracy.checkpoints import MeasuredCompression, Share
from recipe_core.base.documents import (
    MAX_DOCUMENT_BYTES,
    make_lasting_folder,
    parse_json,
    read_text,
    to_json,
)
from recipe_core.base.documents import write_whole as write_file
from recipe_core.base.errors import InputError
from recipe_core.base.provenance import VALID_DAYS
from recipe_core.base.types import Positive, Text
from recipe_core.calibration.place import VARIABLE, calibration_file
from recipe_core.calibration.residuals import Measured

SCHEMA_VERSION = 1
FIELD = "calibration"
FIGURES = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s", "step_s")
_Short = Annotated[str, Field(max_length=4096)]


@dataclass(frozen=True, slots=True)
class Gate:
    """A verdict on a record: ``accepted``, ``held`` or ``expired``, and why it does not count."""

    state: str = "accepted"
    reason: str = ""


ACCEPTED = Gate()


class _Stored(BaseModel):
    """Common fields of records; ``gate`` is of the day of a question, and is not in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    """Digest of what was measured: what is added twice is stored once."""
    source: _Short
    """The file it came from."""
    added: datetime.datetime
    """When it was added."""
    date: datetime.date | None = None
    """Day of the measurement."""
    gate: Gate = Field(default=ACCEPTED, exclude=True)

    @property
    def counts(self) -> bool:
        return self.gate.state == "accepted"

    @property
    def expired(self) -> str:
        """Say why it has expired; empty where it has not."""
        return self.gate.reason if self.gate.state == "expired" else ""

    @property
    def expires(self) -> datetime.date:
        return (self.date or self.added.date()) + datetime.timedelta(days=VALID_DAYS)

    def gated(self, gate: Gate) -> Self:
        return self.model_copy(update={"gate": gate})


def _digest(values: Any) -> str:
    return hashlib.sha256(to_json(values, indent=None).encode()).hexdigest()[:12]


class StoredRun(_Stored):
    """A measured run: SI units, days as YYYY-MM-DD."""

    name: Text
    """Its name in the file it came from."""
    format: Text
    """Kind of that file: ``bundle``, ``table``, or the tool that wrote it."""
    assumed_version: _Short
    """Version of its engine that estimates assumed then."""
    version: _Short = ""
    """Version that ran; empty for the assumed one."""
    request: dict[str, Any]
    """What ran, as a request with its layout."""
    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    request_latency_s: Positive | None = None
    output_tokens_per_s: Positive | None = None
    step_s: Positive | None = None
    excluded: _Short = ""
    """A reason of the source not to count it."""
    requests: Annotated[int, Field(ge=0)] | None = None
    failed: Annotated[int, Field(ge=0)] | None = None
    driver: _Short = ""
    machine: _Short = ""

    @property
    def engine(self) -> str:
        return self._request_name("candidate", "engine")

    @property
    def device(self) -> str:
        return self._request_name("hardware", "device")

    @property
    def ran(self) -> str:
        return self.version or self.assumed_version

    def _request_name(self, part: str, name: str) -> str:
        """A name in a part of its request; that of a device which is given as a profile."""
        values = self.request.get(part)
        value = values.get(name) if isinstance(values, Mapping) else None
        if isinstance(value, Mapping):
            value = value.get("name")
        return "" if value is None else str(value)

    @property
    def measured(self) -> Measured:
        """The run, named by its id."""
        values = {name: getattr(self, name) for name in Measured.__slots__ if name != "name"}
        return Measured(name=self.id, **values)

    @classmethod
    def of(
        cls, run: Measured, source: str, kind: str, now: datetime.datetime, assumed: str
    ) -> Self:
        """A run that is added now; ``assumed``: the version of its engine in estimates."""
        values = {name: getattr(run, name) for name in Measured.__slots__}
        identity = [run.request, run.version, *(values[name] for name in FIGURES)]
        values |= {"id": _digest(identity), "source": source, "format": kind, "added": now}
        return cls(**{**values, "assumed_version": assumed, "request": dict(run.request)})

    def to_json(self) -> dict[str, Any]:
        names = ("id", "name", "source", "format", "engine", "device", "driver", "machine")
        figures = {name: getattr(self, name) for name in FIGURES}
        return {
            **{name: getattr(self, name) for name in names},
            "added": self.added.isoformat(),
            "measured": self.date.isoformat() if self.date else None,
            "expires": self.expires.isoformat(),
            "version": self.ran,
            "request": self.request,
            "requests": self.requests,
            "failed": self.failed,
            "figures": {name: value for name, value in figures.items() if value is not None},
            "gate": asdict(self.gate),
        }


class StoredCompression(_Stored):
    """A measured checkpoint; days as YYYY-MM-DD."""

    model: Text
    """The base: an id of the hub, or a folder."""
    technique: Text
    """What was done to it, by the names of ``recipe_core/accuracy/techniques.yaml``."""
    method: _Short = ""
    """The algorithm."""
    tool: _Short = ""
    """The program that did it, with its version."""
    retained: Share
    """Perplexity of the base over that of the result: 1 where nothing is lost."""
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of equal tokens in greedy answers."""
    tokens: Annotated[int, Field(ge=1)]
    """Tokens of the text."""
    text: _Short = ""
    """File of the text; empty for the bundle's own."""
    date: datetime.date
    """Day of the measurement."""
    bundle_digest: _Short = ""
    """Digest of the recipe whose bundle measured it."""

    @property
    def name(self) -> str:
        return f"{self.model} {self.technique}"

    @property
    def measured(self) -> MeasuredCompression:
        names = MeasuredCompression.__slots__
        return MeasuredCompression(**{name: getattr(self, name) for name in names})

    @classmethod
    def of(cls, run: MeasuredCompression, source: str, now: datetime.datetime) -> Self:
        """A measurement that is added now."""
        values = run.to_json()
        return cls.model_validate({**values, "id": _digest(values), "source": source, "added": now})

    def to_json(self) -> dict[str, Any]:
        return {
            **self.model_dump(mode="json"),
            "added": self.added.isoformat(),
            "expires": self.expires.isoformat(),
            "counts": self.counts,
        }


Stored = StoredRun | StoredCompression


class Addition(BaseModel):
    """Records that were added together, which ``undo`` takes back together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    added: datetime.datetime
    runs: tuple[StoredRun, ...]
    compressions: tuple[StoredCompression, ...] = ()

    @property
    def all(self) -> tuple[Stored, ...]:
        return (*self.runs, *self.compressions)


class Document(BaseModel):
    """The file of a calibration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1]
    additions: tuple[Addition, ...]


def read_additions(file: Path) -> tuple[Addition, ...]:
    if not file.exists():
        return ()
    try:
        values = parse_json(read_text(file, field=FIELD), str(file))
        if isinstance(values, Mapping) and values.get("schema_version") not in (None, 1):
            raise InputError(
                f"{file} has the format {values['schema_version']!r:.20}; this version reads "
                f"{SCHEMA_VERSION}.",
                field=FIELD,
                hint="Update recipe-builder.",
            )
        return Document.model_validate(values).additions
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        reason = f"{where}: {first['msg']}"
    except InputError as error:
        if error.hint == "Update recipe-builder.":
            raise
        reason = error.message
    raise InputError(
        f"the calibration {file} is damaged: {reason:.300}",
        field=FIELD,
        hint=f"Restore it, empty it (recipe calibrate --clear), or do without: {VARIABLE}= .",
    )


def write_additions(file: Path, additions: tuple[Addition, ...]) -> None:
    document = Document(schema_version=1, additions=additions)
    values = document.model_dump(mode="json", exclude_defaults=False)
    for addition in values["additions"]:
        if not addition["compressions"]:  # versions that know none read the file
            del addition["compressions"]
    data = to_json(values).encode()
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InputError(
            f"{file} would have {len(data):,} bytes; the limit is {MAX_DOCUMENT_BYTES:,}.",
            field=FIELD,
            hint="Take some runs back: recipe calibrate --undo.",
        )
    write_file(file, data)


@contextmanager
def calibration_lock(path: Path) -> Iterator[None]:
    """Wait for other writers of the calibration; the lock ends with the process that holds it."""
    file = calibration_file(path)
    try:
        make_lasting_folder(file.parent)
        lock = file.with_name(f".{file.name}.lock").open("a")
    except OSError as error:
        raise InputError(
            f"cannot write {file}: {error.strerror}.", field=FIELD, hint="Choose another --into."
        ) from None
    with lock:
        with suppress(ImportError):  # systems without it have one writer
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
