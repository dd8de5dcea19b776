"""Training: memory by rank and stage, time of a step, a whole run, and the best split."""
