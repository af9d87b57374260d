"""Two baselines that no server computes: latent semantic analysis, and dense search without an index."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from evaluation.figures import DocumentId
from serving.errors import Misconfigured

FloatArray = npt.NDArray[np.float64]

NO_LENGTH = 1e-9
"""A text outside the space is rounding errors long, which must not become a direction."""


def lsa(texts: Sequence[str], queries: Sequence[str], component_count: int, seed: int = 0) -> FloatArray:
    """Return the cosines of queries and texts in the space of the greatest singular values of their TF-IDF matrix.

    Args:
        texts: Passages, which alone make the space.
        queries: Questions; one without a word that any passage has is 0 to all.
        component_count: Singular values that are kept.
        seed: Of the randomized decomposition.

    Returns:
        float64 [queries, texts].

    Raises:
        Misconfigured: `CORPUS_TOO_SMALL`, there are fewer texts or words than that.

    Source: Deerwester et al. (1990), "Indexing by Latent Semantic Analysis"; weights and tokens are scikit-learn's
    defaults (words of two or more characters, smoothed idf, rows of length 1).
    """
    vectorizer = TfidfVectorizer()
    matrix = vectorizer.fit_transform(texts)
    if min(matrix.shape) <= component_count:
        raise Misconfigured(
            "CORPUS_TOO_SMALL",
            f"{component_count} components need more than {min(matrix.shape)} texts and words",
        )
    space = TruncatedSVD(n_components=component_count, random_state=seed).fit(matrix)
    return cosines(space.transform(vectorizer.transform(queries)), space.transform(matrix))


def cosines(queries: npt.ArrayLike, texts: npt.ArrayLike) -> FloatArray:
    """Return the cosines of rows, 0 where one has no length; float64 [queries, texts]."""
    found: FloatArray = _unit(queries) @ _unit(texts).T
    return found


def top(scores: npt.ArrayLike, ids: Sequence[DocumentId], count: int) -> list[tuple[DocumentId, float]]:
    """Return the best documents with a score other than 0, highest first, equal ones in the order given.

    Args:
        scores: Of one query, float [documents].
        ids: Of the documents.
        count: At most so many.
    """
    row = np.asarray(scores, np.float64)
    order = np.argsort(-row, kind="stable")[:count]
    return [(ids[place], float(row[place])) for place in order if row[place] != 0]


def _unit(rows: npt.ArrayLike) -> FloatArray:
    matrix = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    found: FloatArray = np.divide(matrix, lengths, out=np.zeros_like(matrix), where=lengths > NO_LENGTH)
    return found
