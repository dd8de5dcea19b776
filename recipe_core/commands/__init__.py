"""Engines' command lines that somebody already has: from text to a candidate, and back. Nothing is ever executed."""
