"""terminal.py COLS ROWS PROGRAM ARGUMENT...: runs a program on its own terminal, between stdin and stdout.

Descriptor 3 receives sizes, each as columns and rows (u16 LE). Its end of file means that the driver has ended, and
ends the program. Otherwise this script exits as the program does. SIGHUP is forwarded to the program.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios

INPUT, OUTPUT, SIZES = 0, 1, 3


def resize(terminal, cols, rows):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def write(fd, data):
    while data:
        data = data[os.write(fd, data) :]


def read(fd):
    try:
        return os.read(fd, 65536)
    except OSError:  # EIO: no process has the terminal open any more
        return b""


child, terminal = pty.fork()
if child == 0:
    os.close(SIZES)
    resize(0, int(sys.argv[1]), int(sys.argv[2]))
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    finally:
        os._exit(127)
signal.signal(signal.SIGHUP, lambda *_: os.kill(child, signal.SIGHUP))

sources = [INPUT, SIZES, terminal]
while terminal in sources:
    for source in select.select(sources, [], [])[0]:
        data = read(source)
        if not data and source == SIZES:
            os.kill(child, signal.SIGKILL)
        if not data:
            sources.remove(source)
        elif source == terminal:
            write(OUTPUT, data)
        elif source == INPUT:
            write(terminal, data)
        else:
            resize(terminal, *struct.unpack("<HH", data[-4:]))

status = os.waitpid(child, 0)[1]
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
sys.exit(os.waitstatus_to_exitcode(status))
