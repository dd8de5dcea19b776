"""Engines' command lines that somebody already has: from text to a candidate, and back.

Text is read with suspicion and nothing is ever executed; verdicts come from ``plans``.
"""
