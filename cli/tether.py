"""`python -m cli.tether MODULE`: run a server that ends when its parent does, however the parent ends.

The parent holds the other end of standard input and never writes to it. The operating system closes it even where the
parent was killed; the server then gets the SIGTERM that nobody is left to send.
"""

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Run the module named on the command line as a program."""
    threading.Thread(target=_follow, name="tether", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")


def _follow() -> None:
    # Unbuffered: a thread inside a buffered read holds a lock that the interpreter needs to exit.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
