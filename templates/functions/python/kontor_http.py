"""One connection: requests are read, the handler is asked, its answer is written, a generator's piece by piece.

It speaks with the server alone, whose requests are well formed and written anew; still nothing here is without bound.
"""

import json
import threading
import time
from socket import MSG_DONTWAIT, SHUT_WR

HEAD_BYTES = 96 * 1024
PIECE_BYTES = 64 * 1024
LINGER_SECONDS = 2
REASONS = {200: "OK", 201: "Created", 204: "No Content", 301: "Moved Permanently", 302: "Found", 304: "Not Modified",
           400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
           413: "Content Too Large", 500: "Internal Server Error", 504: "Gateway Timeout"}


class Closed(Exception):
    """Nobody is there any more, or nothing that could be understood came."""


class TooLarge(Exception):
    pass


class BadResponse(Exception):
    pass


class Request:
    """`method`, `path`, `query` (the last of each name), `query_string`, `headers` (names in lower case), `body`."""

    def __init__(self, method, target, headers, body):
        self.method = method
        path, _, self.query_string = target.partition("?")
        self.path = _unquoted(path)
        self.headers = headers
        self.body = body
        self.request_id = headers.get("x-request-id", "")
        self._query = None

    @property
    def query(self):
        if self._query is None:
            self._query = dict(_pairs(self.query_string))
        return self._query

    @property
    def text(self):
        return self.body.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.body)


def _unquoted(path):
    if "%" not in path:
        return path
    from urllib.parse import unquote

    return unquote(path)


def _pairs(query):
    if not query:
        return []
    from urllib.parse import parse_qsl

    return parse_qsl(query, keep_blank_values=True)


class Connection:
    def __init__(self, socket, max_body):
        self._socket = socket
        self._max_body = max_body
        self._read = b""
        self._lock = threading.Lock()
        # State of the response: None, "begun" or "done". The first thread to respond wins. Nothing is sent under the
        # lock, because a client that does not read would block the watchdog.
        self._answered = None
        self.request_id = ""
        self.keeps = True

    def read(self):
        """The next request. Raises Closed, and TooLarge for one whose body is."""
        self._answered = None
        head = self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3:
            raise Closed
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.strip().lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self.request_id = headers.get("x-request-id", "")
        self.keeps = headers.get("connection", "").lower() != "close"
        if headers.get("expect", "").lower() == "100-continue":
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(parts[0], parts[1], headers, self._body(headers))

    def _body(self, headers):
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._chunks()
        length = int(headers.get("content-length") or 0)
        if length > self._max_body:
            raise TooLarge
        return self._exactly(length)

    def _chunks(self):
        pieces, total = [], 0
        while True:
            size = int(self._until(b"\r\n").split(b";")[0], 16)
            total += size
            if total > self._max_body:
                raise TooLarge
            if size == 0:
                while self._until(b"\r\n"):
                    pass
                return b"".join(pieces)
            pieces.append(self._exactly(size))
            self._exactly(2)

    def _until(self, end):
        while end not in self._read:
            if len(self._read) > HEAD_BYTES:
                raise Closed
            self._more()
        found, self._read = self._read.split(end, 1)
        return found

    def _exactly(self, count):
        pieces, missing = [self._read[:count]], count - len(self._read)
        self._read = self._read[count:]
        while missing > 0:
            piece = self._receive(min(missing, PIECE_BYTES))
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _more(self):
        self._read += self._receive(PIECE_BYTES)

    def _receive(self, count):
        try:
            piece = self._socket.recv(count)
        except OSError as error:
            raise Closed from error
        if not piece:
            raise Closed
        return piece

    def _send(self, data):
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Closed from error

    def _sent_at_once(self, data):
        try:
            return self._socket.send(data, MSG_DONTWAIT) == len(data)
        except OSError:
            return False

    def fail(self, status, code, message):
        """Answers with an error, unless an answer has begun: then it breaks off."""
        with self._lock:
            was, self._answered = self._answered, self._answered or "begun"
            self.keeps = False
        if was == "begun":
            self.close()
        if was is not None:
            return
        try:
            self._send(self._error(status, code, message))
            self._end()
        except Closed:
            pass

    def refuse(self, status, code, message):
        """Answers with an error a request that is not read to its end.

        What is still sent is taken for a while and thrown away: a connection that is closed on unread bytes is reset,
        and whoever sends them never sees the answer (RFC 9112, 9.6).
        """
        self.fail(status, code, message)
        until = time.monotonic() + LINGER_SECONDS
        try:
            self._socket.shutdown(SHUT_WR)
            while time.monotonic() < until:
                self._socket.settimeout(max(0.01, until - time.monotonic()))
                if not self._socket.recv(PIECE_BYTES):
                    return
        except OSError:
            pass

    def break_off(self, status, code, message):
        """The same from another thread, which it never holds up: whoever has no room for an error hears of the end.

        False where all of the answer is sent: there is nothing to break off.
        """
        with self._lock:
            if self._answered == "done":
                return False
            was, self._answered = self._answered, "done"
            self.keeps = False
        if was == "begun" or not self._sent_at_once(self._error(status, code, message)):
            self._shut()
        return True

    def answer(self, method, status, headers, body):
        """`body`: bytes, or an iterator of them."""
        is_whole = isinstance(body, bytes)
        sent = [*headers, ("content-length", str(len(body)))] if is_whole else [*headers, ("transfer-encoding", "chunked")]
        has_none = method == "HEAD" or status in (204, 304)
        if has_none and status != 200:
            sent = headers
        with self._lock:
            if self._answered is not None:
                raise Closed
            self._answered = "begun"
        head = self._head(status, sent)
        if has_none:
            self._send(head)
        elif is_whole and len(body) <= PIECE_BYTES:
            self._send(head + body)
        elif is_whole:
            self._send(head)
            self._send(body)
        else:
            self._send(head)
            for piece in body:
                if piece:
                    self._piece(b"%x\r\n%b\r\n" % (len(piece), piece))
            self._piece(b"0\r\n\r\n")
        self._end()

    def _piece(self, data):
        with self._lock:
            if self._answered != "begun":
                raise Closed
        self._send(data)

    def _end(self):
        with self._lock:
            if self._answered != "begun":
                raise Closed
            self._answered = "done"

    def _error(self, status, code, message):
        error = {"error": {"code": code, "message": message, "request_id": self.request_id}}
        body = json.dumps(error).encode()
        headers = [("content-type", "application/json; charset=utf-8"), ("cache-control", "no-store")]
        headers += [("x-function-error", code), ("content-length", str(len(body)))]
        return self._head(status, headers) + body

    def _head(self, status, headers):
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if not self.keeps:
            lines.append("connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    def close(self):
        self._shut()
        self._socket.close()

    def _shut(self):
        """Whoever still reads or writes it hears of it."""
        try:
            self._socket.shutdown(2)
        except OSError:
            pass
