"""What our kernels say beyond what Jupyter has types for."""

CHART = "application/vnd.kontor.chart+json"
# `{name, value, traceback}`, from the JavaScript kernel.
ERROR = "application/vnd.kontor.error+json"
