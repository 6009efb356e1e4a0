"""Kernels as processes: how one is started, interrupted and ended, how it runs a cell, and how its end is noticed."""

import asyncio
import itertools
import json
import os
import signal
import sys

from kontor_code import channels
from kontor_code.mimes import CELL_ENV

DIRECTORY = "/run/kontor-code"
START_SECONDS = 60
# Time between a cell's reply and its last output.
DRAIN_SECONDS = 5
# A kernel that lost its bridge cannot be reached any more, so it is killed.
JAVASCRIPT = ["setpriv", "--pdeathsig", "KILL", "node", "/usr/local/lib/kontor-code/kernel.cjs"]
# Time for the last output of a kernel that has ended to arrive.
LAST_WORDS_SECONDS = 0.2

_numbers = itertools.count(1)
_background = set()


def next_number():
    """For the name of a kernel's files."""
    return next(_numbers)


def in_background(work):
    """Runs a coroutine nobody waits for; the event loop alone would let go of it."""
    task = asyncio.ensure_future(work)
    _background.add(task)
    task.add_done_callback(_background.discard)


class Kernel:
    """A running kernel. `ended` is done when its process is gone, with a sentence that says how."""

    def __init__(self, pid):
        self.pid = pid
        self.ended = asyncio.get_running_loop().create_future()

    def interrupt(self):
        self._signal(signal.SIGINT)

    def kill(self):
        self._signal(signal.SIGKILL)

    def _signal(self, number):
        if self.ended.done():
            return
        try:
            # The kernel leads its own process group, so an interrupt also reaches the processes of a cell.
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def gone(self, code, number):
        if self.ended.done():
            return
        self.ended.set_result(f"signal {signal.Signals(number).name}" if number else f"exit code {code}")


class Jupyter(Kernel):
    """A kernel that speaks Jupyter's protocol."""

    def __init__(self, pid, info, line):
        super().__init__(pid)
        self.channels = line
        self._info = info

    async def run(self, cell, code, env):
        """Returns once the kernel has replied and is idle again."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
            **({CELL_ENV: env} if env else {}),
        }
        wanted = await self.channels.request("execute_request", content)
        replied = asyncio.ensure_future(self._reply(cell, wanted))
        idle = asyncio.ensure_future(self._read(cell, wanted))
        try:
            await replied
            await asyncio.wait({idle}, timeout=DRAIN_SECONDS)
        finally:
            replied.cancel()
            idle.cancel()

    async def _reply(self, cell, wanted):
        while True:
            kind, of, content = await self.channels.reply()
            if of == wanted and kind == "execute_reply":
                cell.execution_count = content.get("execution_count")
                return

    async def _read(self, cell, wanted):
        while True:
            kind, of, content = await self.channels.said()
            if of != wanted:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                return
            cell.hear(kind, content)

    def gone(self, code, number):
        if self.ended.done():
            return
        super().gone(code, number)
        asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._close)

    def _close(self):
        self.channels.close()
        channels.forget(self._info)


async def _ready(kernel):
    """Waits for a started kernel to answer; ends it where it does not."""
    greeting = asyncio.ensure_future(channels.greet(kernel.channels, START_SECONDS))
    try:
        await asyncio.wait({greeting, kernel.ended}, return_when=asyncio.FIRST_COMPLETED)
        if kernel.ended.done():
            raise RuntimeError(f"the kernel ended while it started ({kernel.ended.result()})")
        await greeting
        return kernel
    except BaseException:
        kernel.kill()
        raise
    finally:
        greeting.cancel()


class JavaScript:
    """Node kernels, started from nothing each."""

    def __init__(self, context):
        self._context = context

    async def start(self, language, cwd, env):
        info, path = channels.connection(DIRECTORY, f"kernel{next_number()}")
        process = await asyncio.create_subprocess_exec(
            *JAVASCRIPT,
            language,
            path,
            cwd=cwd,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        kernel = Jupyter(process.pid, info, channels.Channels(self._context, info))
        in_background(self._watch(process, kernel))
        return await _ready(kernel)

    async def _watch(self, process, kernel):
        code = await process.wait()
        kernel.gone(code, -code if code < 0 else None)


class Python:
    """Python kernels, forked by a nursery."""

    def __init__(self, context):
        self._context = context
        self._process = None
        self._forks = {}
        self._kernels = {}
        self._nursery = None

    async def start(self, cwd, env):
        process = await self._ensure()
        key = str(next_number())
        info, path = channels.connection(DIRECTORY, f"kernel{key}")
        forked = self._forks[key] = asyncio.get_running_loop().create_future()
        request = {"fork": key, "connection_file": path, "cwd": cwd, "env": env}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        kernel = Jupyter(await forked, info, channels.Channels(self._context, info))
        self._kernels[kernel.pid] = kernel
        return await _ready(kernel)

    async def _ensure(self):
        """The nursery, once it has everything imported."""
        started = self._nursery
        if started is None or (started.done() and (started.exception() or self._process.returncode is not None)):
            self._nursery = asyncio.ensure_future(self._launch())
        return await asyncio.shield(self._nursery)

    async def _launch(self):
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "kontor_code.nursery",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        first = await process.stdout.readline()
        if not first:
            raise RuntimeError("Python could not be started")
        in_background(self._listen(process))
        return process

    async def _listen(self, process):
        while line := await process.stdout.readline():
            said = json.loads(line)
            if "forked" in said:
                self._forks.pop(said["forked"]).set_result(said["pid"])
            elif "exited" in said and (kernel := self._kernels.pop(said["exited"], None)):
                kernel.gone(said["code"], said["signal"])
        await process.wait()
        # The kernels of the nursery ended with it.
        for kernel in self._kernels.values():
            kernel.gone(None, signal.SIGKILL)
        self._kernels.clear()
        for forked in self._forks.values():
            forked.set_exception(RuntimeError("Python could not be started"))
        self._forks.clear()
