"""A chosen split as what starts it: processes, their words, the files they read.

Nothing is started here: words are typed, known to the engine's version, and rendered to argv.
"""
