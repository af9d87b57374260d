"""`twostage reindex`, and collections as files: what is searched meanwhile, and what is left of a failure."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from index_rig import Ended, IndexRig, open_index_rig
from store_fake import MemoryStore

from gateway.stores.edge import EdgeStore
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2 as pb

pytestmark = pytest.mark.slow

COUNT = 64 * 8
OTHER_DIGEST = "sha256:" + "0" * 64


@pytest.fixture(params=["memory", "edge"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Both stores."""
    if request.param == "memory":
        yield MemoryStore()
        return
    async with await EdgeStore.open(tmp_path / "store") as edge:
        yield edge


def write(path: Path, version: int, count: int = COUNT) -> str:
    """Write documents of a version; the same ids in each."""
    lines = [json.dumps({"id": number, "text": f"alpha w{number}", "version": version}) for number in range(count)]
    path.write_text("\n".join(lines))
    return str(path)


def files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def report(ended: Ended) -> Any:
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


async def names(rig: IndexRig) -> dict[str, list[str]]:
    listed = (await rig.collections.ListCollections(pb.ListCollectionsRequest())).collections
    return {one.name: list(one.aliases) for one in listed}


async def versions(rig: IndexRig) -> set[float]:
    """Search the alias, and return of which versions the hits are."""
    request = pb.SearchRequest(query="alpha", collection="help", pool_size=20, top_k=20, payload_fields=["version"])
    response = await rig.search(request, timeout=20)
    assert len(response.hits) == 20
    return {hit.payload["version"] for hit in response.hits}


