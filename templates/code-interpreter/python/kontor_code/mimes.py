"""Media types of our kernels, beyond those of Jupyter."""

CHART = "application/vnd.kontor.chart+json"
TABLE = "application/vnd.kontor.table+json"
# `{name, value, traceback}`, from the JavaScript kernel.
ERROR = "application/vnd.kontor.error+json"
# Keys that Kontor adds to the content of an `execute_request`: the environment of one cell.
CELL_ENV = "kontor_env"
