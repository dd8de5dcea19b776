"""Payloads of bundles: the launcher, the embedded trainer, the compressor.

Each folder imports nothing of the package but itself, by relative imports, and is copied whole.
"""
