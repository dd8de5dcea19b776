"""Micro-benchmarks of this machine: what its profile is fitted to.

Products, attention, memory, copies, links, disks and the host, each as points of work and seconds.
The only place in this room that loads torch, and only when a profile is measured.
"""
