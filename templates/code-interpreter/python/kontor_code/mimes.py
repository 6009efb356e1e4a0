"""Media types of our kernels, beyond those of Jupyter."""

CHART = "application/vnd.kontor.chart+json"
TABLE = "application/vnd.kontor.table+json"
# `{name, value, traceback}`, from the JavaScript kernel.
ERROR = "application/vnd.kontor.error+json"
# Names of an `execute_request`'s content that are ours: the environment of one cell.
CELL_ENV = "kontor_env"
