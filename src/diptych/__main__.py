"""`python -m diptych`."""

from diptych.cli import main

main()
