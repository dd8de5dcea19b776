"""One split looked at closely: its formulas with numbers, its curves, timetable and tornado.

It estimates again what a plan already chose, and chooses nothing.
"""
