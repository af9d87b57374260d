"""A Qdrant server that fails in every way: one error of ours per fault, and the next call is fine."""

import asyncio
from collections import deque
from dataclasses import replace

import grpc
import patience
import pytest
from certificates import Authority
from contract.vector_store_suite import DIMENSION, ENCODER, NAME, NORTH, put, search, soon
from fakes import Hang
from qdrant_client import grpc as pb
from qdrant_engine import to_payload
from qdrant_stand_in import CODE, Late, Unheard, altered, fails, lost, stand_in

from gateway.parameters import CollectionParameters, IndexKind, PayloadIndex
from gateway.ports import Document
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import GRPC_PORT, QdrantTarget
from gateway.stores.records import TEXT_KEY
from serving.deadline import Deadline
from serving.errors import (
    AlreadyExists,
    DeadlineSpent,
    InferenceFailed,
    Misconfigured,
    NotFound,
    Overloaded,
    Unavailable,
)
from serving.tls import TlsFiles, server_credentials

STATUSES = [
    (CODE.UNAVAILABLE, 2, Unavailable, "STORE_UNAVAILABLE"),
    (CODE.CANCELLED, 2, Unavailable, "STORE_UNAVAILABLE"),
    (CODE.DEADLINE_EXCEEDED, 1, DeadlineSpent, "DEADLINE_SPENT"),
    (CODE.NOT_FOUND, 1, NotFound, "COLLECTION_NOT_FOUND"),
    (CODE.ALREADY_EXISTS, 1, AlreadyExists, "COLLECTION_EXISTS"),
    (CODE.RESOURCE_EXHAUSTED, 1, Overloaded, "STORE_OVERLOADED"),
    (CODE.INVALID_ARGUMENT, 1, InferenceFailed, "STORE_REFUSED"),
    (CODE.UNAUTHENTICATED, 1, Misconfigured, "STORE_ACCESS_DENIED"),
    (CODE.PERMISSION_DENIED, 1, Misconfigured, "STORE_ACCESS_DENIED"),
    (CODE.FAILED_PRECONDITION, 1, Misconfigured, "STORE_LOCKED"),
    (CODE.UNIMPLEMENTED, 1, Misconfigured, "STORE_MISCONFIGURED"),
    (CODE.INTERNAL, 1, InferenceFailed, "STORE_FAILED"),
    (CODE.UNKNOWN, 1, InferenceFailed, "STORE_FAILED"),
    (CODE.ABORTED, 1, InferenceFailed, "STORE_FAILED"),
    (CODE.OUT_OF_RANGE, 1, InferenceFailed, "STORE_FAILED"),
    (CODE.DATA_LOSS, 1, InferenceFailed, "STORE_FAILED"),
]
REPEATED = {
    "search": lambda store, deadline: search(store, NORTH, deadline=deadline),
    "describe": lambda store, deadline: store.describe(NAME, deadline=deadline),
    "list": lambda store, deadline: store.list(deadline=deadline),
    "upsert": lambda store, deadline: store.upsert(NAME, [Document(id=1, text="one")], [NORTH], deadline=deadline),
    "delete": lambda store, deadline: store.delete(NAME, [99], deadline=deadline),
    "get": lambda store, deadline: store.get(NAME, [1], deadline=deadline),
}
ONCE_ONLY = {
    "create": lambda store, deadline: store.create("b", dimension=2, encoder=ENCODER, deadline=deadline),
    "drop": lambda store, deadline: store._catalog._calls.delete(NAME, deadline, "drop"),
}
INDEXED = {
    "dimension": 2,
    "encoder": ENCODER,
    "parameters": CollectionParameters(payload_indexes=(PayloadIndex(key="a", kind=IndexKind.TEXT),)),
}
"""A collection that is not whole when the server has made it."""


@pytest.fixture
async def server():
    """A server of its own."""
    async with stand_in() as running:
        yield running


@pytest.fixture
async def store(server):
    """A store with a collection of two documents, remembered."""
    async with await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)) as opened:
        await opened.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        await put(opened, Document(id=1, text="one"), Document(id=2, text="two"))
        yield opened


