"""Exit codes of `mjt`, and the error that ends a command with one line on stderr."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit status of every `mjt` command means."""

    CLEAN = 0
    FINDINGS = 1
    BAD_USE = 2
    NOT_SUPPORTED = 3
    INTERRUPTED = 130


class CliError(Exception):
    """Ends a command: `message` becomes one line on stderr, `code` the exit status."""

    def __init__(self, message: str, code: ExitCode = ExitCode.BAD_USE):
        super().__init__(message)
        self.message = one_line(message)
        self.code = code


def one_line(text: str, limit: int = 400) -> str:
    """The text on one line, cut after `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
