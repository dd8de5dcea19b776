"""Requests: their schema, link, edits, presets, and the names of splits.

Plain values in and out. Parsing a request reads no file, asks no network and looks up no name.
"""
