"""The entry point: settles the environment, reads the command line, hands over, and turns errors into exit codes.

Nothing heavy is imported before the command is known: `--help` loads neither torch nor a terminal library.
"""

try:  # the longest part of many a command, which somebody may interrupt as well
    import gc
    import importlib
    import os
    import signal
    import sys
    from collections.abc import Iterator, Sequence
    from contextlib import contextmanager, suppress
    from pathlib import Path

    from interlock.console.cli import ROOMS, parse
    from interlock.console.streams import JsonLog, fill_closed_streams, json_log, leave, streams_put_back, write_ascii
    from interlock.engine.errors import DiskError, ExitCode, InterlockError, Terminated, UsageError, remedy
    from interlock.engine.record.words import LONG, safe
except KeyboardInterrupt:
    raise SystemExit(130) from None

ENVIRONMENT = {
    # A spinning OpenMP barrier costs three times the work's own time when a neighbour holds a core.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Read when the hub's library is imported: no calls home, nothing drawn over the screen.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Where memory is refused, Arrow's other pools end the process with a signal; this one raises.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
FEW_SEARCHES = 50_000
"""New objects after which garbage is looked for: importing makes many that stay, and takes an eighth longer by 700."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Without `arguments` it is this process's own, which ends with it."""
    if arguments is None:
        fill_closed_streams()
        gc.set_threshold(FEW_SEARCHES)
        with json_log(sys.argv[1:]):
            # What is not ours to end (a thread in a library, a handler of it) would change the code or abort, and the
            # interpreter's last search for garbage takes 0.4 s.
            leave(_exit_code(sys.argv[1:]))
    with signals_put_back(), streams_put_back(), json_log(arguments):
        return _command(arguments)


@contextmanager
def signals_put_back() -> Iterator[None]:
    """Give back the signals that a run keeps to the end of its process, in a process that goes on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@contextmanager
def _bundle(directory: Path | None) -> Iterator[None]:
    """Have models looked for in this bundle first, while a command works."""
    before = os.environ.get("INTERLOCK_MODELS")
    if directory:
        os.environ["INTERLOCK_MODELS"] = str(directory)
    try:
        yield
    finally:
        if directory:
            os.environ.pop("INTERLOCK_MODELS")
            os.environ |= {"INTERLOCK_MODELS": before} if before else {}


def _exit_code(arguments: Sequence[str]) -> int:
    """Run one command, and put out all that it said; the exit code."""
    try:
        code = _command(arguments)
    except SystemExit as ended:  # of the parser, that has said what it had to say
        code = int(ended.code or 0)
    lost = _lost_output()
    return code or (_refuse(lost) if lost else code)


def _lost_output(*, failed: bool = False) -> DiskError | None:
    """Put out what stdout still holds; why that cannot be, or why not what `failed` before. None where whoever read it
    has gone."""
    try:
        sys.stdout.flush()
        if failed:  # of a long text nothing is held then, so that only another try says it
            with suppress(ValueError):  # of a stream without a descriptor
                os.write(sys.stdout.fileno(), b"")
    except BrokenPipeError:
        return None
    except OSError as error:
        return DiskError(f"cannot write stdout: {error.strerror or error}; {remedy(error)}")
    return None


def _command(arguments: Sequence[str]) -> int:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    write_ascii()
    try:
        _check_working_directory()
        options = parse(arguments)
        room = ROOMS.get(options.command, "commands")  # alone, since the others would cost as much again
        with _bundle(getattr(options, "models", None)):
            return int(getattr(importlib.import_module(f"interlock.console.{room}"), options.command)(options))
    except InterlockError as error:
        return _refuse(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.COMPLETED
    except KeyboardInterrupt as cut:
        return ExitCode.TERMINATED if isinstance(cut, Terminated) else ExitCode.INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # a panic of the libraries in Rust is none of the exceptions
        from interlock.engine.crash import reportable

        lost = _lost_output(failed=True) if isinstance(error, OSError) else None
        return _refuse(lost or reportable(error))


def _check_working_directory() -> None:
    """Raise UsageError where it was removed: the libraries that compute would end the process."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory does not exist any more: choose another with `cd`") from None


def _refuse(error: InterlockError) -> int:
    """Say why; the exit code that says it too."""
    if isinstance(sys.stderr, JsonLog):
        sys.stderr.record(safe(str(error), LONG), "error", "refused", exit_code=int(error.exit_code))
        return error.exit_code
    for line in str(error).splitlines():
        with suppress(OSError, ValueError):
            print(f"interlock: {safe(line, LONG)}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
