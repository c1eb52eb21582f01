"""The command `ettsweep`, also as `python -m ettsweep`: Ctrl-C is heard from its first instant."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from ettsweep import cli

        cli.main()
    except KeyboardInterrupt:
        print("ettsweep: interrupted; what was submitted goes on", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
