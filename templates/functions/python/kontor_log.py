"""What the handler says, with its level and the request that said it.

The server reads standard output by lines: one that begins with the record separator is a record of ours as JSON,
everything else is plain text. A record says `l` level, `r` request, `t` text, or, from the wrapper itself, `k` what
has happened.
"""

import contextvars
import io
import json
import os
import sys
import threading

# The server cuts lines at 8 KiB, so a record with its escapes must not be longer.
RECORD_BYTES = 8000
SEPARATOR = b"\x1e"

request_id = contextvars.ContextVar("request_id", default=None)
_writing = threading.Lock()


def tell(event):
    _write(json.dumps(event).encode())


def say(level, text):
    for line in text.split("\n"):
        _record(level, line)


def _record(level, text):
    record = json.dumps({"l": level, "r": request_id.get(), "t": text}).encode()
    if len(record) <= RECORD_BYTES:
        return _write(record)
    half = min(RECORD_BYTES, len(text) // 2)
    _record(level, text[:half])
    _record(level, text[half:])


def _write(record):
    """At once, so that what a process says last is not lost with it."""
    line = SEPARATOR + record + b"\n"
    with _writing:
        while line:
            try:
                line = line[os.write(1, line) :]
            except BlockingIOError:
                continue
            except OSError:
                return


class Lines(io.TextIOBase):
    """A text stream of whole lines; what is begun is each thread's own."""

    def __init__(self, level, fileno):
        self._level = level
        self._fileno = fileno
        self._begun = threading.local()

    @property
    def encoding(self):
        return "utf-8"

    def writable(self):
        return True

    def fileno(self):
        return self._fileno

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str")
        begun = getattr(self._begun, "text", "") + text
        *whole, rest = begun.split("\n")
        for line in whole:
            _record(self._level, line)
        if len(rest) > RECORD_BYTES:
            _record(self._level, rest)
            rest = ""
        self._begun.text = rest
        return len(text)

    def flush(self):
        pass

    def end(self):
        """A request is over: what it began is a line as well."""
        rest = getattr(self._begun, "text", "")
        if rest:
            self._begun.text = ""
            _record(self._level, rest)


def take_output():
    sys.stdout = Lines("info", 1)
    sys.stderr = Lines("error", 2)


def end_lines():
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Lines):
            stream.end()


def take_logging():
    """After the handler was loaded: one that does not log does not pay for it."""
    logging = sys.modules.get("logging")
    if logging is None:
        return

    class Handler(logging.Handler):
        def emit(self, record):
            try:
                say(_level(record.levelno), self.format(record))
            except Exception:
                self.handleError(record)

    root = logging.getLogger()
    own = (sys.stdout, sys.stderr)
    for handler in list(root.handlers):
        if getattr(handler, "stream", None) in own:
            root.removeHandler(handler)
    if not root.handlers:
        root.addHandler(Handler())
    if root.level == logging.WARNING:
        root.setLevel(logging.INFO)


def _level(number):
    if number >= 40:
        return "error"
    if number >= 30:
        return "warn"
    return "info" if number >= 20 else "debug"
