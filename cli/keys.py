"""`twostage keys`: make API keys, and check the file that lists them."""

import re
from pathlib import Path
from typing import Annotated

import typer

from cli import options
from cli.calls import reported
from cli.console import answers, note, print_json
from gateway.scopes import scopes_of
from serving.keys import NAME, Keyring, create_key
from serving.watched import Watched

app = typer.Typer(help="Make API keys, and check the file that lists them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Who will use it; letters, digits, '_' and '-'.")]
Scope = Annotated[str, typer.Option(metavar="SCOPE", help="Table [scopes.SCOPE] that says what it may see and do.")]
Rate = Annotated[float | None, typer.Option(min=0.001, metavar="NUMBER", help="Most requests per second.")]
Burst = Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Most requests at once after a pause.")]
Calls = Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Most calls at the same time.")]
KeysFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys.")]
ForGateway = Annotated[bool, typer.Option("--scopes/--no-scopes", help="Whether scopes are read, as the gateway does.")]


@app.command()
def create(
    name: Name,
    scope: Scope = "",
    requests_per_s: Rate = None,
    burst: Burst = None,
    max_calls: Calls = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a key: print it, once, and the line for the table [keys] of the servers' file, which does not hold it."""
    if not re.fullmatch(NAME, name):
        raise typer.BadParameter("1 to 64 letters, digits, '_' and '-' are wanted", param_hint="NAME")
    made = create_key()
    fields: dict[str, str | float | None] = {
        "id": made.id,
        "sha256": made.sha256,
        "scope": scope or None,
        "requests_per_s": requests_per_s,
        "burst": burst,
        "max_calls": max_calls,
    }
    line = _line(name, fields)
    if as_json:
        print_json({"key": made.key, "line": line})
        return
    note("the key, which is shown only now:", "bold")
    answers().print(made.key, soft_wrap=True)
    note("under [keys] in the servers' file of keys:", "bold")
    answers().print(line, soft_wrap=True)


@app.command()
def check(file: KeysFile, scopes: ForGateway = True) -> None:
    """Read a file of keys as a server would; exits 2 and says why where a server would refuse it."""
    with reported():
        keyring = Watched([file], lambda contents: Keyring.parse(contents[0], scopes_of if scopes else None)).current()
    for name in keyring.names:
        answers().print(name, soft_wrap=True)


def _line(name: str, fields: dict[str, str | float | None]) -> str:
    """Write a line of TOML; none of the values needs escaping but the scope's name."""
    written = ", ".join(f"{key} = {_value(value)}" for key, value in fields.items() if value is not None)
    return f"{name} = {{ {written} }}"


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{value:g}" if isinstance(value, float) else str(value)