async def fine(store) -> None:
    """Search as if nothing had been."""
    assert [(one.id, one.text) for one in await search(store, NORTH)] == [(1, "one"), (2, "two")]


@pytest.mark.parametrize(("code", "times", "error", "reason"), STATUSES, ids=[one[0].name for one in STATUSES])
async def test_every_status_is_one_error(store, server, code, times, error, reason):
    """Class, reason and stage say what a status means, without the server's words (field failure 32)."""
    server.faults.extend([fails(code)] * times)
    with pytest.raises(error) as raised:
        await search(store, NORTH)
    assert (raised.value.reason, raised.value.metadata.get("stage")) == (reason, "search")
    assert "own words" not in raised.value.message
    assert "own words" in str(raised.value.__cause__)
    await fine(store)


@pytest.mark.parametrize("name", REPEATED)
async def test_what_can_be_repeated_is_asked_twice(store, server, name):
    """One refusal is not seen; two are Unavailable, with the call as the stage, and no third is asked."""
    server.faults.append(fails(CODE.UNAVAILABLE))
    await REPEATED[name](store, soon())
    server.calls.clear()
    server.faults.extend([fails(CODE.UNAVAILABLE)] * 2)
    with pytest.raises(Unavailable) as raised:
        await REPEATED[name](store, soon())
    assert (raised.value.metadata["stage"], len(server.calls)) == (name, 2)
    await fine(store)


@pytest.mark.parametrize("name", ONCE_ONLY)
async def test_what_cannot_be_repeated_is_asked_once(store, server, name):
    """Creating and dropping, whose second answer would contradict the first, are not asked again."""
    server.calls.clear()
    server.faults.append(fails(CODE.UNAVAILABLE))
    with pytest.raises(Unavailable):
        await ONCE_ONLY[name](store, soon())
    assert len(server.calls) == 1
    await fine(store)


@pytest.mark.parametrize("name", [*REPEATED, *ONCE_ONLY])
async def test_a_server_that_hangs_costs_no_more_than_the_deadline(store, server, name):
    """Every call ends with its own deadline, the server is told, and the next call is fine (field failure 13)."""

    async def attempt(seconds: float) -> None:
        hang = Hang()
        server.faults = deque([hang])
        with pytest.raises(DeadlineSpent) as raised:
            await (REPEATED | ONCE_ONLY)[name](store, Deadline.after(seconds))
        assert raised.value.metadata["stage"] == name
        if not hang.begun.is_set():
            raise patience.Late
        await hang.cancelled.wait()
        await fine(store)

    await patience.with_more_time(attempt)


async def test_a_late_answer_holds_up_nobody(store, server):
    """While one search waits another is answered, and the first is when the server gets round to it."""
    late = Late()
    server.faults.append(late)
    waiting = asyncio.create_task(search(store, NORTH))
    await late.begun.wait()
    await fine(store)
    late.released.set()
    assert [one.id for one in await waiting] == [1, 2]


async def test_a_caller_who_leaves_ends_the_call(store, server):
    """Cancelling a search cancels it on the server too."""
    hang = Hang()
    server.faults.append(hang)
    waiting = asyncio.create_task(search(store, NORTH))
    await hang.begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await hang.cancelled.wait()
    await fine(store)


async def test_a_channel_closed_under_a_call_is_unavailable(store, server):
    """A call that is under way when the channel is closed ends as if the server had gone."""
    hang = Hang()
    server.faults.append(hang)
    waiting = asyncio.create_task(search(store, NORTH))
    await hang.begun.wait()
    await store._channel.close()
    with pytest.raises(Unavailable):
        await waiting


async def test_a_server_that_comes_back_is_found(store, server):
    """While nothing listens every call is Unavailable; afterwards they work without anybody's help."""
    await server.line.refuse()
    for call in (search(store, NORTH), store.list(deadline=soon())):
        with pytest.raises(Unavailable):
            await call
    await server.line.listen()
    await store._channel.channel_ready()
    await fine(store)


async def test_a_server_may_start_after_the_gateway(server):
    """Opening does not need the server; once it is there it is used."""
    await server.line.refuse()
    async with await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)) as opened:
        with pytest.raises(Unavailable):
            await opened.list(deadline=soon())
        await server.line.listen()
        await opened._channel.channel_ready()
        assert await opened.list(deadline=soon()) == []


