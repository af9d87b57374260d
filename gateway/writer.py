"""The hook that has hypothetical passages written (HyDE) by whatever speaks OpenAI's chat completions.

What users ask leaves this system through it, which is why nothing calls it unless an operator has named an endpoint
and a search asks for it. Nothing that is sent or comes back is logged.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Self
from unicodedata import category

import httpx

from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InferenceFailed, Overloaded, Unavailable

PROMPT = "Write a short passage that answers the question. Reply with the passage alone, in the question's language."
"""After Gao et al. 2022, "Precise Zero-Shot Dense Retrieval without Relevance Labels", table 7."""
MAX_PASSAGE_BYTES = 8_192
MAX_ANSWER_BYTES = 1_000_000
RETRY_S = 1.0


class ChatWriter:
    """A `gateway.ports.Writer` over HTTP; opened inside the running loop.

    Args:
        url: Of the API, for example `https://host/v1`.
        model: What the endpoint is to write with.
        passage_count: Passages per query.
        max_tokens: Most tokens of one, as the endpoint counts.
        key: Returns the API key of the moment; None sends none.
        prompt: What the model is told to do with the question.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        passage_count: int = 1,
        max_tokens: int = 200,
        key: Callable[[], str] | None = None,
        prompt: str = PROMPT,
    ) -> None:
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._asked = {"model": model, "n": passage_count, "max_tokens": max_tokens}
        self._count = passage_count
        self._prompt = prompt
        self._key = key
        # No proxy and no key of the environment: what leaves goes where the operator said and nowhere else.
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def write(self, query: str, *, deadline: Deadline) -> Sequence[str]:
        """Return passages that an answer might look like, at least one.

        Raises:
            DeadlineSpent: The endpoint took too long.
            Unavailable: It cannot be reached or failed; so does a URL or a key that cannot be used.
            Overloaded: It takes no more for now.
            InferenceFailed: `WRITER_FAILED`, it refused, or what came back is no passage.
        """
        left = deadline.require("write")
        messages = [{"role": "system", "content": self._prompt}, {"role": "user", "content": query}]
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key()}"}
        body = {**self._asked, "messages": messages}
        try:
            # httpx itself limits every read, but not how many there are.
            async with (
                asyncio.timeout(left),
                self._client.stream("POST", self._url, json=body, headers=headers, timeout=left) as response,
            ):
                _require_success(response.status_code)
                return _passages(await _read(response))[: self._count]
        except (TimeoutError, httpx.TimeoutException):
            raise DeadlineSpent("DEADLINE_SPENT", "the writer took too long") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):  # the latter of hosts and of keys
            # Without it as the cause: its words may hold what was sent.
            raise Unavailable("WRITER_UNAVAILABLE", "the writer cannot be reached") from None


def _require_success(status: int) -> None:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        raise Overloaded("WRITER_OVERLOADED", "the writer takes no more for now", retry_after_s=RETRY_S)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unavailable("WRITER_UNAVAILABLE", f"the writer answered {status}")
    if status != HTTPStatus.OK:
        raise InferenceFailed("WRITER_FAILED", f"the writer answered {status}")


async def _read(response: httpx.Response) -> Any:
    """Read an answer as JSON, up to a limit."""
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise InferenceFailed("WRITER_FAILED", f"the writer's answer is over {MAX_ANSWER_BYTES} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # the latter of lists within lists
        raise InferenceFailed("WRITER_FAILED", "the writer's answer is no JSON") from None


def _passages(answer: Any) -> Sequence[str]:
    try:
        contents = [choice["message"]["content"] for choice in answer["choices"]]
    except (LookupError, TypeError):
        raise InferenceFailed("WRITER_FAILED", "the writer's answer is no chat completion") from None
    passages = [_cut(content.strip()) for content in contents if isinstance(content, str)]
    passages = [passage for passage in passages if not _blank(passage)]
    if not passages:
        raise InferenceFailed("WRITER_FAILED", "the writer wrote nothing")
    return passages


def _cut(passage: str) -> str:
    """Cut to what an encoder takes; what is over its tokens is cut there."""
    return passage.encode("utf-8", "ignore")[:MAX_PASSAGE_BYTES].decode("utf-8", "ignore")


def _blank(passage: str) -> bool:
    """Tell whether nothing in it is visible: only separators, controls, and what formats or is unassigned."""
    return all(category(character)[0] in "ZC" for character in passage)
