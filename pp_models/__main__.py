"""The command line: `python -m pp_models`, also installed as `pp-models`."""

import sys

from inference.cli import main

if __name__ == "__main__":
    sys.exit(main())
