"""Ctrl-C and SIGTERM between iterations instead of in the middle of one."""

import logging
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

USUAL: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,  # Ctrl-C
    signal.SIGTERM: signal.SIG_DFL,  # a scheduler that wants the machine back, `kill`
}
"""What happens to the signals that can wait, where nobody has set a handler."""


class Interrupt:
    """Knows the first signal that came."""

    signal_number: int | None = None

    def raise_requested(self) -> None:
        """Raise what ends the process as the signal would have: exit code 130 for Ctrl-C, 143 for SIGTERM.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            SystemExit: SIGTERM.
        """
        if self.signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal_number is not None:
            raise SystemExit(128 + self.signal_number)


@contextmanager
def deferred_interrupt() -> Generator[Interrupt, None, None]:
    """Turn the first signal into a request, which is raised at the end at the latest; a second one acts at once.

    Outside the main thread, or under a handler of the user's own, a signal stays as it is.
    """
    interrupt = Interrupt()
    in_main_thread = threading.current_thread() is threading.main_thread()
    deferred = [number for number, usual in USUAL.items() if in_main_thread and signal.getsignal(number) is usual]

    def handler(signal_number: int, frame: FrameType | None) -> Any:
        _set_usual(deferred)
        interrupt.signal_number = signal_number
        name = signal.Signals(signal_number).name
        logger.warning("%s: the iteration is finished and everything written first; once more stops at once", name)

    for number in deferred:
        signal.signal(number, handler)
    try:
        yield interrupt
    finally:
        _set_usual(deferred)
    interrupt.raise_requested()


def _set_usual(numbers: list[signal.Signals]) -> None:
    for number in numbers:
        signal.signal(number, USUAL[number])
