"""What becomes of texts over a token limit: the options say it, every message of an upsert carries it."""

from dataclasses import dataclass

from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured

WORDS = {
    pb.OVERLONG_REJECT: "reject",
    pb.OVERLONG_TRUNCATE: "truncate",
    pb.OVERLONG_SPLIT: "split",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTexts:
    """What becomes of them, in the gateway's words."""

    overlong: pb.Overlong.ValueType = pb.OVERLONG_REJECT
    part_tokens: int | None = None
    """Most tokens of a part; None is the encoder's limit."""
    part_per_sentence: bool = False

    @property
    def split(self) -> bool:
        """Whether one document may become several."""
        return self.overlong == pb.OVERLONG_SPLIT

    def in_words(self) -> dict[str, str]:
        """Return it as text, as far as it was said: what a run that goes on has to have been told as well."""
        words = {"overlong": WORDS[self.overlong]}
        if self.part_tokens is not None:
            words["part_tokens"] = str(self.part_tokens)
        if self.part_per_sentence:
            words["part_per_sentence"] = "true"
        return words


def long_texts(
    *, truncate: bool = False, split: bool = False, part_tokens: int | None = None, part_per_sentence: bool = False
) -> LongTexts:
    """Read the options; those of parts mean that texts are split.

    Raises:
        Misconfigured: `OPTIONS_CONTRADICT`.
    """
    split = split or part_tokens is not None or part_per_sentence
    if truncate and split:
        message = "a text is cut with --truncate, or split with --split or an option of its parts, not both"
        raise Misconfigured("OPTIONS_CONTRADICT", message)
    if split:
        return LongTexts(overlong=pb.OVERLONG_SPLIT, part_tokens=part_tokens, part_per_sentence=part_per_sentence)
    return LongTexts(overlong=pb.OVERLONG_TRUNCATE if truncate else pb.OVERLONG_REJECT)
