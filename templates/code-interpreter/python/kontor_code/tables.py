"""DataFrames and Series of pandas as data: `{columns: [{name, type}], index, rows, total_rows, total_columns}`.

`rows` and `index` hold the first rows, and `columns` the first columns, as many as the bounds below allow.
"""

import json

from kontor_code.plain import plain

MAX_ROWS = 1000
MAX_COLUMNS = 100
# Maximum in JSON, beside the HTML that pandas makes of the same rows.
MAX_BYTES = 1024**2


def table_of(frame):
    """The table, or None: a subclass may refuse anything, and its text is still a result."""
    try:
        return _table(frame if frame.ndim == 2 else frame.to_frame())
    except Exception:
        return None


def _table(frame):
    total_rows, total_columns = frame.shape
    head = frame.iloc[:MAX_ROWS, :MAX_COLUMNS]
    # By position, because two columns may have the same name.
    columns = [head.iloc[:, at] for at in range(head.shape[1])]
    index, rows, size = [], [], 0
    for label, *values in zip(head.index.tolist(), *(column.tolist() for column in columns)):
        label, row = plain(label), [plain(value) for value in values]
        size += len(json.dumps([label, row], ensure_ascii=False).encode("utf-8", "replace"))
        if size > MAX_BYTES:
            break
        index.append(label)
        rows.append(row)
    return {
        "columns": [{"name": str(column.name), "type": str(column.dtype)} for column in columns],
        "index": index,
        "rows": rows,
        "total_rows": total_rows,
        "total_columns": total_columns,
    }
