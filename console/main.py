"""The entry point: settles the environment, reads the command line, hands over, and turns errors into exit codes.

Nothing heavy is imported before the command is known: `--help` loads neither torch nor a terminal library.
"""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from interlock.console.cli import parse
from interlock.engine.errors import ExitCode, InterlockError
from interlock.engine.record.safe import safe

ENVIRONMENT = {
    # A spinning OpenMP barrier costs three times the work's own time when a neighbour holds a core.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Read when the hub's library is imported: no calls home, nothing drawn over the screen.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Where memory is refused, Arrow's other pools end the process with a signal; this one raises.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    atexit.register(gc.freeze)  # the interpreter looks for garbage before it ends: what torch left takes 0.4 s
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        from interlock.console import commands

        return int(getattr(commands, options.command)(options))
    except InterlockError as error:
        return _refuse(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.COMPLETED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # a panic of the libraries in Rust is none of the exceptions
        from interlock.console.crash import reportable

        return _refuse(reportable(error))


def _refuse(error: InterlockError) -> int:
    """Say why; the exit code that says it too."""
    for line in str(error).splitlines():
        with suppress(OSError, ValueError):
            print(f"interlock: {safe(line)}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
