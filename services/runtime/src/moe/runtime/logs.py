"""Logging to stderr, as text for people or JSON for collectors; set up once, by a service's main."""

import json
import logging
import sys
import time
from typing import Literal

LogFormat = Literal["text", "json"]

_QUIET = ("grpc", "asyncio", "urllib3")
"""Libraries that log what a service has answered already; only their errors are passed on."""


def set_up(level: str, log_format: LogFormat, *, name: str) -> None:
    """Sends everything from `level` on to stderr, each line naming the process. Replaces an earlier set-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(name) if log_format == "json" else TextFormatter(name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for library in _QUIET:
        logging.getLogger(library).setLevel(logging.ERROR)


class TextFormatter(logging.Formatter):
    """`12:30:01.250 warning demo-003-0 moe.expert: message`; times are local."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """One line, followed by a trace when there is one."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock}.{int(record.msecs):03d} {record.levelname.lower()} {self._process} {record.name}"
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{head}: {record.getMessage()}{trace}"


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC, RFC 3339), level, process, logger, message, and trace when there is one."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Newlines and non-ASCII are escaped, so that a hostile message can't forge a line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)
