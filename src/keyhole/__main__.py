"""The way in, as `keyhole` and as `python -m keyhole`. Ctrl-C is exit code 130, even while modules are imported."""

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
