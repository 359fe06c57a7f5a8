"""The interpreter that stays warm from one repository to the next: what it has imported is torch's, and nothing of any
repository's, whose scripts run in forks of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from gradfix.result import Settings
from gradfix.run import InterpreterError
from gradfix.run.zygote import Zygote


class Warm:
    """One zygote at most, started when it is first asked for."""

    def __init__(self) -> None:
        self._zygote: Zygote | None = None
        self._made_for: object = None

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._close()

    @property
    def processes(self) -> frozenset[int]:
        """What is to live on between two repositories."""
        return frozenset() if self._zygote is None else frozenset({self._zygote.pid})

    @contextmanager
    def zygote(self, settings: Settings) -> Iterator[Zygote]:
        """The zygote for one repository, as if it had just been started. Raises InterpreterError, WallError."""
        sandbox = settings.sandbox or "strict"
        if self._made_for != (settings.python, sandbox):
            self._close()
        if self._zygote is None:
            self._zygote = Zygote(settings.python, sandbox=sandbox)
            self._made_for = (settings.python, sandbox)
        try:
            yield self._zygote
        except InterpreterError:
            self._close()
            raise
        finally:
            if self._zygote is not None and not self._zygote.settle():
                self._close()

    def _close(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = self._made_for = None
