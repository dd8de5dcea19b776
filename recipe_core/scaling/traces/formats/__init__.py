"""Formats of traces, one module each, and what they share.

A format knows its files by their first line or the columns of their head (``registry.py``), reads
them as columns of text (``columns.py``) and hands over requests as they stand there
(``requests.py``): unsorted, failed ones among them.
"""
