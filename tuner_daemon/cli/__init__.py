"""The command ``tunerd``. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys


def main() -> None:
    """Exit code 0: done; 1: the work failed; 2: the call was wrong. Errors are one line on stderr."""
    from tuner_daemon.cli.app import app
    from tuner_daemon.errors import InputError, TunerError

    try:
        app()
    except InputError as error:
        print(f"tunerd: {error}", file=sys.stderr)
        sys.exit(2)
    except TunerError as error:
        print(f"tunerd: {error}", file=sys.stderr)
        sys.exit(1)
