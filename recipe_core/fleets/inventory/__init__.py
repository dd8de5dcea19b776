"""Inventories: machines, quotas and costs that clusters and people already list, read as pools.

Nodes of Kubernetes, Slurm's ``sinfo``, SkyPilot, a CSV, Kueue's queues, an OpenCost allocation.
"""
