"""Contexts: each is a kernel with a name, and a queue of cells that run one after the other."""

import asyncio
import datetime
import json
import os

from kontor_code import bash, cells, kernels

HOME = "/workspace"
STATE = "/var/lib/kontor-code/contexts.json"
MAX_CONTEXTS = 20
MAX_WAITING = 32
# The default context of each language, made on first use.
DEFAULTS = {
    "default": "python",
    "default-javascript": "javascript",
    "default-typescript": "typescript",
    "default-bash": "bash",
}


class Refusal(Exception):
    """`code` is for programs, the message for people."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Context:
    def __init__(self, id, language, cwd, created_at):
        self.id = id
        self.language = language
        self.cwd = cwd
        self.created_at = created_at
        self.execution_count = 0
        self.kernel = None
        # True once the context lost a kernel that had run a cell.
        self.lost = False
        self.turn = asyncio.Lock()
        self.waiting = 0

    def record(self):
        return {
            "id": self.id,
            "language": self.language,
            "cwd": self.cwd,
            "created_at": self.created_at,
            "execution_count": self.execution_count,
            "status": "busy" if self.turn.locked() else "idle",
        }


class Contexts:
    """All contexts of the machine. What they are is kept in a file: a bridge that was killed comes back with them."""

    def __init__(self, python, javascript):
        self._python = python
        self._javascript = javascript
        self._bash = bash.Bash()
        self._all = {}
        self._spare = None
        self._claimed = None
        self._load()

    # ---- Start and environment

    def warm(self):
        """Starts a kernel for the first who needs one; answers when it is ready."""
        if self._spare is None:
            self._spare = asyncio.ensure_future(self._python.start(HOME, dict(os.environ)))
        return self._spare

    async def claim(self, env):
        """The machine has become somebody's: kernels see this environment. Safe to repeat."""
        if env == self._claimed:
            return
        self._claimed = env
        os.environ.update(env)
        if self._spare is not None:
            # The cell is first in the kernel's queue, so nothing waits for it. `__import__` leaves no name behind.
            kernels.in_background(_tell(self._spare, f"__import__('os').environ.update({env!r})"))

    # ---- Operations

    def list(self):
        return [context.record() for context in self._all.values()]

    def create(self, id, language, cwd):
        if id in self._all:
            return self._all[id].record()
        if len(self._all) >= MAX_CONTEXTS:
            raise Refusal("context_limit_reached", f"A sandbox has at most {MAX_CONTEXTS} contexts; delete one first.")
        if not os.path.isdir(cwd):
            raise Refusal("invalid_cwd", f"{cwd} is no directory.")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._all[id] = Context(id, language, cwd, now)
        self._save()
        return self._all[id].record()

    async def start(self, id):
        """A context that was asked for has its kernel when this returns."""
        context = self._get(id)
        async with context.turn:
            await self._ensure_kernel(context)
        return context.record()

    async def restart(self, id):
        context = self._get(id)
        old = context.kernel
        if old is not None:
            # Cells that run in it end with it.
            old.kill()
            await old.ended
        async with context.turn:
            if context.kernel is old:
                context.kernel = None
            context.lost = False
            context.execution_count = 0
            await self._ensure_kernel(context)
        return context.record()

    def delete(self, id):
        context = self._all.pop(id, None)
        if context is None:
            raise Refusal("context_not_found", "No such context.")
        self._save()
        if context.kernel is not None:
            context.kernel.kill()
        return context.record()

    async def run(self, id, language, code, env, timeout_seconds, cell, gone):
        if id in DEFAULTS and id not in self._all:
            self.create(id, DEFAULTS[id], HOME)
        context = self._get(id)
        if language not in (None, context.language):
            raise Refusal("wrong_language", f"The context runs {context.language}.")
        _check_env(context.language, env)
        if context.waiting >= MAX_WAITING:
            raise Refusal("context_busy", f"{MAX_WAITING} cells wait in this context already.")
        context.waiting += 1
        try:
            await _turn(context, gone)
        finally:
            context.waiting -= 1
        try:
            if self._all.get(id) is not context:
                raise Refusal("context_not_found", "The context was deleted.")
            kernel = await self._ensure_kernel(context)
            cell.begin()
            cell.restarted, context.lost = context.lost, False
            lives = await cells.execute(kernel, cell, code, env, timeout_seconds, gone)
            if cell.execution_count is not None:
                context.execution_count = cell.execution_count
            if not lives:
                cell.restarted = True
                cell.execution_count = context.execution_count + 1
                context.execution_count = 0
                context.kernel = None
            cell.finish()
        finally:
            context.turn.release()
        if not lives and self._all.get(id) is context:
            # The new kernel starts before the next request.
            await self.start(id)

    # ---- Kernels

    async def _ensure_kernel(self, context):
        kernel = context.kernel
        if kernel is not None and kernel.ended.done():
            context.kernel = kernel = None
            context.lost = True
            context.execution_count = 0
        if kernel is None:
            context.kernel = kernel = await self._start(context)
        return kernel

    async def _start(self, context):
        if not os.path.isdir(context.cwd):
            raise Refusal("invalid_cwd", f"{context.cwd} is no directory any more.")
        if context.language == "bash":
            return await self._bash.start(context.cwd, dict(os.environ))
        if context.language != "python":
            return await self._javascript.start(context.language, context.cwd, dict(os.environ))
        if context.cwd == HOME and self._spare is not None:
            spare, self._spare = self._spare, None
            kernel = await spare
            if not kernel.ended.done():
                return kernel
        return await self._python.start(context.cwd, dict(os.environ))

    def _get(self, id):
        context = self._all.get(id)
        if context is None:
            raise Refusal("context_not_found", "No such context.")
        return context

    # ---- File

    def _load(self):
        try:
            with open(STATE) as file:
                known = json.load(file)
        except (OSError, ValueError):
            return
        for id, language, cwd, created_at in known:
            self._all[id] = context = Context(id, language, cwd, created_at)
            context.lost = True

    def _save(self):
        os.makedirs(os.path.dirname(STATE), exist_ok=True)
        with open(STATE + ".new", "w") as file:
            json.dump([[each.id, each.language, each.cwd, each.created_at] for each in self._all.values()], file)
        os.replace(STATE + ".new", STATE)


def _check_env(language, env):
    for name, value in env.items():
        try:
            os.fsencode(name), os.fsencode(value)
        except UnicodeEncodeError:
            raise Refusal("invalid_env", "A variable is not text.") from None
        if language == "bash" and not bash.can_set(name):
            raise Refusal("invalid_env", f"bash cannot set {name}.")


async def _turn(context, gone):
    """Waits for the cells before; a reader who goes meanwhile gives the place up."""
    turn = asyncio.ensure_future(context.turn.acquire())
    await asyncio.wait({turn} | ({gone} if gone is not None else set()), return_when=asyncio.FIRST_COMPLETED)
    if gone is not None and gone.done():
        if turn.done():
            context.turn.release()
        turn.cancel()
        raise Refusal("gone", "The reader has gone.")


async def _tell(starting, code):
    kernel = await asyncio.shield(starting)
    content = {"code": code, "silent": True, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    await kernel.channels.request("execute_request", content)
