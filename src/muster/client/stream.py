"""An answer that goes on: lines as they arrive, in batches, each line bounded.

Read by one task at a time. A stream that the server ended in order ends; one that broke off raises `OutcomeUnknown`, also when
what is missing is only the end of the last line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import aiohttp

from muster.client.errors import OutcomeUnknown, ResponseTooLarge
from muster.client.failures import HTTP_FAILURES
from muster.objects.status import ApiError


class LineStream:
    """`named` turns what aiohttp raises into an ApiError, `label` names the request, `deadline` is by the loop's clock."""

    def __init__(
        self,
        content: aiohttp.StreamReader,
        named: Callable[[BaseException], ApiError],
        label: str,
        line_bytes_max: int,
        deadline: float | None,
    ) -> None:
        self._content = content
        self._named = named
        self._label = label
        self._line_bytes_max = line_bytes_max
        self._deadline = deadline
        self.is_timed_out = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes as they come. At the deadline it ends quietly, perhaps in the middle of a line."""
        while True:
            limit: asyncio.Timeout | None = None
            try:
                if self._deadline is None:
                    chunk = await self._content.readany()
                else:
                    async with asyncio.timeout_at(self._deadline) as limit:
                        chunk = await self._content.readany()
            except HTTP_FAILURES as error:
                if limit is not None and limit.expired():
                    self.is_timed_out = True
                    return
                raise self._named(error) from error
            if not chunk:
                return
            yield chunk

    async def lines(self, *, needs_last_newline: bool = True) -> AsyncGenerator[list[bytes], None]:
        """All whole lines that have arrived, without their newlines, never an empty batch and no empty lines."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            head, newline, rest = chunk.partition(b"\n")
            size += len(head)
            parts.append(head)
            if not newline:
                if size > self._line_bytes_max:
                    raise ResponseTooLarge(f"{self._label}: one line is larger than {self._line_bytes_max} bytes")
                continue
            batch = [b"".join(parts), *rest.split(b"\n")]
            last = batch.pop()
            parts, size = [last], len(last)
            batch = [line for line in batch if line.strip()]
            if any(len(line) > self._line_bytes_max for line in batch):
                raise ResponseTooLarge(f"{self._label}: one line is larger than {self._line_bytes_max} bytes")
            if batch:
                yield batch
        last = b"".join(parts)
        if last.strip() and not self.is_timed_out:
            if needs_last_newline:
                raise OutcomeUnknown(f"{self._label}: the stream broke off in the middle of a line")
            yield [last]
