"""`twostage up` as a process of its own, as a person would start it."""

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from cli.addresses import free_ports

STOP_TIMEOUT_S = 60
TWOSTAGE = (sys.executable, "-c", "from cli.main import app; app()")


class UpProcess:
    """Starts in `with`, is ready then, and is killed with its children on leaving where it still runs."""

    def __init__(self, home: Path, log: Path, *extra: str) -> None:
        self.gateway_port, self.encoder_port, self.reranker_port = free_ports(3)
        self.home = home
        self.log = log
        self.extra = extra
        self.ready_line = ""

    @property
    def options(self) -> list[str]:
        ports = {"gateway": self.gateway_port, "encoder": self.encoder_port, "reranker": self.reranker_port}
        return ["--home", str(self.home), *(part for name in ports for part in (f"--{name}-port", str(ports[name])))]

    @property
    def gateway(self) -> str:
        return f"127.0.0.1:{self.gateway_port}"

    def __enter__(self) -> Self:
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*TWOSTAGE, "up", *self.options, *self.extra], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.ready_line = self._stdout.readline()
        self.children = psutil.Process(self.process.pid).children(recursive=True) if self.ready_line else []
        if not self.ready_line:
            self.process.wait()
            self._stdout.close()
            raise AssertionError(f"up did not start:\n{self.log.read_text()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.interrupt()
        self._stdout.close()
        for child in self.survivors(timeout_s=1):
            child.kill()

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal to the parent alone and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)

    def child(self, module: str) -> psutil.Process:
        return next(child for child in self.children if child.cmdline()[-1] == module)

    def survivors(self, timeout_s: float = STOP_TIMEOUT_S) -> list[psutil.Process]:
        """Wait for the children and return those that outlived the time."""
        return psutil.wait_procs(self.children, timeout_s)[1]


def twostage(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    completed = subprocess.run([*TWOSTAGE, *arguments], input=stdin, capture_output=True, check=False)
    return subprocess.CompletedProcess(
        completed.args, completed.returncode, completed.stdout.decode(), completed.stderr.decode()
    )
