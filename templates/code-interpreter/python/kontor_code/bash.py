"""Bash contexts: one shell each, whose variables, functions and directory stay from cell to cell.

The shell is an interactive one without a terminal: only such a shell gives up the whole cell at an interrupt and lives
on. It reads commands from a pipe, and its prompts and notes go to /dev/null. A cell is a file that the shell sources
with the output redirected, so that line numbers are the cell's own and nothing of ours is in its history or its files.
Variables before the `.` are the cell's environment: bash itself takes them back afterwards, also after an interrupt.
"""

import asyncio
import codecs
import fcntl
import os
import re
import shlex
import shutil

from kontor_code import kernels

ARGV = ["setpriv", "--pdeathsig", "KILL", "bash", "--noprofile", "--norc", "--noediting", "-i"]
SETUP = (
    "unset HISTFILE MAILCHECK PROMPT_COMMAND PS0; PS1= PS2=; "
    "set +o history +o histexpand; shopt -u checkwinsize\n"
)
READ_BYTES = 65_536
READ_ONLY = {"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"}
# In POSIX mode, variables set before the `.` would persist.
_UNWANTED = {"POSIXLY_CORRECT", "BASH_ENV", "ENV"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def can_set(name):
    return _NAME.match(name) is not None and name not in READ_ONLY


class Bash:
    """Shells, started from nothing each."""

    async def start(self, cwd, env):
        directory = os.path.join(kernels.DIRECTORY, f"bash{kernels.next_number()}")
        os.makedirs(directory, mode=0o700)
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "status")}
        try:
            process = await asyncio.create_subprocess_exec(
                *ARGV,
                cwd=cwd,
                env={name: value for name, value in env.items() if name not in _UNWANTED},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=[write for _, write in pipes.values()],
                start_new_session=True,
            )
        except BaseException:
            for read, _ in pipes.values():
                os.close(read)
            raise
        finally:
            for _, write in pipes.values():
                os.close(write)
        kernel = Shell(process, directory, pipes)
        kernels.in_background(self._watch(process, kernel))
        await kernel.ready()
        return kernel

    async def _watch(self, process, kernel):
        code = await process.wait()
        kernel.gone(code, -code if code < 0 else None)


class Shell(kernels.Kernel):
    def __init__(self, process, directory, pipes):
        super().__init__(process.pid)
        self._input = process.stdin
        self._path = os.path.join(directory, "cell")
        self._reads = {name: read for name, (read, _) in pipes.items()}
        self._writes = {name: write for name, (_, write) in pipes.items()}
        self._decoders = {}
        self._status = b""
        self._cell = None
        self._done = None
        self._count = 0
        loop = asyncio.get_running_loop()
        for name, read in self._reads.items():
            os.set_blocking(read, False)
            loop.add_reader(read, self._read_status if name == "status" else lambda name=name: self._read(name))

    async def ready(self):
        try:
            async with asyncio.timeout(kernels.START_SECONDS):
                answer = asyncio.ensure_future(self._execute(SETUP))
                await asyncio.wait({answer, self.ended}, return_when=asyncio.FIRST_COMPLETED)
            if self.ended.done():
                raise RuntimeError(f"bash ended while it started ({self.ended.result()})")
        except BaseException:
            self.kill()
            raise
        finally:
            answer.cancel()

    async def run(self, cell, code, env):
        """Returns once the shell has finished the cell and its output is read."""
        if env and (name := await self._read_only(list(env))) is not None:
            self._count += 1
            cell.execution_count = self._count
            cell.fail(
                "ReadOnlyVariable",
                f"The cell did not run: its env sets {name}, which an earlier cell made read-only. "
                "Use another name, or restart the context.",
            )
            return
        with open(self._path, "w", errors="replace") as file:
            file.write(code)
        # Output of a background job from between two cells belongs to no cell.
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._cell = cell
        try:
            status = await self._execute(self._source(env))
            self._drain()
        finally:
            self._cell = None
        self._count += 1
        cell.execution_count = self._count
        if status != 0:
            cell.fail("ExitStatus", str(status))

    def _source(self, env):
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
        out, err, status = (self._writes[name] for name in ("stdout", "stderr", "status"))
        # The shell's own pipes are left out: a background job must not hold them.
        redirections = f"</dev/null >&{out} 2>&{err} {out}>&- {err}>&- {status}>&-"
        return f"{variables}command . {shlex.quote(self._path)} {redirections}\n"

    async def _read_only(self, names):
        """
        The first of these variables that the shell cannot set, or None. Bash leaves such an assignment out with a note
        on the shell's own stderr, or ends the shell under `set -e`. A subshell asks, for `set -u` may hold.
        """
        tests = "".join(f"[[ ${{{name}@a}} != *r* ]] || builtin exit {at};" for at, name in enumerate(names, 1))
        line = f"if (builtin set +eu; {tests} builtin exit 0); then {self._report(0)}; else {self._report('$?')}; fi\n"
        number = await self._answer(line)
        return names[number - 1] if 0 < number <= len(names) else None

    async def _execute(self, line):
        """The exit status of a line of commands."""
        return await self._answer(f"{line}{self._report('$?')}\n")

    def _report(self, value):
        return f"builtin printf '%s\\n' \"{value}\" >&{self._writes['status']}"

    async def _answer(self, lines):
        """The number that these lines report."""
        self._done = asyncio.get_running_loop().create_future()
        self._input.write(lines.encode("utf-8", "replace"))
        return await self._done

    def _read_status(self):
        data = self._take("status", READ_BYTES)
        self._status = (self._status + data)[-READ_BYTES:]
        *lines, self._status = self._status.split(b"\n")
        if lines and self._done is not None and not self._done.done():
            self._done.set_result(int(lines[-1]) if lines[-1].isdigit() else 1)

    def _read(self, name):
        data = self._take(name, READ_BYTES)
        if data and self._cell is not None:
            self._cell.stream(name, self._decoders[name].decode(data))
        return len(data)

    def _take(self, name, size):
        try:
            data = os.read(self._reads[name], size)
        except BlockingIOError:
            return b""
        if not data:
            # Every writer is gone, the shell among them.
            asyncio.get_running_loop().remove_reader(self._reads[name])
        return data

    def _drain(self):
        """Reads what the cell wrote: no more than a pipe holds, for a job in the background may write without end."""
        for name in self._decoders:
            left = fcntl.fcntl(self._reads[name], fcntl.F_GETPIPE_SZ)
            while left > 0 and (count := self._read(name)) > 0:
                left -= count

    def gone(self, code, number):
        if self.ended.done():
            return
        if self._cell is not None:
            self._drain()
            self._cell = None
        loop = asyncio.get_running_loop()
        for read in self._reads.values():
            loop.remove_reader(read)
            os.close(read)
        self._input.close()
        shutil.rmtree(os.path.dirname(self._path), ignore_errors=True)
        super().gone(code, number)
