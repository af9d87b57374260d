"""The library behind FastAPI, one request after the other: what people write first."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import library
import uvicorn
from fastapi import FastAPI, Request

given = library.options()
compute = library.load(given.kind, given.model, given.backend)
app = FastAPI()
# One at a time: calls of several threads at once only wait for each other's cores.
thread = ThreadPoolExecutor(1)


@app.post("/compute")
async def answer(request: Request) -> list[Any]:
    """Return vectors or logits."""
    rows = library.rows_of(await request.json())
    return await asyncio.get_running_loop().run_in_executor(thread, lambda: compute(rows).tolist())


uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")
