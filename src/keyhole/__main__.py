"""The entry point of `keyhole` and `python -m keyhole`. Ctrl-C exits with code 130, even during imports."""

import sys


def main() -> None:
    """Import the command line and run it."""
    try:
        from keyhole.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
