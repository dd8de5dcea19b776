"""Where a launch is started: one module a target, each a function from a Context to files."""
