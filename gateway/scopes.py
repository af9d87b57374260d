"""What a caller may see and do: rights to collections, and which documents exist for it. Pure.

A scope is a table of the keys file::

    [scopes.acme]
    collections = { help = "write", "acme-*" = "read" }
    documents = { tenant = "acme" }
    id_prefix = "acme/"

`collections` gives a right by the name that a call uses, collection or alias; whoever may point an alias has to have
`manage` for both names. Nothing is said of a name that is not covered, so that a collection that exists and one that
does not are refused with the same words, before anything is looked up.

`documents` says which documents exist for the caller: those whose payload has one of the values at every key, as
`any_of` means it. It is laid over every search, and over everything that is read or counted. What the caller writes
gets the first value where the key is missing, and is refused where it has another than these; a list is refused too,
since a document with several owners is for others to write. Ids that it writes or deletes begin with `id_prefix`, which
is what keeps tenants of one collection from overwriting one another's documents, or from finding out by trying which
ids are taken.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.filters import AnyOf, Filter
from gateway.ports import Collection, Document, DocumentId, Payload
from serving.auth import caller
from serving.errors import Misconfigured, PermissionDenied

PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\*?|\*"
"""A collection's name, or the beginning of one and an asterisk."""
KEY = r"(?!_twostage)[A-Za-z0-9_-]{1,128}"
"""A payload key at the top, without dots, so that the gateway and every store read the same value."""
ID_PREFIX = r"^[A-Za-z0-9._-]{1,64}/$"
"""Ends with its only slash, so that no prefix is the beginning of another one."""
GATEWAY, DOCUMENTS, COLLECTIONS = (
    f"/retrieval.gateway.v1.{service}/" for service in ("GatewayService", "DocumentService", "CollectionService")
)
UPSERT = f"{DOCUMENTS}UpsertDocuments"


class Right(IntEnum):
    """What may be done with a collection; each includes those before it."""

    READ = 1
    """Search, read by id, describe, list, export."""
    WRITE = 2
    """Also upsert and delete documents."""
    MANAGE = 3
    """Also create, import and drop it, and point aliases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What one caller may see and do."""

    collections: Mapping[str, Right]
    """Name or pattern -> right."""
    documents: Mapping[str, Sequence[str]]
    """Payload key -> values; empty is every document."""
    id_prefix: str = ""

    def right(self, name: str) -> int:
        """Return the highest right to a collection of that name, 0 where there is none."""
        return max((right for pattern, right in self.collections.items() if _covers(pattern, name)), default=0)

    @property
    def manages_all(self) -> bool:
        """Whether it may do everything with every collection."""
        return self.collections.get("*") is Right.MANAGE

    @property
    def filter(self) -> Filter | None:
        """What every document has to satisfy; None is nothing."""
        if not self.documents:
            return None
        return Filter(must=[AnyOf(key=key, values=list(values)) for key, values in self.documents.items()])

    def narrowed(self, wanted: Filter | None) -> Filter | None:
        """Return a caller's filter with the scope's laid over it."""
        own = self.filter
        if own is None or wanted is None:
            return own or wanted
        return Filter(must=[own, wanted])

    def sees(self, payload: Payload) -> bool:
        """Tell whether a document exists for the caller."""
        return all(_elements(payload.get(key)) & set(values) for key, values in self.documents.items())

    def owns(self, identifier: DocumentId) -> bool:
        """Tell whether the caller may write or delete a document of that id."""
        return not self.documents or (isinstance(identifier, str) and identifier.startswith(self.id_prefix))

    def stamped(self, document: Document, field: str) -> Document:
        """Return a document that is to be written, with what the scope says of it.

        Raises:
            PermissionDenied: `ID_FORBIDDEN` or `DOCUMENT_FORBIDDEN`.
        """
        if not self.documents:
            return document
        if not self.owns(document.id):
            raise PermissionDenied("ID_FORBIDDEN", f"{field}.id: this key writes ids that begin with {self.id_prefix}")
        payload = dict(document.payload)
        for key, values in self.documents.items():
            given = payload.setdefault(key, values[0])
            if not isinstance(given, str) or given not in values:
                raise PermissionDenied("DOCUMENT_FORBIDDEN", f"{field}.payload: this key may not write that {key}")
        return replace(document, payload=payload)

    def shown(self, collection: Collection) -> Collection | None:
        """Return a collection as the caller may know it, or None where it may not know of it at all."""
        aliases = [alias for alias in collection.aliases if self.right(alias)]
        names = [name for name in (collection.name, *aliases) if self.right(name)]
        if not names:
            return None
        disk_bytes = 0 if self.documents else collection.disk_bytes
        return replace(collection, name=names[0], aliases=aliases, disk_bytes=disk_bytes)


