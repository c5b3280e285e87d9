"""Laws of the report's figures: marks, axes, densities, and looks that tell engines apart."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import gaussian_kde

from inference.core.registry import CORRECTION, load_engine
from inference.core.registry import engines as all_engines
from inference.report import page as report
from inference.report import palette, selection, svg
from inference.report.figures import agreement, latent, parameters, progress
from inference.report.figures import chains as figures_chains


def test_words_say_the_numbers_that_are_seen(comparisons):
    """svi's draws are 0.7 and cavi's 0.5 times as wide as the reference's: alt texts and figures
    say so."""
    words = agreement.widths(comparisons["lda"])[0].words
    assert float(re.search(r"cavi (\d\.\d+)", words)[1]) == pytest.approx(
        0.5, abs=0.05
    )  # medians over 27 ratios of sds of 120 draws
    assert float(re.search(r"svi (\d\.\d+)", words)[1]) == pytest.approx(0.7, abs=0.07)


def test_quantities_may_be_named_by_their_coordinate(comparisons):
    """The table's labels are a coordinate of their own, or the quantity's."""
    table = comparisons["lda"].quantities
    renamed = comparisons["lda"]._replace(
        quantities=table.drop_vars("label").assign_coords(quantity=table["label"].values)
    )
    assert [one.drawing for one in agreement.means(renamed)["beta"]] == [
        one.drawing for one in agreement.means(comparisons["lda"])["beta"]
    ]


def test_marks_carry_their_values(comparisons):
    quantity = next(iter(selection.chosen(comparisons["lda"]).values()))[0]
    middle = svg.number(float(np.median(selection.values(comparisons["lda"], "gibbs", quantity))))
    assert (
        f"<title>gibbs, {quantity.label}: {middle}, 90% from"
        in parameters.forests(comparisons["lda"])[0].drawing
    )


def test_chosen_quantities_are_the_largest_words(comparisons):
    comparison = comparisons["lda"]
    beta = comparison.draws["gibbs"]["beta"].mean(0)
    for quantity in next(iter(selection.chosen(comparison).values())):
        topic, word = quantity.place
        assert beta[topic, word] >= np.sort(beta[topic])[-selection.MAX_WORDS]
        assert quantity.label == f"w{word + 1} · topic {topic + 1}"


def drawn_density(comparison, engine):
    """Curve (points, 2) and marker of an engine in the first density, in pixels, and the
    baseline."""
    drawing = parameters.densities(comparison)[0].drawing
    group = re.search(rf'<g class="{palette.css_class(engine)}">(.*?)</g>', drawing)[1]
    line = re.search(r'<path d="([^"]*)" class="l"', group)
    points = (
        np.array(
            [[float(x) for x in pair.split()] for pair in re.findall(r"[ML]([-\d. ]+)", line[1])]
        )
        if line
        else np.empty((0, 2))
    )
    mark = re.search(r'<use [^>]*x="([-\d.]+)" y="([-\d.]+)"', group)
    return (
        points,
        (float(mark[1]), float(mark[2])),
        float(re.search(r'<path d="M12 ([\d.]+)L348', drawing)[1]),
    )


def test_a_narrow_density_is_neither_lost_nor_does_it_hide_the_others(made):
    """A posterior of a hundredth of the width is a spike where it is, cut at five times the
    reference's height."""
    comparison = made("lda", ("gibbs", "cavi", "svi"), truth=False, num_draws=400)
    quantity = next(iter(selection.chosen(comparison).values()))[0]
    value = comparison.draws["cavi"]["beta"]
    value[:] = value.mean(0) + 0.01 * (value - value.mean(0))
    spike, mark, bottom = drawn_density(comparison, "cavi")
    usual, _, _ = drawn_density(comparison, "gibbs")
    height = [bottom - points[:, 1].min() for points in (spike, usual)]
    assert height[0] / height[1] == pytest.approx(
        parameters.TALLEST * 1.08, rel=0.02
    )  # pixels have one decimal; the axis ends 8% above
    assert np.ptp(spike[:, 0]) < 0.1 * np.ptp(usual[:, 0])
    assert spike[:, 0].min() <= mark[0] <= spike[:, 0].max()
    assert quantity.site == "beta"


