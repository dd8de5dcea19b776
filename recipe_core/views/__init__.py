"""Answers as people read them: charts, tables, reports, explanations, text.

It lays out what other rooms answer, decides nothing and prints nothing.
"""