EVERYTHING = Scope(collections={"*": Right.MANAGE}, documents={})
"""Of a caller without a scope: the server is open, or lets client certificates in and asks for nothing else."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    collections: dict[str, str] = Field(min_length=1)
    documents: dict[str, str | list[str]] = {}
    id_prefix: str = Field("", pattern=ID_PREFIX)


def scopes_of(tables: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Scope]:
    """Read all scopes of a file.

    Raises:
        Misconfigured: `SCOPE`, one is malformed, or two tenants have one prefix of ids.
    """
    scopes = {name: scope_of(name, table) for name, table in tables.items()}
    owners: dict[str, Mapping[str, Sequence[str]]] = {}
    for name, scope in scopes.items():
        if scope.id_prefix and owners.setdefault(scope.id_prefix, scope.documents) != scope.documents:
            raise _wrong(name, f"id_prefix {scope.id_prefix} is that of a scope of other documents")
    return scopes


def scope_of(name: str, table: Mapping[str, Any]) -> Scope:
    """Read a scope.

    Raises:
        Misconfigured: `SCOPE`, it is malformed or contradicts itself.
    """
    try:
        read = _Table.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise _wrong(name, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    documents = {key: (value,) if isinstance(value, str) else tuple(value) for key, value in read.documents.items()}
    scope = Scope(collections=_rights(name, read.collections), documents=documents, id_prefix=read.id_prefix)
    _check(name, scope)
    return scope


def current() -> Scope:
    """Return the scope of whoever makes the call being handled."""
    known = caller.get()
    return EVERYTHING if known is None else known.scope


# --- rights --------------------------------------------------------------------------------------------------------

Needs = Callable[[Any], Iterable[tuple[str, Right]]]
"""The names in a request, and the right that each needs."""


def _collection(right: Right) -> Needs:
    return lambda request: [(request.collection, right)]


def _nothing(_request: Any) -> Iterable[tuple[str, Right]]:
    return ()


RULES: Mapping[str, Needs] = {
    f"{GATEWAY}Search": _collection(Right.READ),
    f"{GATEWAY}SearchStream": lambda request: [(request.request.collection, Right.READ)],
    UPSERT: _collection(Right.WRITE),
    f"{DOCUMENTS}DeleteDocuments": _collection(Right.WRITE),
    f"{DOCUMENTS}GetDocuments": _collection(Right.READ),
    f"{COLLECTIONS}CreateCollection": _collection(Right.MANAGE),
    f"{COLLECTIONS}DescribeCollection": _collection(Right.READ),
    # Answers what the caller may know of.
    f"{COLLECTIONS}ListCollections": _nothing,
    f"{COLLECTIONS}DropCollection": _collection(Right.MANAGE),
    f"{COLLECTIONS}AssignAlias": lambda request: [(request.alias, Right.MANAGE), (request.collection, Right.MANAGE)],
    f"{COLLECTIONS}DeleteAlias": lambda request: [(request.alias, Right.MANAGE)],
    f"{COLLECTIONS}ExportCollection": _collection(Right.READ),
    # The first message names it; those after it can only follow that one.
    f"{COLLECTIONS}ImportCollection": lambda request: (
        [(request.start.collection, Right.MANAGE)] if request.HasField("start") else ()
    ),
}


def authorize(method: str, request: Any, scope: Scope) -> None:
    """Check that a caller may make a request; what has no rule is forbidden.

    Raises:
        PermissionDenied: `COLLECTION_FORBIDDEN` or `METHOD_FORBIDDEN`.
    """
    # Refused messages of this stream are answered one by one, which its handler does by `require`.
    if method != UPSERT:
        require(method, request, scope)


def require(method: str, request: Any, scope: Scope) -> None:
    """Check that a caller has every right that a request needs.

    Raises:
        PermissionDenied: As `authorize`.
    """
    if not method.startswith((GATEWAY, DOCUMENTS, COLLECTIONS)):
        return  # reflection and channelz show nothing of anybody's documents
    needs = RULES.get(method)
    if needs is None:
        raise PermissionDenied("METHOD_FORBIDDEN", "no rule says who may call this method")
    for name, right in needs(request):
        if scope.right(name) < right:
            message = f"this key may not {right.name.lower()} a collection or alias of that name"
            raise PermissionDenied("COLLECTION_FORBIDDEN", message)


# --- reading -------------------------------------------------------------------------------------------------------


def _rights(name: str, collections: Mapping[str, str]) -> Mapping[str, Right]:
    rights = {}
    for pattern, word in collections.items():
        if not re.fullmatch(PATTERN, pattern):
            raise _wrong(name, f"collections: {pattern[:140]!r} is no name, nor the beginning of one and '*'")
        if word.upper() not in Right.__members__:
            raise _wrong(name, f"collections.{pattern}: read, write or manage is wanted")
        rights[pattern] = Right[word.upper()]
    return rights


def _check(name: str, scope: Scope) -> None:
    for key, values in scope.documents.items():
        if not re.fullmatch(KEY, key) or not values or not all(values):
            raise _wrong(name, f"documents.{key[:140]}: a payload key without dots, and one or more texts, are wanted")
    highest = max(scope.collections.values())
    if scope.documents and highest is Right.MANAGE:
        raise _wrong(name, "a scope of some documents cannot manage collections; that concerns all documents in them")
    if scope.documents and highest is Right.WRITE and not scope.id_prefix:
        raise _wrong(name, "a scope of some documents that writes needs an id_prefix")
    if scope.id_prefix and not scope.documents:
        raise _wrong(name, "id_prefix is for a scope of some documents")


def _covers(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _elements(value: Any) -> set[str]:
    values = value if isinstance(value, list) else [value]
    return {one for one in values if isinstance(one, str)}


def _wrong(name: str, message: str) -> Misconfigured:
    return Misconfigured("SCOPE", f"API keys file: scopes.{name}: {message}")
