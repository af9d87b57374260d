"""Synonyms of collections: a YAML file each, and what they make of a query.

`<collection>.yaml` in the directory of synonyms is a list of entries::

    - any: [sign in, log in, login]       # two-way: each stands for all others
      language: en
    - from: vpn                            # one-way: "vpn" also looks for "remote access", and not the other way round
      to: [remote access, tunnel]

Phrases are compared word by word, case aside; a word is a longest run of letters, digits and underscores. Where two
phrases begin at one word of a query, the longer one counts. The name is the one that a search uses, be it an alias.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from serving.errors import Misconfigured
from serving.watched import Watched

MAX_ENTRIES = 10_000
MAX_VARIANTS = 4
"""Phrasings that one query is encoded in besides its own: each costs a list."""
MAX_WORDS = 32
"""Phrases that are added to one lexical query."""

_WORD = re.compile(r"\w+")
Phrase = Annotated[str, Field(min_length=1, max_length=256)]
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
                raise ValueError(f"{phrase!r} has no word")
        return self

    @property
    def rules(self) -> Iterable[tuple[str, Sequence[str]]]:
        """A phrase, and what stands for it."""
        if self.source:
            yield self.source, self.to
        for phrase in self.any:
            yield phrase, [other for other in self.any if other != phrase]


@dataclass(frozen=True, slots=True)
class _Match:
    """A phrase that was found in a query."""

    begin: int
    end: int
    replacements: Sequence[str]


@dataclass(frozen=True, slots=True)
class Synonyms:
    """The entries of one collection."""

    entries: Sequence[Entry] = ()
    _rules: Mapping[Words, Sequence[tuple[str, Sequence[str]]]] = field(default_factory=dict)
    """Phrase, word by word -> language and what stands for it."""
    _longest: int = 0
    """Words of the longest phrase."""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Self:
        """Make them of entries; several entries of one phrase add up."""
        rules: dict[Words, list[tuple[str, Sequence[str]]]] = {}
        for entry in entries:
            for phrase, replacements in entry.rules:
                rules.setdefault(_words(phrase), []).append((entry.language, replacements))
        return cls(tuple(entries), rules, max(map(len, rules), default=0))

    def words(self, query: str, language: str = "") -> Sequence[str]:
        """Return the phrases to add to a lexical query, at most 32.

        Args:
            query: The query.
            language: Its language; entries of others do not count. Empty is any.
        """
        found = [text for match in self._matches(query, language) for text in match.replacements]
        return list(dict.fromkeys(found))[:MAX_WORDS]

    def variants(self, query: str, language: str = "") -> Sequence[str]:
        """Return the query with one phrase replaced at a time, at most 4 times; see `words` for the arguments.

        The synonyms of a phrase come in the order of the file, those of several phrases by turns, so that no phrase
        takes up all the room.
        """
        made: dict[str, None] = {}
        matches = list(self._matches(query, language))
        for turn in range(max((len(match.replacements) for match in matches), default=0)):
            for match in matches:
                if turn < len(match.replacements):
                    made[query[: match.begin] + match.replacements[turn] + query[match.end :]] = None
        made.pop(query, None)
        return list(made)[:MAX_VARIANTS]

    def _matches(self, query: str, language: str) -> Iterable[_Match]:
        """Find phrases from left to right; the longest at each place, no word twice."""
        places = list(_WORD.finditer(query))
        words = [place.group().casefold() for place in places]
        at = 0
        while at < len(words):
            size, replacements = self._longest_at(words, at, language)
            if size:
                yield _Match(places[at].start(), places[at + size - 1].end(), replacements)
            at += max(1, size)

    def _longest_at(self, words: Sequence[str], at: int, language: str) -> tuple[int, Sequence[str]]:
        for size in range(min(self._longest, len(words) - at), 0, -1):
            rules = self._rules.get(tuple(words[at : at + size]), ())
            replacements = [text for of, texts in rules if not (of and language) or of == language for text in texts]
            if replacements:
                return size, list(dict.fromkeys(replacements))
        return 0, ()


NO_SYNONYMS = Synonyms()
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
        where = ".".join(map(str, first["loc"]))
        raise Misconfigured("SYNONYMS_MALFORMED", f"{name}: {where}: {first['msg']}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Misconfigured("SYNONYMS_MALFORMED", f"{name} is no YAML in UTF-8") from error


class SynonymBook:
    """The files of a directory; each is read again when it changes, and found when it comes.

    Args:
        directory: Where they are; None is nowhere.

    Raises:
        Misconfigured: A file that is there cannot be read or is malformed.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: dict[str, Watched[Synonyms]] = {}
        for path in () if directory is None else sorted(directory.glob("*.yaml")):
            self.of(path.stem)

    def of(self, collection: str) -> Synonyms:
        """Return a collection's synonyms, none where it has no file.

        Raises:
            Misconfigured: A file that has come since cannot be read or is malformed.
        """
        known = self._files.get(collection)
        if known is not None:
            return known.current()
        if self._directory is None:
            return NO_SYNONYMS
        path = self._directory / f"{collection}.yaml"
        if not path.is_file():
            return NO_SYNONYMS
        watched = self._files[collection] = Watched([path], lambda contents: read_synonyms(contents[0], path.name))
        return watched.current()


def _words(phrase: str) -> Words:
    return tuple(word.casefold() for word in _WORD.findall(phrase))
