"""The reference documents: docs/settings.md and docs/errors.md list what the code has, no less and no more."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
import pytest
import typer.main
from deploy_files import REPOSITORY, SETTINGS
from pydantic.fields import FieldInfo

from cli.access import API_KEY_VARIABLE
from cli.main import app
from gateway import encoder_client, reranker_client
from gateway.pool import NOT_NOW
from gateway.ports import ANSWER_TOO_LARGE
from serving.errors import Misconfigured, Unavailable
from serving.status import CODES, reason_of

SETTINGS_TEXT = (REPOSITORY / "docs/settings.md").read_text(encoding="utf-8")
ERRORS_TEXT = (REPOSITORY / "docs/errors.md").read_text(encoding="utf-8")

# --- settings ------------------------------------------------------------------------------------------------------

SERVERS: Mapping[str, Sequence[str]] = {
    "all": ("encoder", "reranker", "gateway"),
    "models": ("encoder", "reranker"),
    **{name: (name,) for name in SETTINGS},
}
SETTING = re.compile(r"^\| `(TWOSTAGE_[A-Z*_]+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
OPTION = re.compile(r"^\| `(TWOSTAGE_[A-Z_]+)` \|(?: `(--[a-z-]+)`)? \| [^|]+ \|$", re.MULTILINE)


def settings_rows() -> list[tuple[str, str, str]]:
    """Return variable, default and values of every row, once for each server that it is of."""
    return [
        (pattern.replace("*", name.upper()), default.strip("`"), values)
        for pattern, servers, default, values in SETTING.findall(SETTINGS_TEXT)
        for name in SERVERS[servers]
    ]


def settings_fields() -> dict[str, FieldInfo]:
    """Return every setting of the three servers by its variable."""
    return {
        f"{kind.prefix}{name}".upper(): field for kind in SETTINGS.values() for name, field in kind.model_fields.items()
    }


def said_default(field: FieldInfo) -> str:
    """Write a default as the document does: as one would set it."""
    value = field.default
    if field.is_required():
        return "required"
    if value is None or value == "":
        return "none" if value is None else "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def said_values(field: FieldInfo) -> str:
    """Write what a setting may be as the document does, as a pattern; of a text or an address it may say anything."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType] or [field.annotation]
    if get_origin(field.annotation) is Literal:
        return re.escape(", ".join(get_args(field.annotation)))
    if kinds in ([bool], [Path]):
        return "true or false" if kinds == [bool] else "file|directory"
    bounds = {name: getattr(one, name) for one in field.metadata for name in ("ge", "gt", "le") if hasattr(one, name)}
    match bounds:
        case {"ge": least, "le": most}:
            return f"{least} to {most}"
        case {"ge": least}:
            return rf"(\w+, )?at least {least}"
        case {"gt": over}:
            return rf"(\w+, )?over {over}"
    return ".+"


def test_every_setting_is_documented_once_and_every_documented_one_exists() -> None:
    """The tables of docs/settings.md name the variables of the three servers' settings, each once."""
    rows = [variable for variable, _, _ in settings_rows()]
    assert len(rows) == len(set(rows))
    assert set(rows) == settings_fields().keys()


@pytest.mark.parametrize(("variable", "default", "values"), settings_rows())
def test_a_documented_default_and_range_are_the_setting_s(variable: str, default: str, values: str) -> None:
    """Default, choices and bounds of a row of docs/settings.md are those of the class."""
    field = settings_fields()[variable]
    assert default == said_default(field)
    assert re.fullmatch(said_values(field), values)


def test_the_variables_of_the_command_are_documented_with_their_options() -> None:
    """The last table has what the options of `twostage` read from the environment, and the variable of the key."""
    known = {one.envvar: one.opts[0] for one in _parameters(typer.main.get_command(app)) if one.envvar}
    rows = OPTION.findall(SETTINGS_TEXT)
    assert len(rows) == len(dict(rows))
    assert dict(rows) == known | {API_KEY_VARIABLE: ""}


def _parameters(command: Any) -> Iterator[click.Parameter]:
    yield from command.params
    for inner in getattr(command, "commands", {}).values():
        yield from _parameters(inner)


# --- errors --------------------------------------------------------------------------------------------------------

PACKAGES = ("serving", "encoder_server", "reranker_server", "gateway")
SOURCES = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for package in PACKAGES
    for path in sorted((REPOSITORY / package).rglob("*.py"))
}
KINDS = {kind.__name__: kind for kind in CODES}
CODE_NAMES = {code.name for code in CODES.values()}
PEERS = (encoder_client.PEER, reranker_client.PEER)
REASON = re.compile(r"[A-Z]+(_[A-Z]+)*")
# Nobody makes it: it stands for whatever is not in the tree of errors.
UNFORESEEN = ("INTERNAL", reason_of(Exception()))
NOT_OF_SEARCHES = {"IMPORT_LOST"}
SECTION = re.compile(r"^##+ ([^\n]*)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([A-Z_]+)` \| ([^|]+) \|(.*)\|$", re.MULTILINE)
START, INSIDE, DEGRADATION = "At the start", "Reasons that end inside", "In an answer: `Degradation`"


