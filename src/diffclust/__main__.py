"""The entry point of ``diffclust ...`` and ``python -m diffclust ...``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from diffclust.cli import app
    except ImportError as error:
        print(f"Error: {error}. The command line needs: pip install 'diffclust[fit]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="diffclust")


if __name__ == "__main__":
    main()
