"""Synonyms of collections: a YAML file each, and what they make of a query.

`<collection>.yaml` in the directory of synonyms is a list of entries::

    - any: [sign in, log in, login]       # two-way: each stands for all others
      language: en
    - from: vpn                            # one-way: "vpn" also looks for "remote access", and not the other way round
      to: [remote access, tunnel]

Phrases are compared word by word, case aside; a word is a longest run of letters, numbers, underscores and the marks
on them. Phrases and queries are composed first (NFC), so that an accent is the same however it was typed. Where two
phrases begin at one word of a query, the longer one counts. The name is the one that a search uses, be it an alias.

All of this runs on the event loop, on queries that callers send: it takes time by the length of a query, however often
a phrase is in it, and memory for the few phrasings that are used.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, NamedTuple, Self
from unicodedata import category

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from gateway.composition import composed
from serving.errors import Misconfigured
from serving.watched import EVERY_S, Watched

MAX_ENTRIES = 10_000
MAX_VARIANTS = 4
"""Phrasings that one query is encoded in besides its own: each costs a list."""
MAX_TRIED = 32
"""Replacements that are tried for those: some make a phrasing that there is already."""
MAX_WORDS = 32
"""Phrases that are added to one lexical query."""
MAX_PHRASE_WORDS = 16
"""Words of a phrase that is looked for: at each word of a query every length is compared that may begin there."""

MAX_NAMES = 1_000
"""Collections without a file that are remembered: names come from callers."""

log = logging.getLogger(__name__)


Phrase = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(composed)]
Words = tuple[str, ...]


class Entry(BaseModel):
    """One entry of a file: either `any`, or `from` and `to`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    any: Sequence[Phrase] = ()
    source: Phrase = Field("", alias="from", min_length=0)
    to: Sequence[Phrase] = ()
    language: str = ""
    """Of the queries that it is for; empty is all."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.any) == bool(self.source or self.to):
            raise ValueError("either any, or from and to")
        if self.any and len(self.any) < 2:  # noqa: PLR2004 - one phrase has no synonym in here
            raise ValueError("any needs two phrases or more")
        if not self.any and not (self.source and self.to):
            raise ValueError("from and to come together")
        for phrase in (*self.any, *self.to, *((self.source,) if self.source else ())):
            if not _words(phrase):
                raise ValueError("a phrase has no word")
        if any(len(_words(phrase)) > MAX_PHRASE_WORDS for phrase in (*self.any, self.source)):
            raise ValueError(f"a phrase that is looked for has at most {MAX_PHRASE_WORDS} words")
        return self

    @property
    def rules(self) -> Iterable[tuple[str, Sequence[str]]]:
        """A phrase, and what stands for it: nothing that differs in case only, because words are compared without."""
        pairs = [(self.source, self.to)] if self.source else [(phrase, self.any) for phrase in self.any]
        for phrase, texts in pairs:
            others = [text for text in texts if text.casefold() != phrase.casefold()]
            if others:
                yield phrase, others


@dataclass(frozen=True, slots=True)
class _Match:
    """A phrase that was found in a query."""

    begin: int
    end: int
    phrase: Words
    replacements: Sequence[str]


@dataclass(frozen=True, slots=True)
class Synonyms:
    """The entries of one collection."""

    entries: Sequence[Entry] = ()
    _rules: Mapping[Words, Sequence[tuple[str, Sequence[str]]]] = field(default_factory=dict)
    """Phrase, word by word -> language and what stands for it."""
    _sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Word -> how many words the phrases have that begin with it, most first."""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Self:
        """Make them of entries; several entries of one phrase add up."""
        rules: dict[Words, list[tuple[str, Sequence[str]]]] = {}
        for entry in entries:
            for phrase, replacements in entry.rules:
                rules.setdefault(_words(phrase), []).append((entry.language.casefold(), replacements))
        sizes: dict[str, set[int]] = {}
        for words in rules:
            sizes.setdefault(words[0], set()).add(len(words))
        return cls(tuple(entries), rules, {first: sorted(of, reverse=True) for first, of in sizes.items()})

    def words(self, query: str, language: str = "") -> Sequence[str]:
        """Return the phrases to add to a lexical query, at most 32.

        Args:
            query: The query.
            language: Its language, case aside; entries of others do not count. Empty is any.
        """
        found = {match.phrase: match.replacements for match in self._matches(composed(query), language)}
        return _first_different(chain.from_iterable(found.values()), MAX_WORDS)

    def variants(self, query: str, language: str = "", *, besides: Sequence[str] = ()) -> Sequence[str]:
        """Return the query with one phrase replaced at a time, at most 4 times; see `words` for the arguments.

        What is in `besides` is left out: those phrasings have lists already, and would weigh twice. The synonyms of a
        phrase come in the order of the file, those of several phrases by turns, so that no phrase takes up all the
        room. The rest of the query is composed (NFC).
        """
        query = composed(query)
        known = {query, *map(composed, besides)}
        tried = islice(_replaced(query, list(self._matches(query, language))), MAX_TRIED)
        return _first_different((text for text in tried if text not in known), MAX_VARIANTS)

    def _matches(self, query: str, language: str) -> Iterable[_Match]:
        """Find phrases of a composed query from left to right; the longest at each place, no word twice."""
        language = language.casefold()
        spans = _spans(query)
        words = [query[begin:end].casefold() for begin, end in spans]
        found: dict[Words, Sequence[str]] = {}
        at = 0
        while at < len(words):
            phrase = self._longest_at(words, at, language)
            if phrase:
                if phrase not in found:
                    found[phrase] = self._replacements(phrase, language)
                yield _Match(spans[at][0], spans[at + len(phrase) - 1][1], phrase, found[phrase])
            at += max(1, len(phrase))

    def _longest_at(self, words: Sequence[str], at: int, language: str) -> Words:
        """Return the longest phrase that begins at a word and stands for something in a language, or nothing."""
        for size in self._sizes.get(words[at], ()):
            phrase = tuple(words[at : at + size])
            if any(_applies(of, language) for of, _ in self._rules.get(phrase, ())):
                return phrase
        return ()

    def _replacements(self, phrase: Words, language: str) -> Sequence[str]:
        rules = self._rules[phrase]
        return list(dict.fromkeys(text for of, texts in rules if _applies(of, language) for text in texts))


