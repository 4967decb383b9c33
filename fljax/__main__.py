"""`python -m fljax` is `fljax`."""

import sys

from fljax.cli import main

if __name__ == "__main__":
    sys.exit(main())
