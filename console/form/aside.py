"""Work that may wait, done in a thread of its own while the screen goes on; who leaves does not wait for it.

The threads of asyncio's own pool would be waited for at the end, and a look at a dead disk takes minutes.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from interlock.engine.record.crash import reportable

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Do `work` in a thread and give what it gives. Raises what it raises, as an InterlockError that can be told."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():  # nobody waits any more
            return
        if error:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # it is raised where it is waited for
            failure = reportable(error)
        with suppress(RuntimeError):  # the application has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await done
