"""What a caller may see and do, by the file and by the tables."""

import re
import tomllib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.filters import AnyOf, Exists, Filter
from gateway.parameters import DEFAULT_PARAMETERS
from gateway.ports import Collection, Document, Model
from gateway.scopes import EVERYTHING, RULES, Right, Scope, authorize, require, scope_of, scopes_of
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured, PermissionDenied
from serving.keys import Keyring

TEXT = """
collections = { help = "write", "acme-*" = "read" }
documents = { tenant = ["acme", "acme-old"], region = "eu" }
id_prefix = "acme/"
"""
OWN = {"tenant": "acme", "region": "eu"}


def read(text: str = TEXT) -> Scope:
    """Read a scope as the file has it."""
    return scope_of("acme", tomllib.loads(text))


def methods() -> dict[str, Any]:
    """Return every method of the gateway's protocol with its descriptor, by full name."""
    return {
        f"/{service.full_name}/{method.name}": method
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_every_method_has_a_rule():
    """An RPC that is added to the protocol without saying who may call it fails here, and is refused when called."""
    assert set(RULES) == set(methods())


def test_a_method_without_a_rule_is_refused():
    """What nobody thought of is forbidden, even to those who may do everything."""
    with pytest.raises(PermissionDenied) as caught:
        authorize("/retrieval.gateway.v1.DocumentService/CountDocuments", pb.SearchRequest(), EVERYTHING)
    assert caught.value.reason == "METHOD_FORBIDDEN"


def test_every_name_in_a_request_is_looked_at():
    """Of every request message, each field that names a collection or an alias is among what its rule asks about."""
    for name, method in methods().items():
        message = _filled(method.input_type)
        asked = {asked for asked, _ in RULES[name](message)}
        assert asked == _names(message), name


def _filled(descriptor: Any) -> Any:
    """Make a request message with a name of its own in every field that may hold one, within messages too."""
    message = getattr(pb, descriptor.name)()
    for field in descriptor.fields:
        if field.name in ("collection", "alias"):
            setattr(message, field.name, f"{descriptor.name}.{field.name}")
        elif field.name in ("request", "start"):
            getattr(message, field.name).CopyFrom(_filled(field.message_type))
    return message


def _names(message: Any) -> set[str]:
    found: set[str] = set()
    for field, value in message.ListFields():
        if field.name in ("collection", "alias"):
            found.add(value)
        elif field.name in ("request", "start"):
            found |= _names(value)
    return found


@pytest.mark.parametrize(
    ("name", "right"),
    [("help", 2), ("acme-", 1), ("acme-1", 1), ("acme", 0), ("help2", 0), ("Help", 0), ("beta", 0), ("", 0), ("*", 0)],
)
def test_rights_go_by_the_name(name: str, right: int):
    """A name matches itself or a beginning, with its case, and nothing else."""
    assert read().right(name) == right


def test_the_highest_right_counts():
    """Of two patterns that cover a name the more generous one decides, in whichever order they stand."""
    scope = read('collections = { "a*" = "read", "ab*" = "manage", "abc" = "write" }')
    assert [scope.right(name) for name in ("a", "ab", "abc")] == [1, 3, 3]


@pytest.mark.parametrize("name", ["help", "none-such", "beta", ""])
def test_refusals_do_not_depend_on_what_there_is(name: str):
    """The refusal is the same sentence for every name, and does not repeat it."""
    with pytest.raises(PermissionDenied) as caught:
        require(
            "/retrieval.gateway.v1.CollectionService/DropCollection", pb.DropCollectionRequest(collection=name), read()
        )
    assert caught.value.message == "this key may not manage a collection or alias of that name"
    assert caught.value.metadata == {}


def test_a_filter_is_laid_over_every_other():
    """Both have to hold, whatever the caller's says; without one of the caller's the scope's stands alone."""
    scope = read()
    own = Filter(must=[AnyOf(key="tenant", values=["acme", "acme-old"]), AnyOf(key="region", values=["eu"])])
    wanted = Filter(should=[Exists(key="x")])
    assert scope.narrowed(None) == own
    assert scope.narrowed(wanted) == Filter(must=[own, wanted])
    assert EVERYTHING.narrowed(wanted) is wanted
    assert EVERYTHING.narrowed(None) is None


@pytest.mark.parametrize(
    ("payload", "seen"),
    [
        (OWN, True),
        ({**OWN, "tenant": "acme-old"}, True),
        ({**OWN, "tenant": ["beta", "acme"]}, True),
        ({**OWN, "tenant": "beta"}, False),
        ({**OWN, "tenant": ["beta"]}, False),
        ({**OWN, "tenant": [["acme"]]}, False),
        ({**OWN, "tenant": {"acme": 1}}, False),
        ({**OWN, "tenant": None}, False),
        ({**OWN, "tenant": 1}, False),
        ({"tenant": "acme"}, False),
        ({}, False),
    ],
)
def test_a_document_is_there_or_not(payload: dict[str, Any], seen: bool):  # noqa: FBT001 - the table's column
    """Every key has to hold one of the values, alone or in a list, and as text."""
    assert read().sees(payload) is seen


def test_what_is_written_gets_the_scopes_values():
    """A missing key is filled in with the first value; one that is right stays."""
    scope = read()
    assert scope.stamped(Document(id="acme/1", text="t"), "d").payload == OWN
    old = Document(id="acme/1", text="t", payload={"tenant": "acme-old", "x": 1})
    assert scope.stamped(old, "d").payload == {"tenant": "acme-old", "region": "eu", "x": 1}
    assert EVERYTHING.stamped(old, "d") is old


@pytest.mark.parametrize("value", ["beta", ["acme"], ["acme", "beta"], None, 1, True, {"acme": "acme"}, ""])
def test_nothing_is_written_under_anothers_name(value: Any):
    """Another value, and any list, even of one's own, is refused; the value is not repeated."""
    with pytest.raises(PermissionDenied, match="may not write that tenant") as caught:
        read().stamped(Document(id="acme/1", text="t", payload={"tenant": value}), "documents[3]")
    assert caught.value.reason == "DOCUMENT_FORBIDDEN"


@pytest.mark.parametrize("identifier", [1, UUID(int=5), "acme", "beta/1", "ACME/1", "text:acme/1", "acme1/x", ""])
def test_ids_without_the_prefix_are_refused(identifier: Any):
    """Whether or not anybody has them."""
    with pytest.raises(PermissionDenied) as caught:
        read().stamped(Document(id=identifier, text="t"), "documents[0]")
    assert caught.value.reason == "ID_FORBIDDEN"
    assert not read().owns(identifier)
    assert EVERYTHING.owns(identifier)


def test_a_collection_is_shown_by_names_that_the_caller_may_use():
    """Other aliases are left out, as are bytes on disk; what has no such name is not shown at all."""
    model = Model(id="m", revision="1", digest="d", precision="fp32")
    collection = Collection(
        name="beta-1",
        document_count=9,
        dimension=4,
        encoder=model,
        disk_bytes=7,
        parameters=DEFAULT_PARAMETERS,
        aliases=("acme-x", "beta", "help"),
    )
    shown = read().shown(collection)
    assert shown is not None
    assert (shown.name, list(shown.aliases), shown.disk_bytes) == ("acme-x", ["acme-x", "help"], 0)
    assert read('collections = { "gamma" = "read" }').shown(collection) is None
    assert EVERYTHING.shown(collection) == Collection(
        **{**{name: getattr(collection, name) for name in collection.__slots__}, "aliases": ["acme-x", "beta", "help"]}
    )


WRONG = {
    "no collection": "collections = {}",
    "no table": "",
    "an unknown word": 'collections = { a = "delete" }',
    "an asterisk within": 'collections = { "a*b" = "read" }',
    "no name": 'collections = { "a b" = "read" }',
    "a newline": 'collections = { "a\\n" = "read" }',
    "an unknown field": 'collections = { a = "read" }\nfilter = {}',
    "a dotted key": 'collections = { a = "read" }\ndocuments = { "a.b" = "x" }',
    "a reserved key": 'collections = { a = "read" }\ndocuments = { _twostage_text = "x" }',
    "a key with a quotation mark": 'collections = { a = "read" }\ndocuments = { \'a"\' = "x" }',
    "no value": 'collections = { a = "read" }\ndocuments = { tenant = [] }',
    "an empty value": 'collections = { a = "read" }\ndocuments = { tenant = "" }',
    "a number": 'collections = { a = "read" }\ndocuments = { tenant = 1 }',
    "managing some documents": 'collections = { a = "manage" }\ndocuments = { t = "x" }\nid_prefix = "x/"',
    "writing without a prefix": 'collections = { a = "write" }\ndocuments = { t = "x" }',
    "a prefix without a slash": 'collections = { a = "write" }\ndocuments = { t = "x" }\nid_prefix = "x"',
    "a prefix with two": 'collections = { a = "write" }\ndocuments = { t = "x" }\nid_prefix = "x/y/"',
    "a prefix of a part": 'collections = { a = "write" }\ndocuments = { t = "x" }\nid_prefix = "text:x/"',
    "a prefix for nothing": 'collections = { a = "write" }\nid_prefix = "x/"',
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_scope_that_is_wrong_is_refused(text: str):
    """Nothing is guessed: a scope that says nothing, too much or what cannot be kept is named and not used."""
    with pytest.raises(Misconfigured, match=r"scopes\.acme") as caught:
        read(text)
    assert caught.value.reason == "SCOPE"


def test_two_tenants_do_not_share_a_prefix():
    """Reader and writer of one tenant may have the same; with other documents it is refused, for the whole file."""
    acme = {"collections": {"c": "write"}, "documents": {"tenant": "acme"}, "id_prefix": "acme/"}
    reader = {**acme, "collections": {"c": "read"}}
    assert set(scopes_of({"acme": acme, "reader": reader})) == {"acme", "reader"}
    with pytest.raises(Misconfigured, match=r"scopes\.beta"):
        scopes_of({"acme": acme, "beta": {**acme, "documents": {"tenant": "beta"}}})


def test_the_example_of_the_documentation_is_right():
    """The file in docs/security.md would be taken, its digests once filled in, and its rows name every method."""
    text = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    content = re.sub(r'sha256 = "[^"]*"', f'sha256 = "{"0" * 64}"', example[1])
    ring = Keyring.parse(content.encode(), scopes_of)
    assert set(ring.names) == {"acme-web", "acme-feed", "beta-web", "operator", "spiffe://corp.example/acme-indexer"}
    assert all(f"{method.rpartition('/')[2]}" in text for method in RULES)


def test_rights_include_those_before():
    """Who may write may read, and who may manage may do both."""
    assert Right.READ < Right.WRITE < Right.MANAGE
