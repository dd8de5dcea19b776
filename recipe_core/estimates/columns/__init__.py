"""Candidates as columns: every split of a cluster with its settings.

One array a field, one row a candidate; nothing here estimates.
"""
