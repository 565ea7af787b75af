"""The few exceptions a person can act on, each with the exit code that means it.

Raised anywhere in the engine, rendered once by the front end. A message says what was wrong, where
(file, record, model, device) and what to do.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says when it ends; the numbers are an interface and never change."""

    COMPLETED = 0
    FAILED = 1
    USAGE = 2
    MITIGATED = 3
    STOPPED = 4
    UNAVAILABLE = 5
    HANGUP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.COMPLETED: "completed",
    ExitCode.FAILED: "failed, or a collection is incomplete",
    ExitCode.USAGE: "usage, configuration or input that cannot be used; nothing was done",
    ExitCode.MITIGATED: "completed with mitigations under --strict",
    ExitCode.STOPPED: "stopped by the operator, resumable",
    ExitCode.UNAVAILABLE: "no usable device or model",
    ExitCode.HANGUP: "hang-up (reserved for the console)",
    ExitCode.INTERRUPTED: "interrupted, resumable",
    ExitCode.TERMINATED: "terminated, resumable",
}


class InterlockError(Exception):
    """A run cannot go on; `exit_code` says how the process ends."""

    exit_code: ExitCode = ExitCode.FAILED


class UsageError(InterlockError):
    """The command, the configuration or the input cannot be used as given."""

    exit_code = ExitCode.USAGE


class UnavailableError(InterlockError):
    """A model or a device that the run needs is not to be had."""

    exit_code = ExitCode.UNAVAILABLE


class Stopped(InterlockError):
    """The operator stopped the run; it can be resumed."""

    exit_code = ExitCode.STOPPED
