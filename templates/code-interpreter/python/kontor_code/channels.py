"""Our end of a kernel's channels: Jupyter's messages over ZeroMQ, and no more of the protocol than cells need.

See "Messaging in Jupyter", version 5.3, for what the messages say.
"""

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import uuid

import zmq
import zmq.asyncio

DELIMITER = b"<IDS|MSG>"
# Bound for a kernel that floods its channels; further output is dropped.
MAX_MESSAGE_BYTES = 64 * 1024**2


def connection(directory, name):
    """A new connection: what a kernel is told in its connection file, and that file's path."""
    info = {
        # Sockets are files of the machine, so no port is taken from its programs.
        "transport": "ipc",
        "ip": os.path.join(directory, name),
        "shell_port": 1,
        "iopub_port": 2,
        "stdin_port": 3,
        "control_port": 4,
        "hb_port": 5,
        "key": secrets.token_hex(32),
        "signature_scheme": "hmac-sha256",
        "kernel_name": "",
    }
    path = info["ip"] + ".json"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(info, file)
    return info, path


def forget(info):
    """Removes what a kernel that has ended left of its connection."""
    for port in ("shell", "iopub", "stdin", "control", "hb"):
        _unlink(f"{info['ip']}-{info[port + '_port']}")
    _unlink(info["ip"] + ".json")


def _unlink(path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


class Channels:
    """`shell` for requests and their replies, `iopub` for what comes meanwhile; one cell at a time."""

    def __init__(self, context, info):
        self._key = info["key"].encode()
        self._session = uuid.uuid4().hex
        self._shell = self._connect(context, zmq.DEALER, info, "shell")
        self._iopub = self._connect(context, zmq.SUB, info, "iopub")
        self._iopub.setsockopt(zmq.SUBSCRIBE, b"")

    def _connect(self, context, kind, info, channel):
        socket = context.socket(kind)
        socket.linger = 0
        # Unbounded queue: a dropped message could be the last of a cell. The reader bounds the output of a cell.
        socket.rcvhwm = 0
        socket.maxmsgsize = MAX_MESSAGE_BYTES
        socket.connect(f"ipc://{info['ip']}-{info[channel + '_port']}")
        return socket

    def close(self):
        self._shell.close()
        self._iopub.close()

    async def request(self, kind, content):
        """Sends a request; answers the id its replies name."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "session": self._session,
            "username": "kontor",
            "date": "1970-01-01T00:00:00Z",
            "msg_type": kind,
            "version": "5.3",
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        await self._shell.send_multipart([DELIMITER, self._sign(parts), *parts])
        return header["msg_id"]

    async def reply(self):
        return await self._receive(self._shell)

    async def said(self):
        return await self._receive(self._iopub)

    async def _receive(self, socket):
        """The next whole message: `(type, id of the request it belongs to, content)`."""
        while True:
            frames = await socket.recv_multipart()
            try:
                at = frames.index(DELIMITER)
                signature, *parts = frames[at + 1 : at + 6]
                if not hmac.compare_digest(signature, self._sign(parts)):
                    continue
                header, parent, _, content = (json.loads(part) for part in parts)
                return header["msg_type"], parent.get("msg_id"), content
            except (ValueError, KeyError):
                continue

    def _sign(self, parts):
        digest = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        return digest.hexdigest().encode()


async def greet(channels, deadline_seconds):
    """Returns once the kernel answers and is heard on both channels."""
    async with asyncio.timeout(deadline_seconds):
        while True:
            wanted = await channels.request("kernel_info_request", {})
            try:
                # A subscription takes effect some time after the connection, so the request is repeated until its
                # response arrives.
                async with asyncio.timeout(0.5):
                    while (await channels.reply())[1] != wanted:
                        pass
                    while True:
                        kind, of, content = await channels.said()
                        if of == wanted and kind == "status" and content["execution_state"] == "idle":
                            return
            except TimeoutError:
                continue
