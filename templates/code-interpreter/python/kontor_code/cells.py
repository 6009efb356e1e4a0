"""One cell: code in, what it said and how it ended out, within bounds of time and size."""

import asyncio
import json
import re
import time

from kontor_code import kernels
from kontor_code.mimes import CHART, ERROR

# How long a kernel gets to react to an interrupt before it is ended.
GRACE_SECONDS = 5
# Between a cell's reply and the last of what it said.
DRAIN_SECONDS = 5
STREAM_BYTES = 8 * 1024**2
# A line for the host stays short, whatever JSON makes of its characters.
PIECE_CHARACTERS = 65_536
MAX_RESULTS = 100
# As JSON.
RESULTS_BYTES = 16 * 1024**2
FIELDS_BYTES = {
    "text": 1024**2,
    "html": 4 * 1024**2,
    "png": 8 * 1024**2,
    "json": 4 * 1024**2,
    "chart": 4 * 1024**2,
}
ERROR_CHARACTERS = 16_384
TRACEBACK_LINES = 50
MIMES = {"text/plain": "text", "text/html": "html", "image/png": "png", "application/json": "json", CHART: "chart"}

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Cell:
    """`emit` is given each frame as it comes; `finish` says what the last one is."""

    def __init__(self, emit):
        self._emit = emit
        self._sizes = {"stdout": 0, "stderr": 0}
        self._results = 0
        self._results_bytes = 0
        self._cut = {}
        self.execution_count = None
        self.interrupted = False
        self.restarted = False
        self._began = time.monotonic()

    def begin(self):
        self._began = time.monotonic()
        self._emit({"type": "started"})

    def finish(self):
        for stream, size in self._sizes.items():
            if size > STREAM_BYTES:
                self._cut[stream] = {"field": stream, "limit": STREAM_BYTES, "size": size}
        if self._results > MAX_RESULTS:
            self._cut["results"] = {"field": "results", "limit": MAX_RESULTS, "size": self._results}
        self._emit(
            {
                "type": "done",
                "execution_count": self.execution_count,
                "duration_ms": round((time.monotonic() - self._began) * 1000),
                "interrupted": self.interrupted,
                "restarted": self.restarted,
                "truncated": list(self._cut.values()),
            }
        )

    def fail(self, name, value, traceback=()):
        self._emit(
            {
                "type": "error",
                "name": name[:1024],
                "value": _ANSI.sub("", value)[:ERROR_CHARACTERS],
                "traceback": [_ANSI.sub("", line)[:ERROR_CHARACTERS] for line in traceback[-TRACEBACK_LINES:]],
            }
        )

    def hear(self, kind, content):
        """A message of the kernel."""
        if kind == "stream":
            self._stream(content["name"], content["text"])
        elif kind in ("execute_result", "display_data", "update_display_data"):
            if (error := content["data"].get(ERROR)) is not None:
                self.fail(error["name"], error["value"], error["traceback"])
            else:
                self._result(content["data"])
        elif kind == "error":
            self.fail(content["ename"], content["evalue"], content["traceback"])

    def _stream(self, stream, text):
        if stream not in self._sizes:
            return
        data = text.encode("utf-8", "replace")
        room = STREAM_BYTES - self._sizes[stream]
        self._sizes[stream] += len(data)
        if room > 0:
            kept = text if len(data) <= room else data[:room].decode("utf-8", "ignore")
            for at in range(0, len(kept), PIECE_CHARACTERS):
                self._emit({"type": "stream", "stream": stream, "text": kept[at : at + PIECE_CHARACTERS]})

    def _result(self, data):
        self._results += 1
        if self._results > MAX_RESULTS:
            return
        found = {}
        for mime, field in MIMES.items():
            if mime not in data:
                continue
            value = data[mime]
            if field in ("text", "html", "png"):
                value = "".join(value) if isinstance(value, list) else str(value)
            if field == "png":
                value = value.replace("\n", "")
            size = len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
            room = min(FIELDS_BYTES[field], RESULTS_BYTES - self._results_bytes)
            if size > room:
                name = f"results[{self._results - 1}].{field}"
                self._cut[name] = {"field": name, "limit": room, "size": size}
                # The beginning of a text is worth having; that of anything else is broken.
                value = value.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") if field == "text" else None
            if value is not None:
                self._results_bytes += min(size, room)
            found[field] = value
        if found:
            self._emit({"type": "result", **found})


async def execute(kernel, cell, code, timeout_seconds, gone):
    """
    Runs code in a kernel. A cell past its time, or whose reader has gone (`gone`, a future, or None), is interrupted;
    a kernel that does not heed that is ended. Answers whether the kernel lives on.
    """
    content = {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }
    wanted = await kernel.channels.request("execute_request", content)
    running = asyncio.ensure_future(_listen(kernel, cell, wanted))
    others = {kernel.ended} | ({gone} if gone is not None else set())
    try:
        await asyncio.wait({running} | others, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not kernel.ended.done():
            cell.interrupted = True
            kernel.interrupt()
            await asyncio.wait({running, kernel.ended}, timeout=GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not kernel.ended.done():
                kernel.kill()
                await kernel.ended
                cell.fail("KernelKilled", "The cell did not stop when it was interrupted, so its kernel was ended.")
                return False
        if running.done():
            running.result()
            return True
        # What it said with its last breath.
        await asyncio.wait({running}, timeout=kernels.LAST_WORDS_SECONDS / 2)
        cell.fail("KernelDied", f"The kernel ended while it ran this cell ({kernel.ended.result()}).")
        return False
    finally:
        running.cancel()


async def _listen(kernel, cell, wanted):
    """Until the kernel has replied and said that it is idle again."""
    replied = asyncio.ensure_future(_reply(kernel, cell, wanted))
    heard = asyncio.ensure_future(_hear(kernel, cell, wanted))
    try:
        await replied
        await asyncio.wait({heard}, timeout=DRAIN_SECONDS)
    finally:
        replied.cancel()
        heard.cancel()


async def _reply(kernel, cell, wanted):
    while True:
        kind, of, content = await kernel.channels.reply()
        if of == wanted and kind == "execute_reply":
            cell.execution_count = content.get("execution_count")
            return


async def _hear(kernel, cell, wanted):
    while True:
        kind, of, content = await kernel.channels.said()
        if of != wanted:
            continue
        if kind == "status" and content["execution_state"] == "idle":
            return
        cell.hear(kind, content)
