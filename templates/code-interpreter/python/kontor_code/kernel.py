"""An ipykernel set up for cells that come over an API: no history on disk, no colours, and results as data."""

import contextlib
import json
import os

import zmq
from ipykernel.iostream import OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Type, Unicode
from traitlets.config import Config

from kontor_code import charts, tables
from kontor_code.mimes import CELL_ENV, CHART, TABLE

# Longer values are treated as text.
MAX_JSON_ITEMS = 10_000
MAX_JSON_CHARACTERS = 1_000_000


def run(connection_file):
    """Serves the connection file's channels until the process ends."""
    # A full queue would drop messages, even the last of a cell.
    zmq.Context.instance().setsockopt(zmq.SNDHWM, 0)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.banner1 = ""
    config.IPKernelApp.kernel_class = Kernel
    config.IPKernelApp.outstream_class = "kontor_code.kernel.Output"
    app = IPKernelApp.instance(config=config, connection_file=connection_file)
    app.initialize([])
    shell = app.shell
    shell.enable_matplotlib("inline")
    formatters = shell.display_formatter.formatters
    formatters[CHART] = ChartFormatter(parent=shell.display_formatter)
    formatters[TABLE] = TableFormatter(parent=shell.display_formatter)
    for plain in (dict, list):
        formatters["application/json"].for_type(plain, as_json)
    app.start()


class Kernel(IPythonKernel):
    """Without the messages for other frontends than the one there is: each costs a cell two changes of thread."""

    async def execute_request(self, stream, ident, parent):
        with environment(parent["content"].get(CELL_ENV, {})):
            await super().execute_request(stream, ident, parent)

    def _publish_execute_input(self, *args, **kwargs):
        pass

    def _publish_status(self, status, *args, **kwargs):
        if status != "busy":
            super()._publish_status(status, *args, **kwargs)


@contextlib.contextmanager
def environment(env):
    """Sets variables, and afterwards gives each the value that it had."""
    before = {name: os.environ.get(name) for name in env}
    try:
        os.environ.update(env)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Output(OutStream):
    """stdout and stderr, which ipykernel flushes four times a cell, each time waiting for another thread."""

    def flush(self):
        # Output that left the buffer has been sent by that thread, or is sent before all later output.
        if self._buffers:
            super().flush()


class ChartFormatter(BaseFormatter):
    """Charts of matplotlib figures, beside their pictures."""

    format_type = Unicode(CHART)
    print_method = ObjectName("_repr_chart_")
    _return_type = Type(dict)

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.for_type_by_name("matplotlib.figure", "Figure", charts.chart_of)

    def pop(self, typ, default=None):
        """Stays: a change of the pictures' format takes figures out of every formatter."""
        return default


class TableFormatter(BaseFormatter):
    """DataFrames as data, beside their HTML."""

    format_type = Unicode(TABLE)
    print_method = ObjectName("_repr_kontor_table_")
    _return_type = Type(dict)

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.for_type_by_name("pandas.core.frame", "DataFrame", tables.table_of)
        self.for_type_by_name("pandas.core.series", "Series", tables.table_of)


def as_json(value):
    """Lists and dicts that JSON can say as they are."""
    if len(value) > MAX_JSON_ITEMS:
        return None
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    # Keys that are not text, and tuples, would change in JSON.
    return value if len(text) <= MAX_JSON_CHARACTERS and json.loads(text) == value else None
