"""Gathers the facts that the commands report, in this process or (compiling) in a worker."""
