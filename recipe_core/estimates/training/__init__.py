"""Estimates of a training split: memory of every stage, time of a step, the whole run.

Pure functions over cases and stages. From layers to a schedule, from steps to a run with failures
and checkpoints; ``estimates`` is the one call.
"""
