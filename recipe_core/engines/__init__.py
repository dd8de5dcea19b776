"""Engines: what they are (YAML) and how they are told (one small module each)."""