def made(paths: Iterable[Path] = SOURCES) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield class, reason and call of every error that modules make."""
    for path in paths:
        for node in ast.walk(SOURCES[path]):
            if isinstance(node, ast.Call) and (kind := _name(node.func)) in KINDS:
                for reason in _reasons(node.args[0], SOURCES[path]):
                    yield kind, reason, node


def within(*places: str) -> list[Path]:
    """Return the modules of packages, or single ones."""
    return [path for path in SOURCES if path.relative_to(REPOSITORY).as_posix().startswith(places)]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _reasons(said: ast.expr, module: ast.Module) -> set[str]:
    """Return what the first argument of an error can be.

    A constant; a name that constants are assigned to, here or where it is imported from; a backend's name and an
    ending; or the reason of another error that is handed on, which adds none. Anything else has to be thought about.
    """
    match said:
        case ast.Constant(value=str(reason)):
            return {reason}
        case ast.Name(id=name) if assigned := _assigned(name, _home(name, module)):
            return assigned
        case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(ending))]):
            return {f"{peer.upper()}{ending}" for peer in PEERS}
        case ast.Attribute(attr="reason"):
            return set()
    raise AssertionError(f"what reasons are {ast.unparse(said)}?")


def _home(name: str, module: ast.Module) -> ast.Module:
    """Return the module that a name is imported from, or the one that uses it."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            return SOURCES[REPOSITORY / f"{node.module.replace('.', '/')}.py"]
    return module


def _assigned(name: str, module: ast.Module) -> set[str]:
    """Return the constants that are assigned to a name anywhere in a module."""
    found: set[str] = set()
    for node in ast.walk(module):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            found |= {_reason(value) for one, value in pairs if getattr(one, "id", "") == name}
    return found - {""}


def _reason(node: ast.AST) -> str:
    """Return a constant that has a reason's shape; empty where it is none."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and REASON.fullmatch(value) else ""


def unraised(place: str) -> set[str]:
    """Return the reasons that one module writes down without making an error of them."""
    (path,) = within(place)
    of_errors = {id(call.args[0]) for _, _, call in made([path])}
    return {_reason(node) for node in ast.walk(SOURCES[path]) if id(node) not in of_errors} - {""}


def documented() -> list[tuple[str, str, str, str]]:
    """Return heading, code, reason and the rest of every row about a reason."""
    found = []
    for heading, body in SECTION.findall(ERRORS_TEXT):
        word = re.split(r"\W", heading)[0]
        for reason, second, rest in ROW.findall(body):
            code = {START: "FAILED_PRECONDITION", INSIDE: second}.get(heading, word)
            assert code in CODE_NAMES, heading
            found.append((heading, code, reason, rest))
    return found


def test_every_reason_is_documented_under_its_code_and_every_documented_one_exists() -> None:
    """The tables of docs/errors.md have each reason that the servers can raise, under each of its codes, once."""
    rows = [(code, reason) for _, code, reason, _ in documented()]
    assert len(rows) == len(set(rows))
    assert set(rows) == {(CODES[KINDS[kind]].name, reason) for kind, reason, _ in made()} | {UNFORESEEN}


def test_reasons_have_their_shape() -> None:
    """Every reason is UPPER_SNAKE_CASE, which programs compare."""
    assert all(REASON.fullmatch(reason) for _, reason, _ in made())


def test_what_the_shared_part_finds_wrong_is_only_of_the_start() -> None:
    """What `serving` and the model servers call misconfigured no call ends in: it stands under the start alone."""
    start = {reason for heading, _, reason, _ in documented() if heading == START}
    shared = within("serving/", "encoder_server/", "reranker_server/")
    assert {reason for kind, reason, _ in made(shared) if kind == Misconfigured.__name__} <= start


def test_retry_info_is_documented_where_it_is_sent() -> None:
    """Of UNAVAILABLE those rows name RetryInfo whose errors are made with a time to come back at."""
    told = {reason for _, code, reason, rest in documented() if code == "UNAVAILABLE" and "RetryInfo" in rest}
    assert told == {
        reason
        for kind, reason, call in made()
        if kind == Unavailable.__name__ and any(one.arg == "retry_after_s" for one in call.keywords)
    }


def test_reasons_of_degradations_are_documented() -> None:
    """The reasons per stage are what the pipeline and the first stage say, and what the store says while it is away."""
    (body,) = [body for heading, body in SECTION.findall(ERRORS_TEXT) if heading == DEGRADATION]
    rows = re.findall(r"^\| `.*` \| `(\w+)` \| (.*) \|$", body, re.MULTILINE)
    told = {stage: set(re.findall(r"`([A-Z_]+)`", reasons)) for stage, reasons in rows}
    not_now = {kind.__name__ for kind in NOT_NOW}
    of_store = {reason for kind, reason, _ in made(within("gateway/stores/")) if kind in not_now}
    assert told == {
        "rerank": unraised("gateway/pipeline.py"),
        "search": of_store - NOT_OF_SEARCHES | {ANSWER_TOO_LARGE},
        "write": unraised("gateway/retrieval.py"),
    }


@pytest.mark.parametrize("text", [SETTINGS_TEXT, ERRORS_TEXT], ids=["settings", "errors"])
def test_links_lead_somewhere(text: str) -> None:
    """Every link of the two documents is to a document that is there, and to a heading in it."""
    for name, anchor in re.findall(r"\]\(([\w-]+\.md)(?:#([^)]+))?\)", text):
        headings = re.findall(r"^#+ (.*)$", (REPOSITORY / "docs" / name).read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{name}#{anchor}"
