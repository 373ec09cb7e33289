"""Ctrl-C between iterations instead of in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupt:
    """Set by the first Ctrl-C."""

    requested = False


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C into a request; a second one raises KeyboardInterrupt at once.

    Outside the main thread, or under a handler of the user's own, Ctrl-C stays as it is.
    """
    interrupt = Interrupt()
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield interrupt
        return

    def handler(signal_number: int, frame: FrameType | None) -> Any:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt.requested = True

    signal.signal(signal.SIGINT, handler)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
