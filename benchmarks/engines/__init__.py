"""One module per engine; each has MODES, VERSIONS and `make(task)`, which prepares an engine."""
