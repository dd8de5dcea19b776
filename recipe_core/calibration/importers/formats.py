"""What every importer is: a name, and two functions of a file's content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recipe_core.calibration.importers.content import Content
from recipe_core.calibration.importers.imported import Imported


@dataclass(frozen=True)
class Format:
    """One format: whether a content is of it, and what such a content states."""

    name: str
    title: str
    recognises: Callable[[Content], bool]
    read: Callable[[Content], list[Imported]]
