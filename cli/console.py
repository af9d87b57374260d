"""Where commands write: the answer to standard output, everything else to standard error; and how they exit."""

import json
import sys
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

EXIT_NOT_SO = 1
"""What was asked about is not so, or a part of the work failed."""
EXIT_MISCONFIGURED = 2
"""Wrong usage, or an operator has to act."""
EXIT_UNREACHABLE = 69
"""A server cannot be reached, is full or had no time (sysexits: EX_UNAVAILABLE)."""
EXIT_FAULT = 70
"""A server failed on its own (sysexits: EX_SOFTWARE)."""

EXIT_CODES = (
    "Exit status: 0 done; 1 not so, or a part failed; 2 wrong usage or configuration; 69 a server cannot be reached, "
    "is full or had no time; 70 a server failed."
)
UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


def answers() -> Console:
    """Return the console of answers; made anew for each use, because it looks at the stream when it is made."""
    return Console(highlight=False, markup=False, emoji=False)


def notes() -> Console:
    """Return the console of everything that is no answer."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_json(document: Any) -> None:
    """Write one JSON document, the whole answer under `--json`."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def note(line: str, style: str = "") -> None:
    """Write one line for people."""
    notes().print(Text(line, style), soft_wrap=True)


def fail(code: int, line: str, todo: str = "") -> NoReturn:
    """Write what is wrong and, on a second line, what to do about it; then exit.

    Raises:
        typer.Exit: Always.
    """
    notes().print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
    if todo:
        notes().print(Text.assemble(("  -> ", "bold"), todo), soft_wrap=True)
    raise typer.Exit(code)


def one_line(text: str) -> str:
    """Make stored text fit to be shown: white space becomes one blank, and nothing steers the terminal."""
    return "".join(char if char.isprintable() else UNPRINTABLE for char in " ".join(text.split()))


def size(byte_count: int) -> str:
    """Write a number of bytes for people, for example "118.3 MB"."""
    value, units = float(byte_count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:  # noqa: PLR2004 - decimal units
        value, units = value / 1000, units[1:]
    return f"{byte_count} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
