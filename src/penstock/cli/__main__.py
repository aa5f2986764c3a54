"""`python -m penstock.cli`, where the command is not on PATH."""

from penstock.cli import main

main()
