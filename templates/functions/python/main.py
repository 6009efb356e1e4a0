"""Serves one handler: `def handler(request)`, plain, async, or a generator whose pieces are streamed.

It listens on loopback, a thread for each connection, and says on standard output when it is ready. It refuses nobody:
who may come, and how many, is decided before it. Programs are slow to start where every file is asked for: nothing is
imported here that most handlers do not need.
"""

import json
import os
import socket
import sys
import threading
import time

from kontor_http import BadResponse, Closed, Connection, TooLarge
from kontor_log import end_lines, request_id, say, take_logging, take_output, tell

TIMEOUT_S = int(os.environ.get("KONTOR_TIMEOUT_MS", "30000")) / 1000
MAX_BODY = int(os.environ.get("KONTOR_MAX_BODY", str(6 * 1024**2)))
PORT = int(os.environ.get("PORT", "8080"))
HANDLER = os.environ.get("KONTOR_HANDLER", "/app/handler.py")
# With as many threads that do not heed their end there is none left to answer.
MOST_STUCK = 10
MESSAGES = {
    "function_error": "The function failed; its logs say why.",
    "function_bad_response": "The function answered with something that is no response; its logs say more.",
    "function_timeout": "The function did not answer in time.",
    "payload_too_large": "The body of the request is too large.",
}


class TimedOut(BaseException):
    """Raised in the handler's own thread once its time is up; no `except Exception` stops it."""


def trace():
    import traceback

    return traceback.format_exc().rstrip("\n")


def load():
    # Without importlib.util, which costs more than most handlers.
    import types

    directory = os.path.dirname(os.path.abspath(HANDLER))
    sys.path.insert(0, directory)
    module = types.ModuleType("handler")
    module.__file__ = HANDLER
    sys.modules["handler"] = module
    with open(HANDLER, "rb") as file:
        exec(compile(file.read(), HANDLER, "exec"), module.__dict__)
    found = getattr(module, "handler", None)
    if not callable(found):
        raise TypeError("The file has to define a function: def handler(request): …")
    return found


class Watch:
    """Ends what takes too long: the caller is answered, and the thread hears of it as soon as it runs Python."""

    def __init__(self):
        self._waiting = {}
        self._changed = threading.Condition()
        self._stuck = set()
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, connection):
        with self._changed:
            thread = threading.get_ident()
            self._waiting[thread] = (time.monotonic() + TIMEOUT_S, connection, request_id.get())
            if len(self._waiting) == 1:
                self._changed.notify()

    def end(self):
        with self._changed:
            thread = threading.get_ident()
            self._waiting.pop(thread, None)
            self._stuck.discard(thread)

    def _run(self):
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                first = min(until for until, _, _ in self._waiting.values())
                now = time.monotonic()
                late = [(t, c, r) for t, (until, c, r) in self._waiting.items() if until <= now]
                for thread, _, _ in late:
                    del self._waiting[thread]
                    self._stuck.add(thread)
                if not late:
                    self._changed.wait(first - now)
                    continue
            for thread, connection, request in late:
                request_id.set(request)
                say("error", f"Timed out: the function has {TIMEOUT_S:g} s for an answer and all of its body.")
                connection.fail(504, "function_timeout", MESSAGES["function_timeout"])
                _raise_in(thread)
            if len(self._stuck) >= MOST_STUCK:
                request_id.set(None)
                say("error", "Too many requests run on after their time: the process ends.")
                os._exit(1)


def _raise_in(thread):
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimedOut))


class Loop:
    """One event loop for all async handlers, made when the first of them is asked."""

    def __init__(self):
        self._loop = None
        self._lock = threading.Lock()

    def run(self, awaitable):
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()

        async def settled():
            return await awaitable

        future = asyncio.run_coroutine_threadsafe(settled(), self._loop)
        try:
            while True:
                # Short waits: a thread that waits in C does not hear that its time is up.
                try:
                    return future.result(0.5)
                except TimeoutError:
                    if future.done():
                        raise
        except TimedOut:
            future.cancel()
            raise

    def pieces(self, generator):
        while True:
            try:
                yield self.run(generator.__anext__())
            except StopAsyncIteration:
                return


