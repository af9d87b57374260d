"""Small text files that a command is given by name."""

from pathlib import Path

from serving.errors import Misconfigured


def read_lines(path: Path, *, reason: str) -> list[str]:
    """Return the lines of a file in UTF-8, with or without a byte order mark.

    Raises:
        Misconfigured: `reason`, it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise Misconfigured(reason, f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Misconfigured(reason, f"{path} cannot be read: it is not UTF-8") from error
