"""Takes on a user id and limits, then becomes another command: `python launch.py SETTINGS COMMAND...`.

Here and not between fork and exec in the parent, where Python code may hang in a program with threads.
"""

import ctypes
import json
import os
import resource
import sys

KEEP_CAPABILITIES, AMBIENT, RAISE = 8, 47, 2  # of prctl
READ_EVERYTHING = 2  # the capability CAP_DAC_READ_SEARCH
VERSION_3 = 0x20080522


def become(user: int) -> None:
    """Another user than root, with no rights but to read what root may: the interpreter may lie in root's home.

    So no writing to root's files, and no signals to root's processes.
    """
    kernel = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if kernel:
        check(kernel.prctl(KEEP_CAPABILITIES, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if kernel:
        keep_reading(kernel)


def keep_reading(kernel: ctypes.CDLL) -> None:
    """Give up every capability but that one, which may not be there either, and hand it to the command."""
    header, sets = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    check(kernel.capget(header, sets))
    bit = sets[1] & 1 << READ_EVERYTHING  # of effective, permitted, inheritable
    check(kernel.capset(header, (ctypes.c_uint32 * 6)(bit, bit, bit)))
    if bit:
        check(kernel.prctl(AMBIENT, RAISE, READ_EVERYTHING, 0, 0))


def check(result: int) -> None:
    """Raise what a call of the C library failed with."""
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def limit(name: str, value: int) -> None:
    """Set a soft and a hard limit, neither above the hard one that there is."""
    number = getattr(resource, name)
    hard = resource.getrlimit(number)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))


def main(settings: str, command: list[str]) -> None:
    """Does not return."""
    wanted = json.loads(settings)
    if wanted["user"] is not None:
        become(wanted["user"])
    for name, value in wanted["resources"].items():
        limit(name, value)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
