"""What a matplotlib figure shows, as data: `{type, title, x_label, y_label, series}`.

The types are `line`, `scatter`, `bar`, `pie` and `box`. Each of `series` has a `label` and `points`, which are
`[x, y]` for lines and scatters, `[category, value]` for bars (histograms too) and pies (value: the share of the whole);
a series of a box plot is one box with its five numbers and `outliers` instead. A figure with several charts is of type
`multiple` and has them in `subplots`. What is none of these, or has more points than fit, is no chart: its picture is
still there.
"""

import datetime
import math
import numbers

MAX_POINTS = 20_000


def watch_boxes():
    """A box plot leaves only lines behind: its numbers are kept where they are drawn from."""
    from matplotlib.axes import Axes

    draw = Axes.bxp

    def bxp(self, bxpstats, *args, **kwargs):
        drawn = draw(self, bxpstats, *args, **kwargs)
        self._kontor_boxes = [*getattr(self, "_kontor_boxes", []), *bxpstats]
        return drawn

    bxp.__doc__ = draw.__doc__
    Axes.bxp = bxp


def chart_of(figure):
    """The figure's chart, or None."""
    try:
        charts = [chart for axes in figure.axes if (chart := _chart(axes)) is not None]
    except Exception:  # What people draw is of any kind; a figure that is not understood is a picture.
        return None
    if sum(_points(chart) for chart in charts) > MAX_POINTS:
        return None
    if len(charts) < 2:
        return charts[0] if charts else None
    title = figure.get_suptitle() or None
    return {"type": "multiple", "title": title, "x_label": None, "y_label": None, "series": [], "subplots": charts}


def _chart(axes):
    for kind, read in (("box", _boxes), ("pie", _slices), ("bar", _bars), ("line", _lines), ("scatter", _dots)):
        series = read(axes)
        if series:
            return {
                "type": kind,
                "title": axes.get_title() or None,
                "x_label": axes.get_xlabel() or None,
                "y_label": axes.get_ylabel() or None,
                "series": series,
            }
    return None


def _points(chart):
    return sum(len(each.get("points", each.get("outliers", ()))) for each in chart["series"])


def _lines(axes):
    return [
        {
            "label": _label(line),
            "points": _pairs(line.get_xdata(orig=True), line.get_ydata(orig=True)),
        }
        for line in axes.lines
        if len(line.get_xdata(orig=True)) > 0
    ]


def _dots(axes):
    from matplotlib.collections import PathCollection

    names = _categories(axes.xaxis)
    dated = _dates(axes.xaxis)
    return [
        {
            "label": _label(dots),
            "points": [[names.get(x, dated(x)), _plain(y)] for x, y in dots.get_offsets().tolist()],
        }
        for dots in axes.collections
        if isinstance(dots, PathCollection) and len(dots.get_offsets()) > 0
    ]


def _bars(axes):
    from matplotlib.container import BarContainer

    series = []
    for bars in axes.containers:
        if not isinstance(bars, BarContainer) or not bars.patches:
            continue
        lying = bars.orientation == "horizontal"
        axis = axes.yaxis if lying else axes.xaxis
        names, dated = _categories(axis), _dates(axis)
        points = []
        for bar in bars.patches:
            at = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            value = bar.get_width() if lying else bar.get_height()
            points.append([names.get(_round(at), dated(at)), _plain(value)])
        series.append({"label": _label(bars), "points": points})
    return series


def _slices(axes):
    from matplotlib.patches import Wedge

    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    points = [[_label(wedge), _plain((wedge.theta2 - wedge.theta1) / 360)] for wedge in wedges]
    return [{"label": None, "points": points}] if points else []


def _boxes(axes):
    return [
        {
            "label": str(box["label"]) if box.get("label") is not None else None,
            "min": _plain(box["whislo"]),
            "first_quartile": _plain(box["q1"]),
            "median": _plain(box["med"]),
            "third_quartile": _plain(box["q3"]),
            "max": _plain(box["whishi"]),
            "outliers": [_plain(flier) for flier in box.get("fliers", ())],
        }
        for box in getattr(axes, "_kontor_boxes", [])
    ]


def _categories(axis):
    """What stands at a place of the axis, where that is words."""
    units = getattr(axis, "units", None)
    mapping = getattr(units, "_mapping", None)
    if mapping:
        return {_round(place): name for name, place in mapping.items()}
    labels = [label.get_text() for label in axis.get_ticklabels()]
    if not any(labels) or all(_is_number(label) for label in labels if label):
        return {}
    return {_round(place): label for place, label in zip(axis.get_ticklocs(), labels) if label}


def _dates(axis):
    from matplotlib import dates

    converter = type(getattr(axis, "converter", None) or getattr(axis, "_converter", None)).__name__
    if "Date" in converter or "date" in converter:
        return lambda place: dates.num2date(place).isoformat()
    return _plain


def _pairs(xs, ys):
    return [[_plain(x), _plain(y)] for x, y in zip(_listed(xs), _listed(ys))]


def _listed(values):
    return values.tolist() if hasattr(values, "tolist") and not hasattr(values, "dt") else list(values)


def _label(artist):
    label = artist.get_label()
    # matplotlib's own names for what nobody named.
    return label if isinstance(label, str) and label and not label.startswith("_") else None


def _round(place):
    return round(float(place), 6)


def _is_number(text):
    try:
        float(text.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return False
    return True


def _plain(value):
    """As JSON has it: numbers, text and null."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    return str(value)
