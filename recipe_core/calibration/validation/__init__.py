"""Estimates held against measured runs: errors, intervals, causes.

Reads tables of runs; learns nothing and keeps nothing.
"""
