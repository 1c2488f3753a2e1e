"""`Jobs` for code without an event loop: the same methods, blocking. Reached as `SyncClient.jobs`.

Signatures and docstrings are those of `Jobs`, taken from it by delegation; threads and closing are `SyncClient`'s affair.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from muster.client.jobs import Jobs

if TYPE_CHECKING:
    from muster.client.sync import SyncClient

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(method: Callable[Concatenate[Jobs, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[SyncJobs, P], R]:
    @functools.wraps(method)
    def call(self: SyncJobs, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._client._call(method(self._jobs, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Jobs, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[SyncJobs, P], Generator[R, None, None]]:
    @functools.wraps(method)
    def iterate(self: SyncJobs, /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        return self._client._iterate(method(self._jobs, *args, **kwargs))

    return iterate


class SyncJobs:
    """Every method of `Jobs`, blocking. `namespace` is where a Job (muster.dev) is looked for and made."""

    def __init__(self, client: SyncClient, *, namespace: str = "") -> None:
        self._client = client
        self._jobs = Jobs(client._client, namespace=namespace)

    @property
    def namespace(self) -> str:
        return self._jobs.namespace

    def within(self, namespace: str) -> SyncJobs:
        """The same for another namespace."""
        return SyncJobs(self._client, namespace=namespace)

    get = _blocking(Jobs.get)
    tree = _blocking(Jobs.tree)
    list = _blocking(Jobs.list)
    diff = _blocking(Jobs.diff)
    wait = _blocking(Jobs.wait)
    submit = _blocking(Jobs.submit)
    stop = _blocking(Jobs.stop)
    suspend = _blocking(Jobs.suspend)
    resume = _blocking(Jobs.resume)
    restart = _blocking(Jobs.restart)
    cancel = _blocking(Jobs.cancel)
    rerun = _blocking(Jobs.rerun)
    delete = _blocking(Jobs.delete)
    approve = _blocking(Jobs.approve)
    reject = _blocking(Jobs.reject)

    watch = _iterating(Jobs.watch)
    logs = _iterating(Jobs.logs)