loop = Loop()


def answered(value):
    """Status, headers and body of what a handler returned."""
    status, headers = 200, {}
    if isinstance(value, tuple):
        if not 2 <= len(value) <= 3:
            raise BadResponse("a tuple is (body, status) or (body, status, headers)")
        value, status, headers = (*value, {})[:3]
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise BadResponse(f"{status!r} is no status")
    given = headers.items() if isinstance(headers, dict) else headers
    named = [(str(name), str(content)) for name, content in given]
    if any(set(name + content) & {"\r", "\n", "\0"} for name, content in named):
        raise BadResponse("a header has a line break in it")
    kept = ("connection", "transfer-encoding", "content-length", "keep-alive", "upgrade")
    named = [(name, content) for name, content in named if name.lower() not in kept]

    def typed(kind):
        has = any(name.lower() == "content-type" for name, _ in named)
        return named if has else [*named, ("content-type", kind)]

    if isinstance(value, str):
        return status, typed("text/plain; charset=utf-8"), value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return status, typed("application/octet-stream"), bytes(value)
    if isinstance(value, (dict, list)):
        try:
            return status, typed("application/json"), json.dumps(value).encode()
        except (TypeError, ValueError) as error:
            raise BadResponse(str(error)) from error
    if value is None and status in (204, 304):
        return status, named, b""
    if hasattr(value, "__anext__"):
        return status, typed("text/plain; charset=utf-8"), _bytes(loop.pieces(value))
    if hasattr(value, "__next__"):
        return status, typed("text/plain; charset=utf-8"), _bytes(value)
    raise BadResponse(f"the handler answered with {type(value).__name__}: text, bytes, a dict or list for JSON, a generator")


def _bytes(pieces):
    try:
        for piece in pieces:
            if isinstance(piece, str):
                piece = piece.encode()
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                raise BadResponse(f"a generator's pieces are text or bytes, not {type(piece).__name__}")
            yield bytes(piece)
    finally:
        if hasattr(pieces, "close"):
            pieces.close()


def serve(handler, watch, connection):
    try:
        while connection.keeps:
            try:
                request = connection.read()
            except TooLarge:
                connection.fail(413, "payload_too_large", MESSAGES["payload_too_large"])
                return
            request_id.set(connection.request_id or None)
            watch.begin(connection)
            try:
                exchange(handler, connection, request)
            finally:
                watch.end()
                end_lines()
                request_id.set(None)
    except (Closed, ValueError):
        pass
    except TimedOut:
        pass
    finally:
        connection.close()


def exchange(handler, connection, request):
    try:
        value = handler(request)
        if hasattr(value, "__await__"):
            value = loop.run(value)
        status, headers, body = answered(value)
        connection.answer(request.method, status, headers, body)
    except (Closed, TimedOut):
        raise
    except BadResponse as error:
        say("error", str(error))
        connection.fail(500, "function_bad_response", MESSAGES["function_bad_response"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        end_lines()
        os._exit(code)
    except BaseException:
        say("error", trace())
        connection.fail(500, "function_error", MESSAGES["function_error"])


def main():
    take_output()
    try:
        handler = load()
    except BaseException:
        end_lines()
        say("error", trace())
        tell({"k": "failed"})
        os._exit(1)
    take_logging()
    threading.excepthook = lambda args: say("error", f"A thread of the function ended: {args.exc_value!r}")
    watch = Watch()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", PORT))
    listener.listen(128)
    tell({"k": "ready"})
    while True:
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(accepted, MAX_BODY)
        threading.Thread(target=serve, args=(handler, watch, connection), daemon=True).start()


main()
