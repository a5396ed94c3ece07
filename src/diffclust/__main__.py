"""``diffclust ...`` and ``python -m diffclust ...``."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from diffclust.cli import run
    except ImportError as error:
        print(f"Error: {error}. The command line needs: pip install 'diffclust[fit]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
