"""Where it runs: devices, what joins them, what they cost."""
