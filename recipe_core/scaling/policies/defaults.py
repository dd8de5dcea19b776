"""``defaults.yaml``: what each project sets where a user sets nothing."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.provenance import Remark, Sourced, Status
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.request.scaling import Policy

FILE = DataFile(PACKAGE / "scaling" / "policies" / "defaults.yaml", "options.scaling.policy")


class Default(DataRow):
    """A number that a project sets, 0 included; ``source`` is a key of the file's ``sources``."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: str
    status: Status
    note: Remark | None = None


class PolicyDefaults(DataRow):
    """The numbers of one project, and the version that they were read in."""

    version: Text
    defaults: dict[str, Default]


class Defaults(Sourced):
    """The file."""

    policies: dict[Policy, PolicyDefaults]


@cache
def all_defaults() -> Defaults:
    return FILE.read_as(Defaults)


@cache
def default_of(policy: Policy, name: str) -> float:
    return all_defaults().policies[policy].defaults[name].value
