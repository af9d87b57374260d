"""The one check of a text's size, before anything reads it."""

from serving.errors import InvalidRequest

MAX_CHARACTER_BYTES = 4
"""Of UTF-8."""


def require_size(text: str, limit: int, *, field: str) -> None:
    """Check that a text has at most so many bytes of UTF-8.

    Raises:
        InvalidRequest: `TEXT_TOO_LARGE`, with the field's name.
    """
    if len(text) * MAX_CHARACTER_BYTES <= limit:
        return  # nothing to count
    size = len(text.encode("utf-8", "replace"))
    if size > limit:
        raise InvalidRequest("TEXT_TOO_LARGE", f"{size} bytes, the limit is {limit}", field=field)