async def test_searches_during_a_reindex_never_fail_and_never_mix(store: Any, tmp_path: Path) -> None:
    """Whoever searches meanwhile finds the old documents, then the new ones, and never some of each."""
    async with open_index_rig(tmp_path / "home", store) as rig:
        first = report(await rig.run("reindex", write(tmp_path / "1.jsonl", 1), "-c", "help", "--json"))
        assert (first["moved"], first["old"], first["document_count"]) == (True, None, COUNT)
        seen: list[set[float]] = []
        done, enough = asyncio.Event(), asyncio.Event()
        rest = iter(range(COUNT // 64 - 1))

        async def hold_the_last(request: Any, _context: Any, answer: Any) -> Any:
            if getattr(request, "input_type", None) == encoder_pb2.INPUT_TYPE_PASSAGE and next(rest, None) is None:
                await enough.wait()
            return answer

        async def search() -> None:
            while not done.is_set():
                seen.append(await versions(rig))
                if len(seen) > 20:
                    enough.set()

        rig.encoder.always = hold_the_last
        searching = asyncio.gather(search(), search())
        second = report(await rig.run("reindex", write(tmp_path / "2.jsonl", 2), "-c", "help", "--drop-old", "--json"))
        done.set()
        await searching
        assert await versions(rig) == {2}
        assert all(found in ({1}, {2}) for found in seen)
        assert enough.is_set()
        assert (second["moved"], second["old"], second["old_dropped"]) == (True, first["collection"], True)
        assert await names(rig) == {second["collection"]: ["help"]}


async def test_another_encoder_is_never_mixed_with_the_old_one(tmp_path: Path) -> None:
    """Before the switch the old gateway answers with old documents, after it only the new one answers at all."""
    store = MemoryStore()
    async with (
        open_index_rig(tmp_path / "home", store) as old,
        open_index_rig(tmp_path / "home", store, OTHER_DIGEST) as new,
    ):
        await old.run("reindex", write(tmp_path / "1.jsonl", 1), "-c", "help")
        running = asyncio.create_task(new.run("reindex", write(tmp_path / "2.jsonl", 2), "-c", "help", "--json"))
        refused = 0
        while not running.done():
            try:
                assert await versions(old) == {1}
                assert not refused
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.FAILED_PRECONDITION  # noqa: PT017 - either is right
                refused += 1
        assert report(await running)["moved"]
        assert await versions(new) == {2}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await versions(old)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_killed_reindex_goes_on_in_the_collection_it_has_begun(tmp_path: Path) -> None:
    """The alias is untouched meanwhile, nothing is encoded twice, and no second collection is made."""
    async with open_index_rig(tmp_path / "home") as rig:
        await rig.run("reindex", write(tmp_path / "1.jsonl", 1), "-c", "help")
        command = ("reindex", write(tmp_path / "2.jsonl", 2), "-c", "help", "--json")
        await rig.kill(7, *command)
        assert await versions(rig) == {1}
        begun = set(await names(rig))
        ended = report(await rig.run(*command))
        assert ended["resumed_count"] > 0
        assert (ended["moved"], ended["document_count"], await versions(rig)) == (True, COUNT, {2})
        assert set(await names(rig)) == begun


async def test_refused_lines_leave_the_alias_until_they_are_accepted(tmp_path: Path) -> None:
    """What was refused keeps the old collection in place; accepting it takes no second encoding."""
    async with open_index_rig(tmp_path / "home") as rig:
        await rig.run("reindex", write(tmp_path / "1.jsonl", 1), "-c", "help")
        file = write(tmp_path / "2.jsonl", 2)
        with (tmp_path / "2.jsonl").open("a") as more:
            more.write("\nno document\n")
        refused = await rig.run("reindex", file, "-c", "help", "--json")
        assert (refused.status, report(refused)["moved"], await versions(rig)) == (1, False, {1})
        before = rig.encoded_count
        accepted = await rig.run("reindex", file, "-c", "help", "--accept-rejects", "--json")
        assert (accepted.status, report(accepted)["moved"]) == (0, True)
        assert report(accepted)["collection"] == report(refused)["collection"]
        assert (rig.encoded_count, await versions(rig)) == (before, {2})


async def test_beginning_anew_drops_what_was_abandoned(tmp_path: Path) -> None:
    """A half-built collection does not stay behind where --restart makes another."""
    async with open_index_rig(tmp_path / "home") as rig:
        file = write(tmp_path / "2.jsonl", 2)
        with (tmp_path / "2.jsonl").open("a") as more:
            more.write("\nno document\n")
        abandoned = report(await rig.run("reindex", file, "-c", "help", "--json"))["collection"]
        write(tmp_path / "2.jsonl", 2)
        changed = await rig.run("reindex", file, "-c", "help", "--json")
        assert (changed.status, "INPUT_CHANGED" in changed.stderr) == (2, True)
        made = report(await rig.run("reindex", file, "-c", "help", "--restart", "--json"))
        assert made["moved"]
        assert abandoned not in await names(rig) or abandoned == made["collection"]
        assert await names(rig) == {made["collection"]: ["help"]}


async def test_a_collection_is_no_alias(tmp_path: Path) -> None:
    """What is a collection of its own is not replaced, and nothing is made beside it."""
    async with open_index_rig(tmp_path / "home") as rig:
        await rig.run("collections", "create", "help")
        refused = await rig.run("reindex", write(tmp_path / "1.jsonl", 1), "-c", "help")
        assert refused.status == 2
        assert refused.stderr.startswith("error: NOT_AN_ALIAS: ")
        assert list(await names(rig)) == ["help"]


async def test_a_collection_travels_as_a_file(store: Any, tmp_path: Path) -> None:
    """Exported here and imported there it answers alike, parts included, without a single encoding."""
    lines = [json.dumps({"id": n, "text": f"alpha w{n} " * (90 if n == 3 else 1), "version": 1}) for n in range(300)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    file = tmp_path / "help.export"
    async with open_index_rig(tmp_path / "home", store) as rig:
        indexed = report(await rig.run("index", str(tmp_path / "a.jsonl"), "-c", "help", "--split", "--json"))
        exported = report(await rig.run("collections", "export", "help", str(file), "--json"))
        assert exported["document_count"] == indexed["document_count"] == 303
        request = pb.SearchRequest(query="alpha w3", collection="help", payload_fields=["*"], pool_size=50, top_k=50)
        here = (await rig.search(request, timeout=20)).hits
    async with open_index_rig(tmp_path / "home") as rig:
        imported = report(await rig.run("collections", "import", str(file), "help", "--json"))
        assert imported["document_count"] == 303
        assert rig.encoded_count == 0
        there = (await rig.search(request, timeout=20)).hits
        assert [(hit.id, hit.parent, hit.part, hit.text, hit.payload) for hit in there] == [
            (hit.id, hit.parent, hit.part, hit.text, hit.payload) for hit in here
        ]
        assert any(hit.parent.number == 3 for hit in there)
        again = await rig.run("collections", "import", str(file), "help")
        assert (again.status, "COLLECTION_EXISTS" in again.stderr) == (1, True), again.stderr


@pytest.mark.parametrize("damage", ["cut", "changed", "other"])
async def test_a_damaged_file_imports_nothing(tmp_path: Path, damage: str) -> None:
    """Whatever happened to the file, no collection comes of it, and the message says what to do."""
    file = tmp_path / "help.export"
    async with open_index_rig(tmp_path / "home") as rig:
        await rig.run("index", write(tmp_path / "a.jsonl", 1), "-c", "help")
        await rig.run("collections", "export", "help", str(file))
        data = bytearray(file.read_bytes())
        if damage == "cut":
            del data[-40:]
        elif damage == "changed":
            data[data.index(b"alpha w200")] ^= 1
        else:
            data = bytearray(b"something else")
        file.write_bytes(data)
        failed = await rig.run("collections", "import", str(file), "copy")
        assert failed.status == 2, failed.stderr
        assert failed.stderr.startswith("error: EXPORT_MALFORMED: ")
        assert list(await names(rig)) == ["help"]


async def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """Neither under its name nor under that of a part."""
    async with open_index_rig(tmp_path / "home") as rig:
        failed = await rig.run("collections", "export", "none", str(tmp_path / "a.export"))
        assert (failed.status, files(tmp_path)) == (1, [])