async def test_a_connection_lost_under_a_call_is_made_again(store, server):
    """A line that is cut once is not seen; one that is cut twice is Unavailable, and the next call is fine."""
    server.faults.append(server.drop_connection())
    await fine(store)
    server.faults.extend([server.drop_connection()] * 2)
    with pytest.raises(Unavailable) as raised:
        await search(store, NORTH)
    assert raised.value.reason == "STORE_UNAVAILABLE"
    assert not server.faults
    await store._channel.channel_ready()
    await fine(store)


@pytest.mark.parametrize(
    ("trailers", "seconds"), [([("retry-after", "7")], 7), ([], 0.5), ([("retry-after", "x")], 0.5)]
)
async def test_a_server_at_its_limit_says_when_to_come_back(store, server, trailers, seconds):
    """The server's own delay is passed on, and a sensible one stands in where it has none."""
    server.faults.append(fails(CODE.RESOURCE_EXHAUSTED, *trailers))
    with pytest.raises(Overloaded) as raised:
        await search(store, NORTH)
    assert raised.value.retry_after_s == seconds
    await fine(store)


async def test_an_answer_over_grpcs_limit_is_no_overload(store, server):
    """The same code from the channel, for a message too large, is nothing to try again."""
    server.faults.append(fails(CODE.RESOURCE_EXHAUSTED, message="CLIENT: Received message larger than max (9 vs. 1)"))
    with pytest.raises(InferenceFailed) as raised:
        await search(store, NORTH)
    assert raised.value.reason == "STORE_ANSWER_TOO_LARGE"


@pytest.mark.parametrize(
    "words", ["SSL_ERROR_SSL: error:1: CERTIFICATE_VERIFY_FAILED: self signed", "WRONG_VERSION_NUMBER"]
)
async def test_a_wrong_certificate_is_the_operators(store, server, words):
    """What the channel says of TLS is told from a server that is down."""
    server.faults.extend([fails(CODE.UNAVAILABLE, message=words)] * 2)
    with pytest.raises(Misconfigured) as raised:
        await search(store, NORTH)
    assert raised.value.reason == "STORE_CERTIFICATE"
    await fine(store)


async def test_a_certificate_file_that_is_missing_is_named(tmp_path):
    """A path that leads nowhere stops the start."""
    with pytest.raises(Misconfigured) as raised:
        await QdrantStore.open(QdrantTarget.parse("q", files=TlsFiles(ca=tmp_path / "none.pem")))
    assert raised.value.reason == "FILE_UNREADABLE"


async def test_both_ends_show_certificates_which_may_be_replaced(tmp_path):
    """A server that wants a certificate lets in only who shows one, and another pair and authority need no restart."""
    old, new = Authority.make(tmp_path, "old"), Authority.make(tmp_path, "new")
    trusted, theirs, ours = tmp_path / "ca.crt", old.sign("qdrant"), old.sign("gateway")
    trusted.write_bytes(old.cert.read_bytes())
    files = TlsFiles(cert=ours.cert, key=ours.key, ca=trusted)
    shown = server_credentials(TlsFiles(cert=theirs.cert, key=theirs.key, ca=trusted))
    async with stand_in(shown) as server:
        url = f"https://127.0.0.1:{server.port}"
        assert not await _let_in(url, TlsFiles(ca=old.cert))
        async with await QdrantStore.open(QdrantTarget.parse(url, files=files)) as store:
            assert await store.list(deadline=soon()) == []
            kept = old.sign("kept")
            trusted.write_bytes(new.cert.read_bytes())
            theirs.put(new.sign("qdrant"))
            ours.put(new.sign("gateway"))
            async with asyncio.timeout(30):
                while await _let_in(url, TlsFiles(cert=kept.cert, key=kept.key, ca=old.cert)):
                    pass
                server.line.cut()
                while not await _answered(store):
                    pass


