"""`python -m retrograd`: the command line."""

import sys

from retrograd.cli import main

if __name__ == "__main__":
    sys.exit(main())
