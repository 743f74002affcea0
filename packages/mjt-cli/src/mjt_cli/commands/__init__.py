"""One module per subcommand of `mjt`."""
