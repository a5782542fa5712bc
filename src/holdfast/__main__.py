"""`holdfast` and `python -m holdfast`: the command line as a program."""

import gc
import sys

_GC_THRESHOLD = 100_000
"""Importing a command creates many objects, and none of them is garbage."""


def main() -> int:
    """Run the command that the program was started with, and return its exit code."""
    gc.set_threshold(_GC_THRESHOLD)
    from holdfast.interfaces.cli.main import main

    try:
        return main()
    finally:
        gc.freeze()  # the program ends: no last collection


if __name__ == "__main__":
    sys.exit(main())
