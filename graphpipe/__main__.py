"""`python -m graphpipe`, as torchrun starts it."""

import sys

from graphpipe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
