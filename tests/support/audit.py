"""What a call asks the operating system for."""

import sys
from collections.abc import Callable


def audited(expected: str, call: Callable[[], object]) -> list[str]:
    """Return what a call asks the operating system for, such as the names of the files that it opens."""
    messages, listening = list[str](), [True]
    sys.addaudithook(lambda event, args: messages.append(str(args[0])) if event == expected and listening else None)
    call()
    listening.clear()  # a hook cannot be removed
    return messages
