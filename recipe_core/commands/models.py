"""Models that commands name."""

from __future__ import annotations

from recipe_core.base.errors import ModelError, RecipeError
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.spec import ModelSpec


class Models:
    """Models by name, each looked up once."""

    def __init__(self, folders: bool) -> None:
        self.folders = folders
        self._known: dict[str, ModelSpec | RecipeError] = {}

    def named(self, name: str) -> ModelSpec:
        """The model of a name; raises what looking it up raised."""
        if name not in self._known:
            try:
                self._known[name] = load_model_spec(name, folders=self.folders)
            except RecipeError as error:
                self._known[name] = error
            except (OSError, RuntimeError, ValueError) as error:  # no path can have this name
                message = f"{name[:80]!r} is not a model: {error}."
                hint = "Give a catalog id or a folder."
                self._known[name] = ModelError(message, field="model", hint=hint)
        model = self._known[name]
        if isinstance(model, RecipeError):
            raise model
        return model
