"""How the words of a collection are indexed: what a run wants of it, and the same in words."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf import json_format

from cli.lexical_options import TOKENIZERS
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured

Count = Callable[[pb.LexicalParameters], float | None]
"""Counts the average number of words; None where that cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexical:
    """How a run wants words to be indexed."""

    given: pb.LexicalParameters
    """What was said."""
    count: Count

    def over(self, old: pb.LexicalParameters) -> pb.LexicalParameters:
        """Return it with everything that was not said as before, but the average counted anew.

        Raises:
            InvalidRequest: It cannot be, and the gateway would refuse it.
        """
        wanted = _merged(old, self.given)
        _require_possible(wanted)
        if not self.given.HasField("average_words") and (counted := self.count(wanted)) is not None:
            wanted.average_words = counted
        return wanted

    def require_same(self, collection: pb.Collection) -> None:
        """Check that a collection's words are indexed in that way.

        Raises:
            Misconfigured: `LEXICAL_INDEX_REQUIRED`, they are not; `LEXICAL_INDEX_DIFFERS`, they are in another.
        """
        remedy = "which is fixed when it is made; name another, or make it anew with --recreate"
        kept = collection.parameters
        if not kept.HasField("lexical"):
            raise Misconfigured("LEXICAL_INDEX_REQUIRED", f"{collection.name} indexes no words, {remedy}")
        if _merged(kept.lexical, self.given) != _merged(kept.lexical, pb.LexicalParameters()):
            raise Misconfigured("LEXICAL_INDEX_DIFFERS", f"{collection.name} indexes words otherwise, {remedy}")


def as_option(given: pb.LexicalParameters | None) -> dict[str, str]:
    """Return what was said as text, as far as it was: what a run that goes on has to have been told as well."""
    if given is None:
        return {}
    said = json_format.MessageToDict(given, preserving_proto_field_name=True)
    if given.extra_stop_words:
        said["extra_stop_words"] = hashlib.sha256("\n".join(given.extra_stop_words).encode()).hexdigest()
    return {"lexical": json.dumps(said, sort_keys=True)}


def in_words(parameters: pb.CollectionParameters) -> str:
    """Return how words are indexed."""
    if not parameters.HasField("lexical"):
        return "not indexed"
    found = parameters.lexical
    tokenizer = {value: name for name, value in TOKENIZERS.items()}.get(found.tokenizer, "word")
    said = [f"{tokenizer} tokenizer, k1 {found.k1:g}, b {found.b:g}, average {found.average_words:g}"]
    if found.language:
        uses = [use for use, done in (("stems", found.stem), ("stop words", found.stop_words)) if done]
        said.append(f"{found.language} {' and '.join(uses) or 'without stems and stop words'}")
    if found.extra_stop_words:
        said.append(f"{len(found.extra_stop_words)} more stop words")
    if found.fold_accents:
        said.append("accents dropped")
    return "; ".join(said)


def _merged(old: pb.LexicalParameters, given: pb.LexicalParameters) -> pb.LexicalParameters:
    """Lay what was said over what was there; the order of stop words says nothing."""
    merged = pb.LexicalParameters()
    merged.CopyFrom(old)
    merged.MergeFrom(given)
    # MergeFrom appends to a list, where a list that is given is instead of the old one.
    merged.extra_stop_words[:] = sorted(set(given.extra_stop_words or old.extra_stop_words))
    return merged


def _require_possible(wanted: pb.LexicalParameters) -> None:
    """Refuse what the gateway would refuse, before a collection is dropped for it."""
    from gateway.convert_lexical import lexical_of as read  # noqa: PLC0415 - slow to load, and only needed here
    from gateway.stores.lexical import require_supported  # noqa: PLC0415

    require_supported(read(wanted, "parameters.lexical"))
