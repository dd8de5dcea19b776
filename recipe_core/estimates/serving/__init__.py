"""Estimates of a serving split: memory, latency, throughput, cost.

Pure functions over arrays of cases. From the work of a step to its time, from steps to requests
under load, from means to percentiles; ``estimates`` is the one call.
"""
