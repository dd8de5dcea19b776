"""What came of a policy of scaling over a load, as a request carries it to its bundle."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from recipe_core.base.described import DESCRIBED
from recipe_core.base.types import Text

Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class Simulated(BaseModel):
    """What ``options.scaling`` came to when it was simulated; ``recipe simulate -o`` writes it."""

    model_config = DESCRIBED

    of: Text
    """Digest of what was simulated: model, device, split, load, limits on time, policy and start.
    Of a request that was changed since, the figures are not repeated."""

    min_replicas: Amount
    """Fewest replicas that there were, starting ones included."""

    mean_replicas: Amount
    """Replicas on average over the time."""

    max_replicas: Amount
    """Most replicas that there were."""

    device_hours_per_month: Amount
    """Hours of devices that are paid in a month of 365.25 / 12 days."""

    attainment: Annotated[float, Field(ge=0, le=1)]
    """Share of requests that kept every limit on time."""
