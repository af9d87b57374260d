"""Documents and queries encoded by one model in two numeric forms: close enough to search, worth knowing."""

import logging
from functools import lru_cache

from gateway.ports import Model

MOST_NOTED = 1_024

log = logging.getLogger(__name__)


def note_precision(collection: str, made_with: Model, encoder: Model) -> None:
    """Warn, once for each collection and form, where the encoder runs another form than made a collection.

    Both have the bundle's digest, so nothing is refused: vectors of two forms are nearly the same, and figures are in
    docs/precision.md. A search's provenance says what its query was encoded with. An import may not say its form.

    Args:
        collection: Its own name, not an alias.
        made_with: The encoder as the collection knows it.
        encoder: The one that answers now.
    """
    if made_with.precision and encoder.precision != made_with.precision:
        _warn(collection, made_with.precision, encoder.precision)


@lru_cache(MOST_NOTED)
def _warn(collection: str, made_with: str, encoder: str) -> None:
    log.warning(
        "collection %s was made with the encoder in %s, which now runs in %s: scores differ a little from those of one "
        "form; set the encoder's precision, or index again",
        collection,
        made_with,
        encoder,
    )