async def _let_in(url: str, files: TlsFiles) -> bool:
    """Tell whether a store with these certificates is answered."""
    try:
        async with await QdrantStore.open(QdrantTarget.parse(url, files=files)) as store:
            return await _answered(store)
    except Misconfigured:
        return False


async def _answered(store: QdrantStore) -> bool:
    try:
        return await store.list(deadline=soon()) == []
    except (Misconfigured, Unavailable):
        return False


async def test_a_write_that_the_server_did_not_finish_is_not_acknowledged(store, server):
    """A server that gave up waiting, or only took note, has stored nothing as far as the caller knows."""
    server.update_status = pb.UpdateStatus.WaitTimeout
    with pytest.raises(DeadlineSpent):
        await put(store, Document(id=1, text="one"))
    server.update_status = pb.UpdateStatus.ClockRejected
    with pytest.raises(InferenceFailed):
        await store.delete(NAME, [99], deadline=soon())


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_a_score_that_is_no_number_never_leaves(store, server, number):
    """A score of NaN or infinity fails its search only."""

    def change(answer) -> None:
        answer.result[0].score = number

    server.faults.append(altered(change))
    with pytest.raises(InferenceFailed) as raised:
        await search(store, NORTH)
    assert raised.value.reason == "SCORE_NOT_FINITE"
    await fine(store)


@pytest.mark.parametrize("stored", [{}, {TEXT_KEY: None}, {TEXT_KEY: ""}, {TEXT_KEY: ["a"]}, {TEXT_KEY: 1}, {"b": 1}])
async def test_hits_without_text_are_candidates_without_text(store, server, stored):
    """A point that another program wrote without a text is found, and has none (field failure 33)."""

    def change(answer) -> None:
        (first,) = [one for one in answer.result if one.id.num == 1]
        first.payload.clear()
        for key, value in to_payload(stored).items():
            first.payload[key].CopyFrom(value)

    server.faults.append(altered(change))
    assert [(one.id, one.text) for one in await search(store, NORTH)] == [(1, None), (2, "two")]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
async def test_a_servers_odd_clock_is_no_failure(store, server, seconds):
    """A time that makes no sense counts as none."""

    def change(answer) -> None:
        answer.time = seconds

    server.faults.append(altered(change))
    await fine(store)


async def test_a_point_without_an_id_is_the_servers_fault(store, server):
    """An answer that cannot be read is InferenceFailed."""
    server.faults.append(altered(lambda answer: answer.result[0].ClearField("id")))
    with pytest.raises(InferenceFailed):
        await search(store, NORTH)


async def test_a_server_without_collection_metadata_is_refused(store, server):
    """An old server would forget the encoder; nothing is left behind of the attempt."""
    server.keeps_metadata = False
    with pytest.raises(Misconfigured) as raised:
        await store.create("b", dimension=2, encoder=ENCODER, deadline=soon())
    assert raised.value.reason == "STORE_TOO_OLD"
    assert server.shelves.keys() == {NAME}


@pytest.mark.parametrize(
    ("title", "version", "reason"),
    [
        ("qdrant - vector search engine", "1.15.9", "STORE_TOO_OLD"),
        ("some other engine", "1.16.0", "STORE_MISCONFIGURED"),
    ],
)
async def test_the_start_names_a_wrong_server(server, title, version, reason):
    """Another program or an old version stops the start (field failure 66)."""
    server.title, server.version = title, version
    with pytest.raises(Misconfigured) as raised:
        await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port))
    assert raised.value.reason == reason


@pytest.mark.parametrize("version", ["1.16.0", "1.21.0-dev", "2.0.0", "unknown"])
async def test_the_start_accepts_newer_servers_and_logs_them(server, version, caplog):
    """New enough versions, and those that cannot be read, are used and logged."""
    server.version = version
    with caplog.at_level("INFO"):
        async with await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)):
            pass
    assert f"Qdrant {version} at 127.0.0.1" in caplog.text


async def test_the_rest_port_given_by_mistake_is_named():
    """A server that speaks HTTP/1 stops the start and the message says which port it should be (field failure 66)."""

    async def rest(reader, writer) -> None:
        await reader.read(1_000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(rest, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(Misconfigured) as raised:
            await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=port))
    assert raised.value.reason == "STORE_MISCONFIGURED"
    assert "6333 is its REST port" in raised.value.message


