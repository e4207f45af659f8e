"""`python -m gpuconsole` is the same program as `gpuconsole`."""

import sys

from gpuconsole.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
