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
from _queue import Empty, SimpleQueue

from kontor_http import BadResponse, Closed, Connection, TooLarge
from kontor_log import end_lines, request_id, say, take_logging, take_output, tell

TIMEOUT_S = int(os.environ.get("KONTOR_TIMEOUT_MS", "30000")) / 1000
MAX_BODY = int(os.environ.get("KONTOR_MAX_BODY", str(6 * 1024**2)))
PORT = int(os.environ.get("PORT", "8080"))
HANDLER = os.environ.get("KONTOR_HANDLER", "/app/handler.py")
# With this many threads that ignore the exception, none is left to respond.
MOST_STUCK = 10
# Time for a signalled thread to end; most end at once.
LEAVING_S = 2
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
    # importlib.util is avoided, because it costs more than most handlers.
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


class Turn:
    """One request, as the watch sees it."""

    __slots__ = ("connection", "is_late", "is_told", "request", "thread", "until")

    def __init__(self, connection):
        self.connection = connection
        self.request = request_id.get()
        self.thread = threading.get_ident()
        self.until = time.monotonic() + TIMEOUT_S
        self.is_late = False
        self.is_told = False


class Watch:
    """Ends what takes too long: the caller is answered, and the thread hears of it as soon as it runs Python.

    It waits for nobody, so that one who does not read, or does not heed his end, costs his own request alone. A thread
    is told once for a request at most, and never after that is over. But it hears it between any two steps, ours
    included: what a thread passes through here has no lock but those made in C, which a `with` takes and gives back in
    one step. Within a Condition's own code it would leave that locked.
    """

    def __init__(self):
        self._turns = set()
        self._lock = threading.Lock()
        self._rests = False
        self._began = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, turn):
        with self._lock:
            self._turns.add(turn)
            # All turns have the same timeout, so the oldest is due first.
            rested, self._rests = self._rests, False
        if rested:
            self._began.put(None)

    def end(self, turn):
        """Nothing reaches the thread on account of this turn any more. Safe to repeat."""
        with self._lock:
            self._turns.discard(turn)
        if turn.is_told:
            import ctypes

            # Takes back an exception that has not arrived yet.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(turn.thread), None)

    def _run(self):
        while True:
            pause = self._look()
            try:
                self._began.get(timeout=pause)
            except Empty:
                pass

    def _look(self):
        """Seconds until the next look; None where it is for a request to begin."""
        now = time.monotonic()
        with self._lock:
            due = [turn for turn in self._turns if turn.until <= now]
            late = [turn for turn in due if not turn.is_late]
            for turn in late:
                turn.is_late = True
                turn.until = now + LEAVING_S
            stuck = len(due) - len(late)
            following = min((turn.until for turn in self._turns if turn.until > now), default=None)
            self._rests = following is None
        for turn in [turn for turn in late if self._tell(turn)]:
            request_id.set(turn.request)
            say("error", f"Timed out: the function has {TIMEOUT_S:g} s for an answer and all of its body.")
        request_id.set(None)
        if stuck >= MOST_STUCK:
            say("error", "Too many requests run on after their time: the process ends.")
            os._exit(1)
        return None if following is None else max(0, following - time.monotonic())

    def _tell(self, turn):
        """False where it is over, or just ends: its thread and its connection go on."""
        # Slow the first time, so it runs outside the lock.
        import ctypes

        with self._lock:
            if turn not in self._turns:
                return False
            if not turn.connection.break_off(504, "function_timeout", MESSAGES["function_timeout"]):
                return False
            turn.is_told = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(turn.thread), ctypes.py_object(TimedOut))
            return True


class Loop:
    """One event loop for all async handlers, made when the first of them is asked."""

    def __init__(self):
        self._loop = None
        self._lock = threading.Lock()

    def run(self, awaitable):
        import asyncio

        with self._lock:
            if self._loop is None:
                made = asyncio.new_event_loop()
                threading.Thread(target=made.run_forever, daemon=True).start()
                self._loop = made
        # A Future has a Condition, so it is avoided; see Watch.
        ended = SimpleQueue()
        left = SimpleQueue()
        tasks = []

        async def settle():
            try:
                ended.put((await awaitable, None))
            except BaseException as error:
                ended.put((None, error))

        def start():
            task = self._loop.create_task(settle())
            # Runs even for a task that was cancelled before its first step, whose own code never runs.
            task.add_done_callback(left.put)
            tasks.append(task)

        def cancel():
            for task in tasks:
                task.cancel()
            if not tasks:
                left.put(None)

        try:
            self._loop.call_soon_threadsafe(start)
            while True:
                # Short waits: a thread that waits in C does not get the exception.
                try:
                    value, error = ended.get(timeout=0.5)
                    break
                except Empty:
                    pass
        except TimedOut:
            self._loop.call_soon_threadsafe(cancel)
            # A blocked loop serves no request, and only the end of the process stops it, so the turn stays counted.
            left.get()
            raise
        if error is not None:
            raise error
        return value

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
                connection.refuse(413, "payload_too_large", MESSAGES["payload_too_large"])
                return
            request_id.set(connection.request_id or None)
            turn = Turn(connection)
            try:
                try:
                    watch.begin(turn)
                    exchange(handler, connection, request)
                finally:
                    watch.end(turn)
            except TimedOut:
                # The exception may have arrived during that end. It arrives once, so this one is complete.
                watch.end(turn)
            finally:
                end_lines()
                request_id.set(None)
    except (Closed, ValueError):
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
