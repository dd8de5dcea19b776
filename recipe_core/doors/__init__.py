"""The ways in: command line, JSON API, agents' tools, the server of the pages.

Doors parse, ask and print; there is no arithmetic, and nothing below knows of them. May import
every room before it.
"""
