"""Charts, parsed back from SVG."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from mathppo.report.charts import (
    MAX_POINTS,
    Axis,
    Chart,
    Mark,
    Series,
    line_chart,
    rows_chart,
    share_bar,
    stacked_chart,
    thinned,
)


def parsed(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart.svg))


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in path.strip("MZ").split("L"))]


def test_line_passes_through_its_points() -> None:
    chart = line_chart([Series("a", [0, 5, 10], [0, 1, 0.5], 2)], Axis("x", (0, 10)), Axis("y", (0, 1)), title="t")
    (stroke,) = parsed(chart).findall(".//path[@class='stroke']")
    (x0, y0), (x1, y1), (x2, y2) = points(stroke.attrib["d"])
    assert x0 < x1 < x2
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 < y2 < y0, "SVG's y grows downwards"
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.1)
    assert chart.legend == [("a", 2, "line")]
    assert parsed(chart).attrib["aria-label"] == "t"


def test_bands_and_intervals_span_low_to_high() -> None:
    numbers = ([1.0, 2.0], [0.5, 0.5], 1)
    band = line_chart([Series("a", *numbers, "line", [0.4, 0.2], [0.6, 0.8])], Axis("x"), Axis("y", (0, 1)), title="t")
    (area,) = parsed(band).findall(".//path[@class='band']")
    top, bottom = points(area.attrib["d"])[:2], points(area.attrib["d"])[:1:-1]
    assert [below[1] - above[1] for above, below in zip(top, bottom, strict=True)] == pytest.approx(
        [0.2 * 161, 0.6 * 161], abs=0.2
    )
    marks = line_chart(
        [Series("a", *numbers, "points", [0.4, 0.2], [0.6, 0.8])], Axis("x"), Axis("y", (0, 1)), title="t"
    )
    assert len(parsed(marks).findall(".//path[@class='whisker']")) == 2
    assert len(parsed(marks).findall(".//circle")) == 2


def test_dots_have_no_legend_entry() -> None:
    chart = line_chart([Series("a", [1, 2], [1, 2], 1, "dots")], Axis("x"), Axis("y"), title="t")
    assert chart.legend == []
    assert len(parsed(chart).findall(".//g[@class='dots tone-1']/circle")) == 2
    assert "data-hover" not in parsed(chart).attrib


@pytest.mark.parametrize("series", [[], [Series("a", [], [], 1)], [Series("a", [3], [0.2], 1)]])
def test_chart_of_few_points_is_valid(series: list[Series]) -> None:
    assert parsed(line_chart(series, Axis("x"), Axis("y"), title="t")).tag == "svg"
    assert parsed(stacked_chart([], [], Axis("x"), title="t")).tag == "svg"
    assert parsed(rows_chart([], title="t")).tag == "svg"
    assert parsed(share_bar([], title="t")).tag == "svg"


def test_hover_data_has_the_numbers() -> None:
    series = [Series("a", [0, 1], [0.25, 1 / 3], 2)]
    chart = line_chart(series, Axis("step"), Axis("", percent=True), title="t")
    hover = json.loads(parsed(chart).attrib["data-hover"])
    assert (hover["x"], hover["percent"]) == ("step", True)
    assert hover["series"][0]["y"] == [0.25, 0.3333]


def test_stacked_layers_fill_to_the_top() -> None:
    layers = [("a", 1, [0.25, 0.5]), ("none", 2, [0.0, 0.0]), ("b", 3, [0.75, 0.5])]
    chart = stacked_chart([0, 1], layers, Axis("x"), title="t")
    assert [label for label, _, _ in chart.legend] == ["a", "b"]
    first, second = (points(p.attrib["d"]) for p in parsed(chart).findall("./path[@d]") if "area" in p.attrib["class"])
    assert first[:2] == second[:1:-1], "the ceiling of one is the floor of the next"
    assert {y for _, y in second[:2]} == {10.0}, "together they reach the top"


def test_rows_place_marks_on_a_common_axis() -> None:
    marks = [Mark(0.25, 0.2, 0.3, 5, "before"), Mark(0.75, 0.7, 0.8, 1, "after")]
    svg = parsed(rows_chart([("level 1", "10 problems", marks), ("level 2", "", marks[:1])], title="t"))
    before, after, alone = svg.findall(".//circle")
    assert float(before.attrib["cx"]) < float(after.attrib["cx"])
    assert before.attrib["cx"] == alone.attrib["cx"]
    assert len(svg.findall(".//path[@class='link']")) == 1
    assert [t.text for t in svg.findall(".//title")][1] == "after: 75% (70% to 80%)"


def test_the_bar_is_split_in_proportion() -> None:
    svg = parsed(share_bar([("a", 1, 3.0), ("b", 2, 1.0)], title="t", width=400))
    a, b = (float(r.attrib["width"]) for r in svg.findall("rect"))
    assert (a, b) == pytest.approx((300 - 1.5, 100 - 1.5))


def test_long_series_are_averaged() -> None:
    size = 7 * MAX_POINTS
    few = thinned(Series("a", range(size), [float(i % 2) for i in range(size)], 1))
    assert len(few.x) == MAX_POINTS
    assert sum(few.y) / len(few.y) == pytest.approx(0.5)
    points_kept = Series("a", range(size), [0.0] * size, 1, "points", [0.0] * size, [0.0] * size)
    assert thinned(points_kept) is points_kept


def test_hostile_labels_are_escaped() -> None:
    bad = '"><script>alert(1)</script>&'
    series = [Series(bad, [0, 1], [0, 1], 1)]
    charts = [
        line_chart(series, Axis(bad), Axis(bad), title=bad),
        stacked_chart([0, 1], [(bad, 1, [1, 1])], Axis(bad), title=bad),
        rows_chart([(bad, bad, [Mark(0.5, 0.4, 0.6, 1, bad)])], title=bad),
        share_bar([(bad, 1, 1.0)], title=bad),
    ]
    for chart in charts:
        assert "<script" not in chart.svg
        assert parsed(chart).attrib["aria-label"] == bad
