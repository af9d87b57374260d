"""Indexing that is killed, and goes on."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from index_rig import open_index_rig

from gateway.ports import DocumentId

pytestmark = pytest.mark.slow

MESSAGE_COUNT = 20
DOCUMENT_COUNT = MESSAGE_COUNT * 64 - 17
LONG_EVERY = 97
GENERATOR = random.Random(20_240_611)  # noqa: S311 - seeded, so that a failure can be repeated
POINTS = [(GENERATOR.randint(2, MESSAGE_COUNT), GENERATOR.randint(0, 200)) for _ in range(10)]


def write_lines(path: Path) -> Path:
    """Write documents, some of them over the fake encoder's 50 words; two lines are none."""
    lines = [
        json.dumps({"id": number, "text": f"word{number} " * (120 if number % LONG_EVERY == 0 else 3)})
        for number in range(DOCUMENT_COUNT)
    ]
    path.write_text("\n".join(["no document", *lines, '{"id": 0, "text": "again"}']) + "\n")
    return path


def expected() -> set[DocumentId]:
    """Return the ids that have to be there, and no others."""
    long = range(0, DOCUMENT_COUNT, LONG_EVERY)
    parts = {f"{number}#{part}" for number in long for part in (1, 2, 3)}
    return set(range(DOCUMENT_COUNT)) - set(long) | parts


@pytest.mark.parametrize(("message", "turns"), POINTS, ids=str)
async def test_a_killed_run_goes_on_without_loss_or_duplicates(message: int, turns: int, tmp_path: Path) -> None:
    """Killed at any point, the same command stores exactly the documents that are missing, and rejects lines once."""
    file = write_lines(tmp_path / "many.jsonl")
    command = ("index", str(file), "-c", "c", "--split", "--json", "--rejects", str(tmp_path / "rejects"))
    async with open_index_rig(tmp_path / "home") as rig:
        await rig.kill(message, *command, turns=turns)
        before = rig.encoded_count
        ended = await rig.run(*command)
        report = json.loads(ended.stdout)
        ids = {document.id for document in await rig.documents("c", list(expected()))}
        assert (ids, await rig.count("c")) == (expected(), len(expected()))
        assert (report["stored_count"], report["document_count"]) == (DOCUMENT_COUNT, len(expected()))
        assert (report["exact"], report["missing_count"], report["unexpected_count"]) == (True, 0, 0)
        assert report["resumed_count"] % 64 == 0
        assert report["resumed_count"] >= 64 * (message - 6)  # so many messages are on their way at most
        encoded_again = rig.encoded_count - before
        assert DOCUMENT_COUNT - report["resumed_count"] <= encoded_again <= len(expected())
        rejects = [json.loads(line) for line in (tmp_path / "rejects").read_text().splitlines()]
        assert sorted((reject["line"], reject["reason"]) for reject in rejects) == [
            (1, "MALFORMED"),
            (DOCUMENT_COUNT + 2, "MALFORMED"),
        ]
        assert ended.status == 1


async def test_a_run_survives_many_deaths(tmp_path: Path) -> None:
    """Killed again and again in one run, it ends with exactly the expected ids."""
    file = write_lines(tmp_path / "many.jsonl")
    command = ("index", str(file), "-c", "c", "--split", "--json")
    async with open_index_rig(tmp_path / "home") as rig:
        for _ in range(3):
            await rig.kill(4, *command, turns=10)
        report = json.loads((await rig.run(*command)).stdout)
        assert report["resumed_count"] > 0
        assert (report["stored_count"], await rig.count("c")) == (DOCUMENT_COUNT, len(expected()))
        ids = {document.id for document in await rig.documents("c", list(expected()))}
        assert ids == expected()


async def test_a_changed_file_is_refused_until_told_to_begin_anew(tmp_path: Path) -> None:
    """What was stored of another file is not mixed with this one; --restart indexes all of it."""
    file = write_lines(tmp_path / "many.jsonl")
    command = ("index", str(file), "-c", "c", "--split", "--json")
    async with open_index_rig(tmp_path / "home") as rig:
        await rig.kill(3, *command)
        with file.open("a") as more:
            more.write('{"id": "more", "text": "more"}\n')
        refused = await rig.run(*command)
        assert (refused.status, refused.stdout) == (2, "")
        assert "INPUT_CHANGED" in refused.stderr
        assert "--restart" in refused.stderr
        report = json.loads((await rig.run(*command, "--restart")).stdout)
        assert (report["stored_count"], report["resumed_count"]) == (DOCUMENT_COUNT + 1, 0)
        assert await rig.count("c") == len(expected()) + 1


async def test_a_collection_that_is_gone_is_not_gone_on_with(tmp_path: Path) -> None:
    """A journal whose collection was dropped counts for nothing: all documents are stored again."""
    file = write_lines(tmp_path / "many.jsonl")
    command = ("index", str(file), "-c", "c", "--split", "--json")
    async with open_index_rig(tmp_path / "home") as rig:
        await rig.kill(12, *command)
        assert (await rig.run("collections", "drop", "c", "--yes")).status == 0
        report = json.loads((await rig.run(*command)).stdout)
        assert (report["stored_count"], report["resumed_count"]) == (DOCUMENT_COUNT, 0)
        assert await rig.count("c") == len(expected())


async def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    """While a run is under way the same command is refused."""
    file = write_lines(tmp_path / "many.jsonl")
    command = ("index", str(file), "-c", "c")
    async with open_index_rig(tmp_path / "home") as rig:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def step(_request: Any, _context: Any, answer: Any) -> Any:
            begun.set()
            await go_on.wait()
            return answer

        rig.encoder.always = step
        process = await rig.start(*command)
        await asyncio.wait_for(begun.wait(), 60)
        second = asyncio.create_task(rig.run(*command))
        refused = await asyncio.wait_for(second, 60)
        go_on.set()
        await process.communicate()
        assert refused.status == 2
        assert "JOURNAL_LOCKED" in refused.stderr
