"""`python -m mjt_cli` is `mjt`."""

from mjt_cli.app import main

main()
