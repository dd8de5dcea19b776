"""What goes wrong in an experiment."""

from __future__ import annotations

from recipe_core.base.errors import RecipeError


class TrialError(RecipeError):
    """A deployment under test could not be started, asked or measured; ``detail`` has its log."""

    code = "trial"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, detail: str = "") -> None:
        super().__init__(message, hint=hint)
        self.detail = detail