NO_SYNONYMS = Synonyms()
_KEYS = {"any", "from", "to", "language"}
_FILE = TypeAdapter(Annotated[list[Entry], Field(max_length=MAX_ENTRIES)])


def read_synonyms(data: bytes, name: str) -> Synonyms:
    """Read a file of synonyms.

    Args:
        data: Its contents, UTF-8.
        name: Names it in errors.

    Raises:
        Misconfigured: `SYNONYMS_MALFORMED`.
    """
    try:
        return Synonyms.of(_FILE.validate_python(yaml.safe_load(data) or []))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        # A key that is none of ours may be a phrase in the wrong place.
        where = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part in _KEYS)
        raise Misconfigured("SYNONYMS_MALFORMED", f"{name}: {where}: {first['msg']}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        # Without it as the cause: its words quote the file.
        raise Misconfigured("SYNONYMS_MALFORMED", f"{name} is no YAML in UTF-8") from None


class _Look(NamedTuple):
    """What came of looking for a file that was not there, or not right, so far."""

    due: float
    """When to look again, in monotonic seconds."""
    complaint: str = ""


class SynonymBook:
    """The files of a directory; each is read again when it changes, and found when it comes.

    Once it is made no file fails a search: one that cannot be read is logged once, and what was read before stays in
    force, which is nothing for a file that has come since.

    Args:
        directory: Where they are; None is nowhere.
        clock: Monotonic seconds.

    Raises:
        Misconfigured: A file that is there cannot be read or is malformed.
    """

    def __init__(self, directory: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory, self._clock = directory, clock
        self._looks: dict[str, _Look] = {}
        paths = () if directory is None else sorted(directory.glob("*.yaml"))
        self._files = {path.stem: self._watched(path) for path in paths}

    def of(self, collection: str) -> Synonyms:
        """Return a collection's synonyms, none where it has no file; a new one is found within a second."""
        if self._directory is not None and collection not in self._files:
            self._look(self._directory / f"{collection}.yaml")
        known = self._files.get(collection)
        return NO_SYNONYMS if known is None else known.current()

    def _look(self, path: Path) -> None:
        """Look for a file that has not been read yet, unless it has just been looked for."""
        now = self._clock()
        last = self._looks.get(path.stem, _Look(now))
        if now < last.due:
            return
        complaint = ""
        try:
            if path.is_file():
                self._files[path.stem] = self._watched(path)
                log.info("read: %s", path)
        except Misconfigured as error:
            complaint = error.message
            if complaint != last.complaint:
                log.error("%s: %s; going on without it", error.reason, complaint)
        while len(self._looks) >= MAX_NAMES:
            self._looks.pop(next(iter(self._looks)))
        self._looks[path.stem] = _Look(now + EVERY_S, complaint)

    def _watched(self, path: Path) -> Watched[Synonyms]:
        return Watched([path], lambda contents: read_synonyms(contents[0], path.name), clock=self._clock)


def _applies(of: str, language: str) -> bool:
    """Tell whether an entry of a language is for queries of one; empty is all, and any."""
    return not (of and language) or of == language


def _replaced(query: str, matches: Sequence[_Match]) -> Iterator[str]:
    """Make the query with one match replaced by something else, matches by turns; each is a copy of the query."""
    turn = 0
    while matches := [match for match in matches if turn < len(match.replacements)]:
        for match in matches:
            replacement = match.replacements[turn]
            if replacement != query[match.begin : match.end]:
                yield query[: match.begin] + replacement + query[match.end :]
        turn += 1


def _first_different(texts: Iterable[str], count: int) -> Sequence[str]:
    """Return the first texts that differ; no more are made than that takes."""
    found: dict[str, None] = {}
    for text in texts:
        found[text] = None
        if len(found) == count:
            break
    return list(found)


def _words(phrase: str) -> Words:
    return tuple(phrase[begin:end].casefold() for begin, end in _spans(phrase))


def _spans(text: str) -> Sequence[tuple[int, int]]:
    """Return where words begin and end; a mark goes on with a word and begins none.

    Not a pattern's class of word characters, which has no marks and so cuts words of Hindi and of many other scripts.
    """
    spans: list[tuple[int, int]] = []
    for at, character in enumerate(text):
        kind = category(character)[0]
        goes_on = bool(spans) and spans[-1][1] == at
        if kind in "LN" or character == "_" or (kind == "M" and goes_on):
            begin = spans.pop()[0] if goes_on else at
            spans.append((begin, at + 1))
    return spans
