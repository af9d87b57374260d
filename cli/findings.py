"""What a check of a machine found, and the table of it: shared by `twostage doctor` and `twostage preflight`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

State = Literal["good", "note", "bad"]
MARKS = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "bold red")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    value: str
    state: State = "good"
    """`note`: worth knowing; `bad`: what is being checked would stop at it."""
    todo: str = ""


Sections = Mapping[str, Sequence[Finding]]
"""Findings by heading."""


def bad_of(sections: Sections) -> list[Finding]:
    """Return the findings that something would stop at."""
    return [finding for findings in sections.values() for finding in findings if finding.state == "bad"]


def document(sections: Sections) -> dict[str, Any]:
    """Return the findings for programs."""
    found = {name: [asdict(finding) for finding in findings] for name, findings in sections.items()}
    return {"ready": not bad_of(sections), "sections": found}


def print_findings(console: Console, sections: Sections) -> None:
    """Print the findings as a table."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, findings in sections.items():
        table.add_row("", Text(name, "bold not dim"), "")
        for finding in findings:
            mark, style = MARKS[finding.state]
            value = Text(finding.value)
            if finding.todo:
                value.append(f"\n-> {finding.todo}", style)
            table.add_row(Text(mark, style), finding.name, value)
    console.print(table)
