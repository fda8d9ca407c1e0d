"""Entry point of ``python -m scalebook``."""

import sys

from scalebook.cli import main

if __name__ == "__main__":
    sys.exit(main())
