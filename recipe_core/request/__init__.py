"""What is asked: the request's schema, its link, its edits, presets, and the names of splits.

Plain values in and out. Parsing a request reads no file, asks no network and looks up no name.
"""
