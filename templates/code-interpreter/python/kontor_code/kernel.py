"""An ipykernel set up for cells that come over an API: no history on disk, no colours, and results as data."""

import json

import zmq
from ipykernel.iostream import OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Type, Unicode
from traitlets.config import Config

from kontor_code import charts
from kontor_code.mimes import CHART

# Longer ones are looked at as text.
MAX_JSON_ITEMS = 10_000
MAX_JSON_CHARACTERS = 1_000_000


def run(connection_file):
    """Serves the connection file's channels until the process ends."""
    # A queue that is full would drop messages, the last of a cell among them.
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
    for plain in (dict, list):
        formatters["application/json"].for_type(plain, as_json)
    app.start()


class Kernel(IPythonKernel):
    """Without the messages for other frontends than the one there is: each costs a cell two changes of thread."""

    def _publish_execute_input(self, *args, **kwargs):
        pass

    def _publish_status(self, status, *args, **kwargs):
        if status != "busy":
            super()._publish_status(status, *args, **kwargs)


class Output(OutStream):
    """stdout and stderr, which ipykernel flushes four times a cell, each time waiting for another thread."""

    def flush(self):
        # What was written before and is not in a buffer any more, that thread has sent, or sends before all that follows.
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


def as_json(value):
    """Lists and dicts that JSON can say as they are."""
    if len(value) > MAX_JSON_ITEMS:
        return None
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    # Keys that are no text, and tuples, come back as something else.
    return value if len(text) <= MAX_JSON_CHARACTERS and json.loads(text) == value else None
