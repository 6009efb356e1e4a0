"""Values of Python as JSON has them: numbers, text and null."""

import datetime
import math
import numbers

# The host reads numbers as doubles, so a larger integer would change.
MAX_INTEGER = 2**53 - 1


def plain(value):
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value) if abs(value) <= MAX_INTEGER else str(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    # pandas' NaT is a datetime, and its NA cannot be compared.
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)
