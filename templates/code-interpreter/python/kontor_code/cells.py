"""One cell: code in, what it said and how it ended out, within bounds of time and size."""

import asyncio
import json
import re
import time

from kontor_code import kernels
from kontor_code.mimes import CHART, ERROR, TABLE

# Time for a kernel to react to an interrupt before it is killed.
GRACE_SECONDS = 5
STREAM_BYTES = 8 * 1024**2
# A line for the host stays short, whatever JSON escapes in it.
PIECE_CHARACTERS = 65_536
MAX_RESULTS = 100
# Length in JSON.
RESULTS_BYTES = 16 * 1024**2
FIELDS_BYTES = {
    "text": 1024**2,
    "html": 4 * 1024**2,
    "markdown": 1024**2,
    "latex": 1024**2,
    "svg": 4 * 1024**2,
    "png": 8 * 1024**2,
    "jpeg": 8 * 1024**2,
    "pdf": 8 * 1024**2,
    "json": 4 * 1024**2,
    "table": 4 * 1024**2,
    "chart": 4 * 1024**2,
}
# Clients and the host parse JSON recursively; the host accepts 512 levels.
MAX_DEPTH = 256
ERROR_CHARACTERS = 16_384
TRACEBACK_LINES = 50
# Maximum of names in the list of cut forms: a cell can display more than a reader needs.
MAX_CUT = 1000
FIELD_NAME_CHARACTERS = 64
MIMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    TABLE: "table",
    CHART: "chart",
}
# Pictures that only HTML can show.
HTML_IMAGES = ("image/jpeg", "image/gif", "image/webp")
BASE64 = ("png", "jpeg", "pdf")
DATA = ("json", "table", "chart")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# The text of a display object has no information.
_PLACEHOLDER = re.compile(r"^<IPython\.core\.display\.\w+ object>$")


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
                "truncated": [
                    {**cut, "field": cut["field"][:FIELD_NAME_CHARACTERS]}
                    for cut in list(self._cut.values())[:MAX_CUT]
                ],
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
            self.stream(content["name"], content["text"])
        elif kind in ("execute_result", "display_data", "update_display_data"):
            if (error := content["data"].get(ERROR)) is not None:
                self.fail(error["name"], error["value"], error["traceback"])
            else:
                self._result(content["data"])
        elif kind == "error":
            self.fail(content["ename"], content["evalue"], content["traceback"])

    def stream(self, stream, text):
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
        name = f"results[{self._results - 1}]"
        found = {}
        for mime, field in MIMES.items():
            if mime in data:
                found[field] = self._bounded(f"{name}.{field}", field, data[mime])
        self._add_documented_forms(name, found, data)
        for mime in data.keys() - MIMES.keys() - set(HTML_IMAGES):
            self._leave_out(f"{name}.{mime}", 0, _json_bytes(data[mime]))
        self._count_rows(name, found)
        if found:
            self._emit({"type": "result", **found})

    def _bounded(self, name, field, value, limit=None):
        """The value, or as much of it as there is room for; None where a part would be broken."""
        if field not in DATA:
            value = "".join(value) if isinstance(value, list) else str(value)
        if field in BASE64:
            value = value.replace("\n", "")
        if field == "json" and (depth := _depth(value)) > MAX_DEPTH:
            self._leave_out(f"{name}.depth", MAX_DEPTH, depth)
            return None
        size = _json_bytes(value)
        room = min(limit or FIELDS_BYTES[field], RESULTS_BYTES - self._results_bytes)
        if size > room:
            self._leave_out(name, room, size)
            # The beginning of a text is useful; the beginning of any other form is broken.
            value = value.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") if field == "text" else None
        if value is not None:
            self._results_bytes += min(size, room)
        return value

    def _leave_out(self, name, limit, size):
        self._cut[name] = {"field": name, "limit": limit, "size": size}

    def _add_documented_forms(self, name, found, data):
        """Not every client knows every field: `text` has the source of a text, and `html` shows a picture."""
        source = found.get("markdown") or found.get("latex")
        if source and _PLACEHOLDER.match(found.get("text") or "_"):
            found["text"] = self._bounded(f"{name}.text", "text", source)
        if found.get("html") is not None or found.get("png") is not None:
            return
        html = found.get("svg")
        for mime in HTML_IMAGES:
            if html is None and mime in data:
                picture = "".join(str(data[mime]).split())
                html = f'<img src="data:{mime};base64,{picture}">'
        if html is not None:
            found["html"] = self._bounded(f"{name}.html", "html", html, RESULTS_BYTES)

    def _count_rows(self, name, found):
        """Names what the kernel itself left out: rows and columns of a table, points of a chart."""
        if table := found.get("table"):
            for part, total in (("rows", table["total_rows"]), ("columns", table["total_columns"])):
                if total > len(table[part]):
                    self._leave_out(f"{name}.table.{part}", len(table[part]), total)
        if chart := found.get("chart"):
            series = [each for one in (chart, *chart.get("subplots", ())) for each in one["series"]]
            kept = sum(len(each.get("points", ())) for each in series)
            total = sum(each.get("total_points", len(each.get("points", ()))) for each in series)
            if total > kept:
                self._leave_out(f"{name}.chart.points", kept, total)


def _depth(value):
    """How deep lists and dictionaries are nested, without recursion."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, (list, dict))]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def _json_bytes(value):
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


async def execute(kernel, cell, code, env, timeout_seconds, gone):
    """
    Runs code in a kernel. A cell past its time, or whose reader has gone (`gone`, a future, or None), is interrupted;
    a kernel that does not heed that is ended. Answers whether the kernel lives on.
    """
    running = asyncio.ensure_future(kernel.run(cell, code, env))
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
        # The last output of the kernel.
        await asyncio.wait({running}, timeout=kernels.LAST_WORDS_SECONDS / 2)
        cell.fail("KernelDied", f"The kernel ended while it ran this cell ({kernel.ended.result()}).")
        return False
    finally:
        running.cancel()
