"""Runs a deployment in the foreground, or beside a program that talks to it."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from moe.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OK, CliError, UsageError
from moe.cli.output import forsake_stdout
from moe.cli.supervise.deployment import Deployment, Failure
from moe.cli.supervise.notices import Notice
from moe.cli.supervise.supervisor import Supervisor
from moe.cli.views import LiveTable, View

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_in_foreground(deployment: Deployment, view: View) -> int:
    """Until a signal ends it: SIGINT, SIGTERM and SIGHUP drain, a second one ends at once; so does
    the loss of whoever reads the output. Returns the exit code.

    Raises CliError, or UsageError for a bad package, when the deployment does not come up.
    """
    interrupted, supervisor = asyncio.run(_foreground(deployment, view))
    if supervisor.failure is not None:
        raise problem(supervisor.failure)
    if supervisor.unheard:
        forsake_stdout()
        return EXIT_FAILURE
    return EXIT_INTERRUPTED if interrupted else EXIT_OK


async def _foreground(deployment: Deployment, view: View) -> tuple[bool, Supervisor]:
    supervisor = Supervisor(deployment, view.notify, with_samples=isinstance(view, LiveTable))
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        supervisor.stop()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    showing = asyncio.create_task(view.follow(supervisor))
    try:
        await supervisor.run()
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
    return received[:1] == [signal.SIGINT], supervisor


def problem(failure: Failure) -> CliError:
    """A failure to come up as an error, with the last lines of the log to blame."""
    lines = "".join(f"\n    {line}" for line in failure.log)
    text = failure.reason + (f"; the last lines of its log:{lines}" if lines else "")
    return UsageError(text) if failure.bad_configuration else CliError(text)


class Background:
    """A deployment that runs in a thread of its own, while this one does something with it."""

    def __init__(self, deployment: Deployment, notify: Callable[[Notice], None]) -> None:
        self._deployment = deployment
        self._notify = notify
        self._supervisor: Supervisor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = threading.Event()
        self._up_or_ended = threading.Event()
        self._failure: Failure | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def wait_until_up(self) -> None:
        """Returns when every process is ready. Raises CliError when that can't be."""
        while not self._up_or_ended.wait(0.2):
            continue
        if self._error is not None:
            raise self._error
        if self._failure is not None:
            raise problem(self._failure)

    def stop(self) -> None:
        """Drains and ends everything; interrupted, it ends everything at once."""
        try:
            self._ask_to_stop()
            self._join()
        except KeyboardInterrupt:
            self._ask_to_stop()
            self._join()
            raise

    def start(self) -> None:
        """Begins to start the processes."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._failure = asyncio.run(self._supervise())
        except BaseException as error:
            self._error = error
        finally:
            self._begun.set()
            self._up_or_ended.set()

    async def _supervise(self) -> Failure | None:
        self._loop = asyncio.get_running_loop()
        self._supervisor = Supervisor(self._deployment, self._tell)
        self._begun.set()
        return await self._supervisor.run()

    def _tell(self, notice: Notice) -> None:
        self._notify(notice)
        if notice.event == "up":
            self._up_or_ended.set()

    def _ask_to_stop(self) -> None:
        self._begun.wait()
        loop, supervisor = self._loop, self._supervisor
        if loop is not None and supervisor is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ended in this moment
                loop.call_soon_threadsafe(supervisor.stop)

    def _join(self) -> None:
        while self._thread.is_alive():
            self._thread.join(0.2)


@contextlib.contextmanager
def in_background(deployment: Deployment, notify: Callable[[Notice], None]) -> Iterator[Background]:
    """Runs a deployment as long as the context lasts. SIGTERM and SIGHUP end the context like Ctrl-C does."""
    background = Background(deployment, notify)
    previous = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    background.start()
    try:
        yield background
    finally:
        background.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
