"""Work in a fork of this process, also one that ends in the middle of it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def in_another_process(work: Callable[[], object]) -> int:
    """The process id of a fork that does the work and ends with 0, or 1 after an exception."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def end_at(call: str) -> None:
    """End this process at the n-th call of an os function ("fsync 1"; "never"), before that call does anything."""
    function, _, number = call.partition(" ")
    if function == "never":
        return
    original, calls = getattr(os, function), []

    def ending(*args):
        calls.append(args)
        if len(calls) > int(number):
            os._exit(1)
        return original(*args)

    setattr(os, function, ending)
