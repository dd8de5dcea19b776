"""Ranges of sizes that estimates propose, against the sizes of all measured runs.

    python scripts/accuracy_sizes.py TRUTH_DIR

``recipe validate --sizes`` says the same of the runs that are shipped.
"""

from __future__ import annotations

import sys
from pathlib import Path

import publish_runs

from recipe_core.calibration.validation.comparison import compare_with_estimates
from recipe_core.calibration.validation.sizes import sizes_text

if __name__ == "__main__":
    measured = publish_runs.as_runs(publish_runs.published_serving_runs(Path(sys.argv[1])))
    print(sizes_text(compare_with_estimates([run for run in measured if not run.exclude]).figures))
