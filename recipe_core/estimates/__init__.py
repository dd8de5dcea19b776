"""Estimates of a candidate: memory, time, throughput, cost and energy, with bands.

Pure functions over arrays; nothing is read but the package's own data, and nothing is chosen.
"""