async def test_another_grpc_server_is_named():
    """A gRPC server that is no Qdrant stops the start."""
    another = grpc.aio.server()
    port = another.add_insecure_port("127.0.0.1:0")
    await another.start()
    with pytest.raises(Misconfigured) as raised:
        await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=port))
    await another.stop(0)
    assert raised.value.reason == "STORE_MISCONFIGURED"


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("qdrant", "qdrant", GRPC_PORT, False),
        ("10.0.0.1:7000", "10.0.0.1", 7000, False),
        ("http://q:1/", "q", 1, False),
        ("https://x.example", "x.example", GRPC_PORT, True),
        ("http://[::1]:6334", "::1", 6334, False),
    ],
)
def test_addresses(url, host, port, tls):
    """Every usual way to write an address is read."""
    read = QdrantTarget.parse(url)
    assert (read.host, read.port, read.tls) == (host, port, tls)


@pytest.mark.parametrize(
    "url", ["", "ftp://q", "http://", "q:notaport", "http://q:99999", "http://q/path", "http://u@q"]
)
def test_addresses_that_are_none(url):
    """What is no address is an operator's matter."""
    with pytest.raises(Misconfigured) as raised:
        QdrantTarget.parse(url)
    assert raised.value.reason == "STORE_ADDRESS"


def test_an_api_key_that_cannot_be_sent_is_refused_without_showing_it():
    """A key with a line break, as read from a file, is named and not shown."""
    with pytest.raises(Misconfigured) as raised:
        QdrantTarget.parse("q", api_key="secret\n")
    assert raised.value.reason == "STORE_API_KEY"
    assert "secret" not in raised.value.message


async def _cut_off(store, server, how="cancelled", *, released=False) -> Unheard:
    """Create a collection that the server goes on making, or has made where `released`, when its caller has gone."""
    unheard = Unheard(CODE.DEADLINE_EXCEEDED if how == "deadline" else None)
    if released:
        unheard.released.set()
    server.faults_at["Collections.Create"].append(unheard)
    creating = asyncio.create_task(store.create("b", **INDEXED, deadline=soon()))
    await unheard.begun.wait()
    if how == "cancelled":
        creating.cancel()
    if how == "cut":
        server.line.cut()
    with pytest.raises({"deadline": DeadlineSpent, "cancelled": asyncio.CancelledError, "cut": Unavailable}[how]):
        await creating
    return unheard


async def _gone(store, server) -> None:
    """Wait until only the collection of the fixture is left."""
    async with asyncio.timeout(20):
        while server.shelves.keys() != {NAME}:
            await store.count(NAME, deadline=soon())


@pytest.mark.parametrize("how", ["deadline", "cancelled", "cut"])
@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
async def test_a_collection_that_is_made_for_nobody_goes(store, server, how, early):
    """What the server makes whose caller has gone is never seen and deleted, also where it comes after a first look."""
    unheard = await _cut_off(store, server, how, released=early)
    if not early:
        asked = len(server.calls)
        async with asyncio.timeout(20):
            while not any(method == "Collections.Get" for method, _ in server.calls[asked:]):
                await store.count(NAME, deadline=soon())
        unheard.released.set()
    await unheard.done.wait()
    assert [one.name for one in await store.list(deadline=soon())] == [NAME]
    await _gone(store, server)
    await store.create("b", **INDEXED, deadline=soon())
    assert server.shelves["b"].indexed() == {"a"}
    assert [one.name for one in await store.list(deadline=soon())] == ["b", NAME]


@pytest.mark.parametrize("how", ["deadline", "cancelled", "cut"])
async def test_who_tries_again_at_once_does_not_meet_what_was_left(store, server, how, monkeypatch):
    """A second try that comes before the first one's is deleted waits for that, and makes the collection whole."""
    monkeypatch.setattr("gateway.stores.qdrant_leftovers.PATIENCE_S", 15)
    slow = Late()
    server.faults_at["Collections.Delete"].append(slow)
    await _cut_off(store, server, how, released=True)
    await slow.begun.wait()  # by then there is a connection again, which a second try would not wait for
    again = asyncio.create_task(store.create("b", **INDEXED, deadline=soon()))
    async with asyncio.timeout(20):
        while [method for method, _ in server.calls].count("Collections.Create") < 3:
            await store.count(NAME, deadline=soon())
    slow.released.set()
    await again
    assert server.shelves["b"].indexed() == {"a"}
    assert (await store.describe("b", deadline=soon())).document_count == 0


