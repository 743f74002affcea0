"""Gathers the facts that the commands report: in this process (models, environment) or in a worker (compiling)."""