@pytest.mark.parametrize(("shift", "end"), [(-50.0, 0), (50.0, 1)])
def test_a_density_beyond_the_axis_is_marked_at_its_end(shift, end, made):
    comparison = made("lda", ("gibbs", "cavi"), truth=False)
    comparison.draws["cavi"]["beta"] += shift
    line, mark, bottom = drawn_density(comparison, "cavi")
    usual, _, _ = drawn_density(comparison, "gibbs")
    assert len(line) == 0
    assert mark[1] == bottom
    assert mark[0] > usual[:, 0].max() if end else mark[0] < usual[:, 0].min()


def test_means_and_precisions_of_components_are_told_apart(comparisons):
    """Which one site holds together: the mean in row 0, the precision below."""
    (found,) = (
        group
        for heading, group in selection.chosen(comparisons["gaussian_mixture"]).items()
        if "means μ" in heading
    )
    for quantity in found:
        component, row, column = quantity.place
        assert quantity.label == f"component {component + 1} " + (
            f"μ[{column + 1}]" if row == 0 else f"Λ[{row}, {column + 1}]"
        )


def test_hyper_parameters_come_first(comparisons):
    groups = selection.chosen(comparisons["lg_nmf_votes"])
    assert next(iter(groups)) == "Hyper-parameters"
    assert [quantity.label for quantity in groups["Hyper-parameters"]] == ["α₁", "α₂"]


def test_map_shows_the_principal_axes():
    """Points on a line through the origin in three dimensions: one axis holds all of their spread,
    and a projection keeps distances."""
    locations = np.outer(np.linspace(-2, 3, 20), [1.0, 2.0, 2.0])
    axes = latent.principal_axes(locations)
    assert axes.shares[0] == pytest.approx(1)
    assert np.ptp(axes.project(locations)[:, 0]) == pytest.approx(15)


def test_an_ellipse_is_one_standard_deviation():
    outline = svg.ellipse((10, 20), [[4, 0], [0, 9]], "outline", points=4)
    numbers = np.array(
        [[float(x) for x in pair.split()] for pair in re.findall(r"[ML]([-\d. ]+)", outline)]
    )
    np.testing.assert_allclose(np.ptp(numbers, axis=0), [4, 6], atol=0.11)


@pytest.mark.parametrize("size", [1, 2])
def test_kernel_density_is_scipys(size):
    draws = np.random.default_rng(0).normal(size=(200, size)) @ np.diag([2.0, 0.3][:size])
    points = np.random.default_rng(1).normal(size=(7, size))
    found = parameters.kernel_density(draws, points)
    np.testing.assert_allclose(found, gaussian_kde(draws.T)(points.T), rtol=1e-10)


def test_worst_functionals_are_traced(comparisons):
    """The log joint first, then by R-hat."""
    comparison = comparisons["pmf"]
    comparison.chains["gibbs"].values[:2, :, 4] += 5
    titles = [figure.title for figure in figures_chains.traces(comparison)]
    assert titles[0].startswith("log joint")
    assert titles[1].startswith("expected data 3")


def test_ticks_are_round_and_inside():
    for low, high, log in (
        (0.013, 0.271, False),
        (-3800.3, -3611.0, False),
        (1e-7, 3e-7, False),
        (0.02, 450, True),
        (9.1, 11.2, True),
        (-1, 1, False),
    ):
        scale = svg.Scale(low, high, 0, 100, log)
        places = svg.ticks(scale)
        assert 2 <= len(places) <= 6
        assert all(low <= place <= high for place in places)
        assert len(set(svg.tick_labels(places))) == len(places)
        assert all(len(label) <= 7 for label in svg.tick_labels(places))


def test_the_clock_stands_still_while_programs_are_compiled():
    """Steps of 0.1 s, of which the first and the third compiled for 5 s; a pause later on is a
    pause."""
    steps = np.array([5.1, 0.1, 5.1, 0.1, 0.1, 0.1, 3.0, 0.1])
    history = {"seconds": np.cumsum(steps), "bound": np.arange(8.0)}
    seconds, _ = progress.bound_curve(
        SimpleNamespace(posterior=SimpleNamespace(kind="variational"), history=history)
    )
    np.testing.assert_allclose(
        np.diff(seconds, prepend=0), [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 3.0, 0.1]
    )