async def test_a_name_that_another_takes_stays_taken(store, server, monkeypatch):
    """Where the name is another collection's by then, that one stays, and a second try is told."""
    monkeypatch.setattr("gateway.stores.qdrant_leftovers.PATIENCE_S", 0.1)
    await _cut_off(store, server)
    async with await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)) as other:
        await other.create("b", dimension=2, encoder=ENCODER, deadline=soon())
        with pytest.raises(AlreadyExists):
            await store.create("b", **INDEXED, deadline=soon())
        await store.aclose()
        assert [one.name for one in await other.list(deadline=soon())] == ["b", NAME]


async def test_closing_looks_once_more(store, server):
    """What the server has made in vain by the time that the store is closed does not stay."""
    unheard = await _cut_off(store, server)
    unheard.released.set()
    await unheard.done.wait()
    await store.aclose()
    assert server.shelves.keys() == {NAME}


async def test_closing_does_not_wait_for_a_server_that_hangs(store, server, monkeypatch, caplog):
    """What cannot be deleted in time is given up with a word in the log, and the store is closed."""
    monkeypatch.setattr("gateway.stores.qdrant.CLOSE_GRACE_S", 0.1)
    hang = Hang()
    server.faults_at["Collections.Delete"].append(hang)
    await _cut_off(store, server, released=True)
    await hang.begun.wait()
    await store.aclose()
    await hang.cancelled.wait()
    assert "collection b may be left" in caplog.text


async def test_what_is_never_made_is_looked_for_a_while(store, server, monkeypatch, caplog):
    """Looking for a collection that the server did not make ends by itself, without a word."""
    monkeypatch.setattr("gateway.stores.qdrant_leftovers.CLEANUP_S", 0.1)
    await _cut_off(store, server)
    async with asyncio.timeout(20):
        while store._making._leftovers.of("b"):
            await store.count(NAME, deadline=soon())
    assert "collection b" not in caplog.text


async def test_nobody_sees_a_collection_before_its_indexes(store, server):
    """While a payload index is being made the collection can be neither found nor written; then it is there, whole."""
    late = Late()
    server.faults_at["Points.CreateFieldIndex"].append(late)
    creating = asyncio.create_task(store.create("b", **INDEXED, deadline=soon()))
    await late.begun.wait()
    assert [one.name for one in await store.list(deadline=soon())] == [NAME]
    with pytest.raises(NotFound):
        await store.upsert("b", [], [], deadline=soon())
    late.released.set()
    made = await creating
    described = await store.describe("b", deadline=soon())
    assert made == replace(described, aliases=())


@pytest.mark.parametrize("code", [CODE.UNAVAILABLE, CODE.DEADLINE_EXCEEDED, CODE.INTERNAL])
async def test_an_answer_lost_to_the_last_step_is_made_up_for(store, server, code):
    """A collection that the server did let be found is told as made."""
    server.faults_at["Collections.Update"].append(lost(code))
    made = await store.create("b", **INDEXED, deadline=soon())
    described = await store.describe("b", deadline=soon())
    assert made == replace(described, aliases=())


async def test_a_last_step_that_was_not_done_undoes_the_rest(store, server):
    """A collection that the server did not let be found is told as failed, and goes."""
    server.faults_at["Collections.Update"].append(fails(CODE.PERMISSION_DENIED))
    with pytest.raises(Misconfigured):
        await store.create("b", **INDEXED, deadline=soon())
    assert server.shelves.keys() == {NAME}
    server.faults_at["Collections.Update"].extend([fails(CODE.UNAVAILABLE)] * 2)
    with pytest.raises(Unavailable):
        await store.create("b", **INDEXED, deadline=soon())
    assert server.shelves.keys() == {NAME}
