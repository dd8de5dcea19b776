"""``python -m recipe_core`` is ``recipe``."""

from recipe_core.doors.cli import main

main()
