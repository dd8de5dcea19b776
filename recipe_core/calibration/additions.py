"""The file of a calibration: measured runs as they were added, read and written whole.

Writers take turns by a lock beside it.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.base.documents import (
    MAX_DOCUMENT_BYTES,
    make_lasting_folder,
    parse_json,
    read_text,
    to_json,
)
from recipe_core.base.documents import write_whole as write_file
from recipe_core.base.errors import InputError
from recipe_core.base.types import Positive, Text
from recipe_core.calibration import run_checks
from recipe_core.calibration.compressions import StoredCompression
from recipe_core.calibration.place import (
    VARIABLE,
    calibration_file,
)
from recipe_core.calibration.residuals import Measured

SCHEMA_VERSION = 1
FIELD = "calibration"
_Short = Annotated[str, Field(max_length=4096)]


class StoredRun(BaseModel):
    """A measured run as a file of calibrations holds it: SI units, days as YYYY-MM-DD."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    """Digest of what was measured: a run that is added twice is stored once."""
    name: Text
    """Its name in the file it came from."""
    source: _Short
    """The file it came from."""
    format: Text
    """Kind of that file: ``bundle``, ``table``, or the tool that wrote it."""
    added: datetime.datetime
    """When it was added."""
    assumed_version: _Short
    """Version of its engine that estimates assumed then."""
    version: _Short = ""
    """Version that ran; empty for the assumed one."""
    request: dict[str, Any]
    """What ran, as a request with its split."""
    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    request_latency_s: Positive | None = None
    output_tokens_per_s: Positive | None = None
    step_s: Positive | None = None
    excluded: _Short = ""
    """A reason of the source not to count it."""
    date: datetime.date | None = None
    """Day of the measurement."""
    requests: Annotated[int, Field(ge=0)] | None = None
    failed: Annotated[int, Field(ge=0)] | None = None
    driver: _Short = ""
    machine: _Short = ""

    def measured(self) -> Measured:
        """The run, named by its id."""
        values = {name: getattr(self, name) for name in Measured.__slots__ if name != "name"}
        return Measured(name=self.id, **values)

    @classmethod
    def of(cls, run: Measured, source: str, kind: str, now: datetime.datetime) -> Self:
        """A run that is added now."""
        figures = {name: getattr(run, name) for name in Measured.__slots__ if name != "name"}
        identity = [run.request, run.version, *(figures[name] for name in FIGURES)]
        digest = hashlib.sha256(to_json(identity, indent=None).encode()).hexdigest()[:12]
        return cls(
            id=digest,
            name=run.name,
            source=source,
            format=kind,
            added=now,
            assumed_version=run_checks.pinned_version(run),
            **{**figures, "request": dict(run.request)},
        )


FIGURES = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s", "step_s")


class Addition(BaseModel):
    """What was added together, which ``undo`` takes back together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    added: datetime.datetime
    runs: tuple[StoredRun, ...]
    compressions: tuple[StoredCompression, ...] = ()

    @property
    def all(self) -> tuple[StoredRun | StoredCompression, ...]:
        return (*self.runs, *self.compressions)


class Document(BaseModel):
    """The file of a calibration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1]
    additions: tuple[Addition, ...]


# The file


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
