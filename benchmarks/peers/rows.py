"""What a request is for the model: rows of token ids, with our tokenizer, as our servers make them."""

from collections.abc import Iterable

from benchmarks.peers.workload import PREFIX, Request
from serving.bundle import Bundle
from serving.tokens import FrozenTokenizer, PairTruncation, Tokens


class Rower:
    """Turns requests into rows.

    Args:
        bundle: Whose tokenizer to use.
    """

    def __init__(self, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self._tokenizer = FrozenTokenizer(bundle.tokenizer_path, manifest.special_tokens, manifest.max_tokens)

    def rows(self, request: Request) -> list[Tokens]:
        """Return one row per text."""
        if request.kind == "encoder":
            ids = self._tokenizer.content_ids([PREFIX[request.role] + text for text in request.texts])
            return [self._tokenizer.single(one) for one in ids]
        query, *passages = self._tokenizer.content_ids([request.query, *request.texts])
        return [self._tokenizer.pair(query, one, PairTruncation.LONGEST_FIRST) for one in passages]

    def token_counts(self, requests: Iterable[Request]) -> list[int]:
        """Return the tokens of each request, padding not counted."""
        return [sum(map(len, self.rows(one))) for one in requests]
