"""``python -m recipe_core`` is ``recipe``."""

from recipe_core.cli import main

main()
