"""``diffclust ...`` and ``python -m diffclust ...``."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from diffclust.cli import run
    except ImportError as error:
        sys.exit(f"{error}\nThe command line needs: pip install 'diffclust[fit]'")
    run()


if __name__ == "__main__":
    main()
