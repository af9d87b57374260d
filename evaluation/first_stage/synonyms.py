"""What a file of synonyms gains and loses: as a whole, and entry by entry on dev alone.

Every entry is tried by itself, through an alias of one collection that has a file of its own: a gateway applies the
file that goes by the name that a search uses. Looking at single entries on test would be tuning, and is refused.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evaluation import quality
from evaluation.datasets.model import DEV, Question, read_text
from evaluation.files import write, write_text
from evaluation.first_stage.collections import make, name_of
from evaluation.first_stage.freeze import Searched, run_of
from evaluation.first_stage.options import DENSE, LEXICAL, OPTIONS, Kept
from evaluation.first_stage.synonym_records import SYNONYMS, Entry, Move, Side, SynonymStudy, WholeFile
from evaluation.measures import Ranking, first_relevant, measure, score_run
from evaluation.phases.retrieve import Progress, silent
from evaluation.plan import Plan
from evaluation.records import Provenance
from evaluation.significance import compare
from evaluation.system import CALL_TIMEOUT_S, QuestionFailed, System, model_used
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest, Misconfigured

MEASURES = ("MRR@10", "nDCG@5")
SIDES = {LEXICAL: "lexical+synonyms", DENSE: "dense+synonyms"}
"""Option without synonyms to the same with them."""
FIRED = "dense.synonym."
"""How the lists begin that a query has where an entry fires."""

Runs = Mapping[str, Mapping[str, Ranking]]
"""Side to question to documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynonymFile:
    """A file of synonyms, taken apart."""

    digest: str
    entries: Sequence[Mapping[str, Any]]
    """As the file has them; the gateway says what is wrong with one."""

    @classmethod
    def read(cls, path: Path) -> "SynonymFile":
        """Read a file.

        Raises:
            Misconfigured: It is no list of entries.
        """
        text = read_text(path)
        try:
            entries = yaml.safe_load(text) or []
        except yaml.YAMLError as error:
            raise Misconfigured("SYNONYMS_MALFORMED", f"{path} is no YAML") from error
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise Misconfigured("SYNONYMS_MALFORMED", f"{path} is no list of entries")
        return cls(digest=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", entries=entries)

    def lay_out(self, directory: Path, name: str, *, per_entry: bool) -> None:
        """Write the files that a gateway is to find: the whole one, and one for each entry.

        Args:
            directory: The gateway's directory of synonyms; other files of it go.
            name: Of the collection whose aliases they are for.
            per_entry: Whether there is to be one for each entry.
        """
        for stale in directory.glob("*.yaml"):
            stale.unlink()
        write_text(_dumped(self.entries), directory / f"{name}.yaml")
        for number, entry in enumerate(self.entries if per_entry else (), 1):
            write_text(_dumped([entry]), directory / f"{alias_of(name, number)}.yaml")


def alias_of(name: str, number: int) -> str:
    """Name the alias under which an entry is tried; entries are numbered from 1."""
    return f"{name}-{number}"


def require_no_tuning(split: str, *, per_entry: bool) -> None:
    """Refuse figures of single entries on anything but dev.

    Raises:
        InvalidRequest: They are asked for.
    """
    if per_entry and split != DEV:
        raise InvalidRequest(
            "TUNING_ON_TEST",
            f"refuses to tune on {split}: single entries are shown on dev only; the whole file is reported on {split}",
            field="split",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SynonymTrial:
    """A file on the questions of one split."""

    plan: Plan
    system: System
    file: SynonymFile
    split: str
    per_entry: bool

    async def run(self, lexical: pb.LexicalParameters | None, progress: Progress = silent) -> SynonymStudy:
        """Make the collection and its aliases, search, and write synonyms.json.

        Args:
            lexical: How words are indexed.
            progress: Told after every entry.

        Raises:
            InvalidRequest: See `require_no_tuning`.
            Misconfigured: The split has no answerable question.
        """
        require_no_tuning(self.split, per_entry=self.per_entry)
        questions = self._questions()
        await make(self.plan, self.system, {Kept.WORDS: lexical})
        before = {side: await run_of(self.system, self._searched(side, self._name), questions) for side in SIDES}
        whole, fired = await self._with(self._name, questions)
        entries = []
        for number, entry in enumerate(self.file.entries if self.per_entry else (), 1):
            entries.append(await self._entry(number, entry, questions, before))
            progress(number, len(self.file.entries))
        study = SynonymStudy(
            provenance=await self._provenance(),
            file_digest=self.file.digest,
            split=self.split,
            question_count=len(questions),
            whole=WholeFile(
                fired=tuple(fired),
                sides={side: self._side(questions, before[side], whole[side], fired) for side in SIDES},
            ),
            entries=tuple(entries),
        )
        write(study, self.plan.outputs / SYNONYMS)
        return study

    @property
    def _name(self) -> str:
        return name_of(self.plan, Kept.WORDS)

    def _questions(self) -> Sequence[Question]:
        found = [one for one in self.plan.dataset.questions if one.split == self.split and one.judged]
        if not found:
            message = f"{self.plan.dataset.name} has no answerable {self.split} question"
            raise Misconfigured("NOTHING_TO_STUDY", message)
        return found

    async def _entry(self, number: int, entry: Mapping[str, Any], questions: Sequence[Question], before: Runs) -> Entry:
        alias = alias_of(self._name, number)
        request = pb.AssignAliasRequest(alias=alias, collection=self._name)
        await self.system.collections.AssignAlias(request, timeout=CALL_TIMEOUT_S)
        after, fired = await self._with(alias, questions)
        return Entry(
            number=number,
            text=in_words(entry),
            fired=tuple(fired),
            moves={side: _moves(questions, before[side], after[side], fired) for side in SIDES},
        )

    async def _with(self, name: str, questions: Sequence[Question]) -> tuple[Runs, list[str]]:
        """Search with synonyms where some fire; return the runs of those questions, and which they are."""
        dense: dict[str, Ranking] = {}
        for question in questions:
            searched = self._searched(SIDES[DENSE], name)
            try:
                answer = await searched.answer(self.system, question)
            except QuestionFailed:
                continue
            if any(one.name.startswith(FIRED) for one in answer.provenance.lists):
                dense[question.id] = searched.ranked(answer)
        fired = [question for question in questions if question.id in dense]
        lexical = await run_of(self.system, self._searched(SIDES[LEXICAL], name), fired)
        return {DENSE: dense, LEXICAL: lexical}, list(dense)

    def _searched(self, option: str, name: str) -> Searched:
        return Searched(option=OPTIONS[option], collection=name, size=self.plan.configuration.pool_size)

    def _side(
        self,
        questions: Sequence[Question],
        before: Mapping[str, Ranking],
        after: Mapping[str, Ranking],
        fired: Sequence[str],
    ) -> Side:
        seed = self.plan.configuration.seed
        judgments = {question.id: question.judged for question in questions}
        wanted = [measure(name) for name in MEASURES]
        first, second = score_run(before, judgments, wanted), score_run({**before, **after}, judgments, wanted)
        return Side(
            before=quality.intervals(first, seed),
            after=quality.intervals(second, seed),
            changes=tuple(compare(name, first.values[name], second.values[name], seed=seed) for name in MEASURES),
            moves=_moves(questions, before, after, fired) if self.per_entry else (),
        )

    async def _provenance(self) -> Provenance:
        probe = pb.SearchRequest(query="?", collection=self._name, pool_size=1, rerank=pb.RERANK_OFF)
        answer = await self.system.search.Search(probe, timeout=CALL_TIMEOUT_S)
        return self.plan.provenance().model_copy(
            update={
                "collection": self._name,
                "store": answer.provenance.store,
                "encoder": model_used(answer.provenance.encoder),
            }
        )


def in_words(entry: Mapping[str, Any]) -> str:
    """Write an entry in one line."""
    if "any" in entry:
        return " = ".join(map(str, entry["any"]))
    return f"{entry.get('from', '')} -> {', '.join(map(str, entry.get('to', ())))}"


def _moves(
    questions: Sequence[Question], before: Mapping[str, Ranking], after: Mapping[str, Ranking], fired: Sequence[str]
) -> tuple[Move, ...]:
    """Return where the first relevant document of each question was and is."""
    by_id = {question.id: question for question in questions}
    return tuple(
        Move(
            question=name,
            before=first_relevant(before.get(name, ()), by_id[name].judged),
            after=first_relevant(after.get(name, ()), by_id[name].judged),
        )
        for name in fired
    )


def _dumped(entries: Sequence[Mapping[str, Any]]) -> str:
    return yaml.safe_dump(list(entries), allow_unicode=True, sort_keys=False)
