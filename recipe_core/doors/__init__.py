"""The ways in: command line, JSON API, MCP tools for agents, the server of the pages.

Doors parse, call and print; they compute nothing, and no other room knows of them.
"""
