"""Press Ctrl-C at a known moment: so many events of the interpreter after the first import of a module."""

import os
import signal
import sys

MODULE, COUNT = os.environ["CTRL_C_AT"].split(":")
count = -1


def press(event: str, arguments: tuple[object, ...]) -> None:
    global count
    if count >= 0 or (event == "import" and arguments[0] == MODULE):
        count += 1
    if count == int(COUNT):
        count += 1  # the signal is an event, too
        os.kill(os.getpid(), signal.SIGINT)


sys.addaudithook(press)
