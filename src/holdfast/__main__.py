"""`python -m holdfast`: the command line."""

import sys

from holdfast.interfaces.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