def test_bars_of_whole_numbers_are_alike():
    """Bins that hold one whole number or three, never one and two by turns: the same count of each
    makes bars of one height and width."""
    for top, each in ((12, 1), (60, 3)):
        figure = figures_chains._histogram("Rows", np.repeat(np.arange(1, top + 1), 4))
        bars = re.findall(
            r'width="([\d.]+)" height="([\d.]+)" class="data"><title>([^<]*)', figure.drawing
        )
        assert len(bars) == top / each
        assert len({height for _, height, _ in bars}) == 1
        assert np.ptp([float(width) for width, _, _ in bars]) <= 0.11  # pixels have one decimal
        assert bars[0][2] == ("1: 4" if each == 1 else "1 to 3: 12")
    gap = figures_chains._histogram("Rows", [1, 1, 5])
    assert len(set(re.findall(r'width="([\d.]+)"', gap.drawing))) == 1


def test_a_failure_does_not_hide_other_scores(comparisons, changed):
    """An engine 100 nats below the rest is at the lower edge; the others keep bars of some
    height."""
    rows = {name: dict(row) for name, row in comparisons["lda"].summary["engines"].items()}
    rows["map"] |= {"heldout": -100.0}
    drawing = progress.heldout(changed(comparisons["lda"], engines=rows))[0].drawing
    low, high = re.search(
        r'class="e-cavi">.*?<path d="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)" class="bar"', drawing
    ).groups()
    assert abs(float(low) - float(high)) > 15
    edge = re.search(r'class="e-map">.*?<use [^>]* y="([\d.]+)">(.*?)</title>', drawing)
    assert float(edge[1]) == progress.HEIGHT - 40 and "−100" not in edge[1] and "-100.0" in edge[2]


def test_labels_tell_ticks_apart():
    """Bounds of large data near the end of a fit differ in the fifth digit only."""
    places = svg.ticks(svg.Scale(-12_345_678, -12_341_000, 0, 100))
    assert len(set(svg.tick_labels(places))) == len(places) > 2
    assert svg.tick_labels([1e6, 2e6]) == ["1e6", "2e6"]


def test_numbers_are_short():
    assert [svg.number(x) for x in (0.0, -0.01234, 999.4, 999.7, -12345.6, 3e-7)] == [
        "0",
        "−0.0123",
        "999",
        "1,000",
        "−12,346",
        "3.0e−07",
    ]


# Colours --------------------------------------------------------------------------------------


def luminance(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


def contrast(one, other):
    """The ratio of the Web Content Accessibility Guidelines."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_no_two_engines_look_alike():
    assert all(load_engine(name).look for name in all_engines())
    corrected = [
        one + CORRECTION for one in all_engines() if load_engine(one).kind == "variational"
    ]
    looks = [*map(palette.look, [*all_engines(), *corrected]), *palette.SPARE]
    assert len({(look.hue, look.marker, look.is_open) for look in looks}) == len(looks)
    assert len({(look.hue, look.dash) for look in looks}) == len(looks)
    assert len({palette.css_class(engine) for engine in all_engines()}) == len(all_engines())


def test_unknown_engines_have_a_look(made, check_page):
    assert palette.look("my_engine") in palette.SPARE
    assert re.fullmatch(r"e-[\w-]+", palette.css_class("my <engine>"))
    check_page(report.render(made("lda", ("gibbs", "my_engine"))))


def test_contrast_on_light_and_dark_paper():
    """3 to 1 for what is drawn, 4.5 to 1 for text, against paper and cards."""
    style = report._package_text("page.css")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6});", part))
        for part in style.split("prefers-color-scheme: dark", 1)
    )
    for place, paper in enumerate((light, dark)):
        for background in ("paper", "card"):
            for shades in palette.SHADES.values():
                assert contrast(shades[place], paper[background]) >= 3
            for ink in ("ink", "soft", "accent", "good", "fair", "bad"):
                assert contrast(paper[ink], paper[background]) >= 4.5
