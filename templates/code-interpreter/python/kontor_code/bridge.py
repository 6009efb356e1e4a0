"""Runs code for a host outside: owns the kernels of this machine and answers on a port of its loopback.

A connection is one request, a line of JSON with an `op`, and its answer, lines of JSON of which the last says that it
is over. See server/src/sandbox/code/PROTOCOL.md for every request and frame. The host believes nothing this program
says beyond bounds of its own; what is bounded here is bounded for the machine's sake.
"""

import asyncio
import json
import os
import shutil
import sys

import zmq.asyncio

from kontor_code import cells, contexts, kernels

PORT = int(os.environ.get("KONTOR_SERVICE_PORT", "49982"))
MAX_REQUEST_BYTES = 16 * 1024**2
REQUEST_SECONDS = 30


async def main():
    # Files here belong to kernels of an earlier bridge, which ended with it.
    shutil.rmtree(kernels.DIRECTORY, ignore_errors=True)
    os.makedirs(kernels.DIRECTORY, mode=0o700)
    # A single thread is enough for loopback, and a machine may have one core.
    sockets = zmq.asyncio.Context(io_threads=1)
    every = contexts.Contexts(kernels.Python(sockets), kernels.JavaScript(sockets))
    server = await asyncio.start_server(
        lambda reader, writer: serve(every, reader, writer), "127.0.0.1", PORT, limit=MAX_REQUEST_BYTES
    )
    every.warm()
    await server.serve_forever()


async def serve(every, reader, writer):
    def emit(frame):
        writer.write(json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    try:
        request = await receive(reader)
        if request is not None:
            emit(await OPS[request["op"]](every, request, emit, reader) or {"type": "ok"})
    except contexts.Refusal as refusal:
        emit({"type": "refused", "code": refusal.code, "message": str(refusal)})
    except Exception as error:  # Reported to the host, which waits for a response.
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        emit({"type": "refused", "code": "failed", "message": f"{type(error).__name__}: {error}"})
    finally:
        try:
            writer.close()
            await writer.wait_closed()
        except OSError:
            pass


async def receive(reader):
    """The request, or None: what else finds this port speaks another language, and gets no answer."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            request = json.loads(await reader.readline())
        return request if request["op"] in OPS else None
    except (ValueError, KeyError, TypeError, TimeoutError, OSError):
        return None


async def ready(every, request, emit, reader):
    await asyncio.shield(every.warm())


async def claim(every, request, emit, reader):
    await every.claim(request["env"])


async def list_contexts(every, request, emit, reader):
    return {"type": "contexts", "contexts": every.list()}


async def create_context(every, request, emit, reader):
    every.create(request["id"], request["language"], request["cwd"])
    return {"type": "context", "context": await every.start(request["id"])}


async def restart_context(every, request, emit, reader):
    return {"type": "context", "context": await every.restart(request["id"])}


async def delete_context(every, request, emit, reader):
    return {"type": "context", "context": every.delete(request["id"])}


async def run(every, request, emit, reader):
    # Only a streamed cell ends when its reader disconnects.
    gone = asyncio.ensure_future(reader.read()) if request["watched"] else None
    try:
        cell = cells.Cell(emit)
        await every.run(
            request["id"],
            request["language"],
            request["code"],
            request["env"],
            request["timeout_seconds"],
            cell,
            gone,
        )
    finally:
        if gone is not None:
            gone.cancel()


OPS = {each.__name__: each for each in (ready, claim, list_contexts, create_context, restart_context, delete_context, run)}

if __name__ == "__main__":
    asyncio.run(main())
