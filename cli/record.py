"""What became of the lines of a run: counted, and kept in journal and reject file where there are any."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cli.journal import Counts, Journal
from cli.lines import Line, Malformed
from cli.rejects import MALFORMED, Rejects
from retrieval.gateway.v1 import gateway_pb2 as pb

KEPT = 1_000
"""Problems of each kind that are kept in memory; the reject file has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A document that the gateway did not take."""

    number: int
    """Its line, from 1."""
    reason: str
    message: str


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of the lines, those of an interrupted run before included."""

    line_count: int = 0
    counts: Counts = field(default_factory=Counts)
    resumed_count: int = 0
    """Documents that an interrupted run had stored."""
    surrogate_count: int = 0
    malformed_count: int = 0
    malformed: list[Malformed] = field(default_factory=list)
    """The first of them."""
    refused_count: int = 0
    refused: list[Refused] = field(default_factory=list)
    """The first of them."""

    @property
    def stored_count(self) -> int:
        """Documents stored, a split one counted once."""
        return self.counts.stored

    @property
    def rejected_count(self) -> int:
        """Lines that are no document in the collection."""
        return self.malformed_count + self.refused_count

    @property
    def done_count(self) -> int:
        """Lines that need no more work."""
        return self.stored_count + self.rejected_count


class Record:
    """Takes note; in the reject file before the journal, so that a crash between the two loses nothing.

    Args:
        journal: Open, with the run begun; None where nothing is to be resumed.
        rejects: None where there is no reject file.
    """

    def __init__(self, journal: Journal | None = None, rejects: Rejects | None = None) -> None:
        self.outcome = Outcome()
        self._journal = journal
        self._rejects = rejects
        if journal is not None:
            self.outcome.counts = replace(journal.counts)
            self.outcome.resumed_count = journal.counts.stored
            for number, (reason, message) in journal.refused.items():
                self._count_refused(number, reason, message)

    def settled(self, number: int) -> bool:
        """Tell whether an interrupted run has settled what becomes of a line."""
        return self._journal is not None and self._journal.covers(number)

    def malformed(self, line: Malformed) -> None:
        """Note a line that is no document."""
        outcome = self.outcome
        outcome.malformed_count += 1
        if len(outcome.malformed) < KEPT:
            outcome.malformed.append(replace(line, original=""))
        if self._rejects is not None:
            self._rejects.add(line.number, MALFORMED, line.problem, line.original, durable=False)

    def refused(self, line: Line, reason: str, message: str) -> None:
        """Note a document that the gateway did not take."""
        self._count_refused(line.number, reason, message)
        if self._rejects is not None:
            self._rejects.add(line.number, reason, message, line.original)
        if self._journal is not None:
            self._journal.refuse(line.number, reason, message)

    def stored(self, lines: Sequence[Line], stored: pb.Stored) -> None:
        """Note an acknowledgement."""
        counts = Counts(
            stored=stored.stored_count,
            truncated=stored.truncated_count,
            split=stored.split_count,
            parts=stored.part_count,
        )
        self.outcome.counts.add(counts)
        if self._journal is not None:
            self._journal.stored(lines[0].number, lines[-1].number, counts)

    def _count_refused(self, number: int, reason: str, message: str) -> None:
        self.outcome.refused_count += 1
        if len(self.outcome.refused) < KEPT:
            self.outcome.refused.append(Refused(number=number, reason=reason, message=message))
