"""``python -m ratchet``: the command line."""

from ratchet.cli import main

main()
