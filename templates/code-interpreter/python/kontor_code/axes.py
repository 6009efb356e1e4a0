"""Axes of a matplotlib chart as data: scale, unit and ticks of x and y; and how their places read as values."""

import math
import re

from kontor_code.plain import plain

MAX_TICKS = 200
# "Distance (km)" and "Load [%]" end with a unit; "Sales (2024)" does not.
_UNIT = re.compile(r"[(\[]\s*([^()\[\]]*[^()\[\]\d\s.,-][^()\[\]]*?)\s*[)\]]\s*$")
MAX_UNIT_CHARACTERS = 24
_MATH = re.compile(r"^\$\\mathdefault\{(.*)\}\$$")


def described(axes):
    """Labels, scales, units, ticks and their labels, by the names that a chart has for them."""
    return _described("x", axes.xaxis) | _described("y", axes.yaxis)


def undescribed():
    """The same for what has no axes: a pie, or a figure of several charts."""
    return {
        f"{name}_{field}": value
        for name in ("x", "y")
        for field, value in (("label", None), ("scale", None), ("unit", None), ("ticks", []), ("tick_labels", []))
    }


def _described(name, axis):
    label = axis.get_label_text() or None
    ticks = _ticks(axis)
    return {
        f"{name}_label": label,
        f"{name}_scale": _scale(axis),
        f"{name}_unit": _unit(label),
        f"{name}_ticks": [place for place, _ in ticks],
        f"{name}_tick_labels": [text for _, text in ticks],
    }


def _scale(axis):
    if _mapping(axis):
        return "categorical"
    return "datetime" if _is_dated(axis) else axis.get_scale()


def _unit(label):
    found = _UNIT.search(label or "")
    return found[1] if found and len(found[1]) <= MAX_UNIT_CHARACTERS else None


def _ticks(axis):
    """`(value, label)` of each major tick in view. Formatters may count places, so all of them are formatted first."""
    places = [float(place) for place in axis.get_majorticklocs()]
    if len(places) > MAX_TICKS:
        places = []
    texts = axis.get_major_formatter().format_ticks(places)
    low, high = sorted(axis.get_view_interval())
    slack = (high - low) * 1e-9
    read = values(axis)
    return [
        (read(place) if _is_dated(axis) else _rounded(read(place)), _MATH.sub(r"\1", text))
        for place, text in zip(places, texts)
        if low - slack <= place <= high + slack
    ]


def _rounded(value):
    """Steps of 0.2 add up to 1.2000000000000002."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def values(axis):
    """A function from a place on the axis to the value that stands there: a name, a date or a number."""
    if _is_dated(axis):
        from matplotlib import dates

        return lambda place: dates.num2date(place).isoformat() if _is_there(place) else None
    names = _names(axis)
    return lambda place: names.get(_round(place), plain(place)) if _is_there(place) else None


def _is_there(place):
    """False for a point that is masked or not a number."""
    return place is not None and math.isfinite(place)


def _names(axis):
    """The places of the axis that have words for a label."""
    if mapping := _mapping(axis):
        return {_round(place): name for name, place in mapping.items()}
    labels = [label.get_text() for label in axis.get_ticklabels()]
    if not any(labels) or all(_is_number(label) for label in labels if label):
        return {}
    return {_round(place): label for place, label in zip(axis.get_ticklocs(), labels) if label}


def _mapping(axis):
    return getattr(getattr(axis, "units", None), "_mapping", None)


def _is_dated(axis):
    converter = type(getattr(axis, "converter", None) or getattr(axis, "_converter", None)).__name__
    return "Date" in converter or "date" in converter


def _round(place):
    return round(float(place), 6)


def _is_number(text):
    # Powers of ten are formulas: "$\\mathdefault{10^{2}}$".
    if text.startswith("$"):
        return True
    try:
        float(text.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return False
    return True
