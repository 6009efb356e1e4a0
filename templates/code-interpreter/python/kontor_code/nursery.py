"""Where Python kernels come from: a process that has imported everything and forks one kernel for each context.

A kernel started from nothing takes seconds inside a machine, nearly all of them imports; a fork takes a fraction of
one, and shares the memory. This process has one thread, no sockets and never runs a cell, so that a fork of it is
whole. It speaks lines of JSON: `{"fork": key, "connection_file", "env", "cwd"}` comes in; `{"ready": true}`,
`{"forked": key, "pid"}` and `{"exited": pid, "code", "signal"}` go out. It ends with its input.
"""

import ctypes
import gc
import io
import json
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1


def main():
    # Read at the import: the backend of figures, and a single thread for linear algebra, which forks well.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    warm_up()
    # Objects up to here are never garbage: a collection in a kernel must not copy these pages.
    gc.collect()
    gc.freeze()
    wakeup, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    say({"ready": True})
    lines = Lines(0)
    while True:
        readable, _, _ = select.select([0, wakeup], [], [])
        if wakeup in readable:
            os.read(wakeup, 4096)
            reap()
        if 0 in readable:
            requests = lines.read()
            if requests is None:
                return
            for request in requests:
                fork(request, (wakeup, wake))


def warm_up():
    """Everything a first cell would wait for; a first figure takes longer than all imports together."""
    import debugpy  # noqa: F401
    import ipykernel.kernelapp  # noqa: F401
    import IPython.core.completer  # noqa: F401
    import matplotlib_inline.backend_inline  # noqa: F401
    import matplotlib.pyplot as plt
    import numpy as np
    import pandas as pd

    from kontor_code import charts, kernel  # noqa: F401

    charts.watch_boxes()
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2], [1, 2], label="warm")
    left.legend()
    right.bar(["a", "b"], [1, 2])
    figure.savefig(io.BytesIO(), format="png")
    plt.close("all")
    pd.DataFrame({"a": np.arange(3), "b": ["x", "y", "z"]})._repr_html_()


def fork(request, inherited):
    pid = os.fork()
    if pid > 0:
        say({"forked": request["fork"], "pid": pid})
        return
    try:
        become_kernel(request, inherited)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def become_kernel(request, inherited):
    # A kernel that lost its parent cannot be reached any more.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in inherited:
        os.close(fd)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    # The kernel leads its own process group, so an interrupt also reaches the processes of a cell.
    os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.chdir(request["cwd"])
    # `random` reseeds itself after a fork; numpy does not.
    import numpy as np

    np.random.seed()
    sys.argv = ["python3"]
    # Modules of the current directory can be imported, as in any interactive Python.
    sys.path.insert(0, "")
    from kontor_code import kernel

    kernel.run(request["connection_file"])
    os._exit(0)


def reap():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        say({"exited": pid, "code": code if code >= 0 else None, "signal": -code if code < 0 else None})


def say(message):
    os.write(1, json.dumps(message).encode() + b"\n")


class Lines:
    """Whole lines of a file descriptor, parsed; None at its end."""

    def __init__(self, fd):
        self._fd = fd
        self._rest = b""

    def read(self):
        data = os.read(self._fd, 65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


if __name__ == "__main__":
    main()
