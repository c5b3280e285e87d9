"""Laws of the report, on comparisons made up here: every engine is on the page, nothing is loaded,
what is missing leaves only its own part out."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
import xarray
from scipy.stats import gaussian_kde

import inference
import pp_models
from inference.core.registry import engines as all_engines
from inference.core.registry import load_engine
from inference.report import page as report
from inference.report import palette, selection, svg
from inference.report.figures import agreement, latent, parameters, progress
from inference.report.figures import chains as figures_chains
from pp_models.data import Data, files
from pp_models.errors import InputError
from pp_models.model import declare, value_shapes

KINDS = {
    "gibbs": "draws",
    "nuts": "draws",
    "map": "point",
    "stochastic_map": "point",
    "inla": "mixture",
}
WIDTHS = {"cavi": 0.5, "svi": 0.7, "laplace": 1.2}
FIGURES = (
    "mean_error_sd",
    "sd_ratio",
    "coverage50",
    "coverage90",
    "wasserstein_sd",
    "tail_error_sd",
    "correlation_error",
)
NOTHING = (
    *(
        "kind",
        "error",
        "rule",
        "seconds",
        "seconds_to_1pct",
        "bound",
        "bound_gap",
        "log_joint",
        *FIGURES,
        "quantities",
        "khat",
        "psis",
        "heldout",
    ),
    *("heldout_se", "rhat", "ess_bulk", "ess_tail", "divergences", "ebfmi", "modes"),
)


class Comparison(NamedTuple):
    """The fields of `inference.comparison.compare.Comparison`, which the report reads."""

    model: Any
    hyper: Any
    data: Data
    reference: str | None
    fits: dict[str, Any]
    draws: dict[str, dict[str, np.ndarray]]
    summary: dict[str, Any]
    quantities: xarray.Dataset
    chains: dict[str, Any]
    truth: dict[str, np.ndarray] | None


class Tree:
    """What `to_arviz` returns, as far as the report needs it."""

    def to_netcdf(self, path):
        with open(path, "wb") as file:
            file.write(b"CDF")


def made(
    name,
    engines=("gibbs", "cavi", "svi", "map"),
    data=None,
    hyper=None,
    reference="gibbs",
    truth=True,
    num_draws=120,
    seed=0,
):
    """A whole comparison of made-up Gaussian posteriors, without a single fit."""
    rng = np.random.default_rng(seed)
    example, drawn = pp_models.load(name).example(jax.random.key(0))
    data = drawn if data is None else data
    model, hyper = declare(pp_models.load(name), example if hyper is None else hyper, data)
    shapes = value_shapes(model, hyper, data)
    signed = ("normal", "normal_tied", "normal_wishart", "point")
    centre = {
        site: (1 if model.families[site].name in signed else 0) * rng.normal(size=shape)
        for site, shape in shapes.items()
    }
    centre = {
        site: value if np.any(value) else rng.gamma(0.7, size=shapes[site]) + 0.3
        for site, value in centre.items()
    }
    draws = {
        engine: _draws(
            rng, centre, 1 if KINDS.get(engine) == "point" else num_draws, WIDTHS.get(engine, 1.0)
        )
        for engine in engines
    }
    fits = {engine: _fit(rng, model, hyper, data, engine) for engine in engines}
    rows = {engine: _row(rng, engine, draws, reference) for engine in engines}
    chains = {engine: _chains(rng) for engine in engines if KINDS.get(engine) == "draws"}
    summary = _summary(model, hyper, data, reference, rows)
    return Comparison(
        model,
        hyper,
        data,
        reference,
        fits,
        draws,
        summary,
        quantities(draws, reference, data),
        chains,
        dict(centre) if truth else None,
    )


def _draws(rng, centre, number, width):
    return {
        site: value + 0.05 * width * rng.normal(size=(number, *value.shape))
        for site, value in centre.items()
    }


def _fit(rng, model, hyper, data, engine):
    kind = KINDS.get(engine, "variational")
    steps = np.arange(1, 30)
    history = {
        "step": steps,
        "seconds": 0.1 * steps,
        "bound": -100.0 - 50.0 / steps if kind == "variational" else np.full(len(steps), np.nan),
    }
    names = tuple(model.marginal.gridded)
    theta = rng.normal(size=(9, len(names))) * 0.3
    posterior = SimpleNamespace(
        kind=kind,
        names=names,
        theta=theta,
        weights=np.exp(-(theta**2).sum(1)) / np.exp(-(theta**2).sum(1)).sum(),
    )
    return SimpleNamespace(
        model=model,
        hyper=hyper,
        data=data,
        engine=engine,
        seconds=0.5,
        history=history,
        posterior=posterior,
        to_arviz=Tree,
        stopped=None,
    )


def _row(rng, engine, draws, reference):
    kind = KINDS.get(engine, "variational")
    row = {
        "engine": engine,
        **dict.fromkeys(NOTHING),
        "kind": kind,
        "verdict": "means agree; far too narrow",
        "seconds": float(rng.uniform(1, 9)),
    }
    row |= {
        "rule": "mean error below 0.2 sd; sd ratio below 0.5",
        "notes": [],
        "heldout": -2.5,
        "heldout_se": 0.01,
        "heldout_curve": [],
        "log_joint": -90.0,
    }
    if reference in draws and engine != reference:
        record = {name: float(rng.uniform(0.1, 0.9)) for name in FIGURES} | {"quantities": 30}
        if kind == "point":
            record |= dict.fromkeys(
                ("sd_ratio", "coverage50", "coverage90", "tail_error_sd", "correlation_error")
            )
        row |= record | {
            "sites": dict.fromkeys(draws[engine], record),
            "invariant": {"expected data": record, "log joint": record},
        }
    if kind == "variational":
        row |= {
            "bound": -101.7,
            "bound_gap": 3.2,
            "khat": 2.4,
            "seconds_to_1pct": 0.3,
            "heldout_curve": [[0.1, -3.0], [0.5, -2.6], [1.0, -2.5]],
        }
    if kind == "draws":
        row |= {"rhat": 1.004, "ess_bulk": 812.0, "ess_tail": 650.0, "divergences": 0, "ebfmi": 0.9}
        row["verdict"] = "the reference" if engine == reference else "means agree; right width"
    return row | {"sites": row.get("sites") or {}, "invariant": row.get("invariant") or {}}


def _chains(rng, chains=4, length=100):
    return SimpleNamespace(
        names=["log joint", *(f"expected data {i}" for i in range(5))],
        values=rng.normal(size=(chains, length, 6)),
    )


def _summary(model, hyper, data, reference, rows):
    about = {
        "kind": data.kind,
        "rows": data.num_rows,
        "columns": data.num_columns,
        "entries": data.num_entries,
        "total": data.total,
    }
    about |= {"rows_fitted": data.num_rows, "rows_heldout": 3, "entries_heldout": 12}
    plain = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in hyper._asdict().items()
    }
    return {
        "format": 1,
        "model": model.name,
        "title": model.title,
        "kind": model.kind,
        "symmetry": model.symmetry,
        "hyper": plain,
        "reference": reference,
        "converged": True if reference is not None else None,
        "partial": None,
        "quick": False,
        "budget": None,
        "pivot": "the mean of the reference's draws",
        "evidence": {"log_evidence": -98.5, "error": 0.3, "method": "bridge sampling"},
        "engines": rows,
        "options": {"gibbs": {"num_samples": 100}},
        "num_draws": 120,
        "data": about,
        "data_hash": data.hash,
        "seed": 0,
        "versions": {"python": "3.11.7", "jax": "0.10.2"},
        "command": None,
    }


def quantities(draws, reference, data):
    """The tidy table of a comparison: dimensions engine and quantity."""
    sites = {site: value.shape[1:] for site, value in next(iter(draws.values())).items()}
    index = [(site, place) for site, shape in sites.items() for place in np.ndindex(*shape)]
    columns = {
        engine: np.concatenate([value.reshape(len(value), -1) for value in found.values()], axis=1)
        for engine, found in draws.items()
    }
    mean, sd = (
        np.array([getattr(np, name)(x, axis=0) for x in columns.values()])
        for name in ("mean", "std")
    )
    sd = np.where(np.array([len(x) for x in columns.values()])[:, None] > 1, sd, np.nan)
    levels = {
        f"q{level:02d}": np.array([np.quantile(x, level / 100, axis=0) for x in columns.values()])
        for level in (5, 50, 95)
    }
    anchor = list(columns).index(reference) if reference in columns else None
    shift = (mean - mean[anchor]) / sd[anchor] if anchor is not None else np.full_like(mean, np.nan)
    ratio = sd / sd[anchor] if anchor is not None else np.full_like(mean, np.nan)
    variables = {
        "mean": mean,
        "sd": sd,
        **levels,
        "mean_shift_sd": shift,
        "sd_ratio": ratio,
        "wasserstein_sd": np.abs(shift),
    }
    variables |= {"coverage50": np.full_like(mean, 0.5), "coverage90": np.full_like(mean, 0.9)}
    coords = {"engine": list(columns), "site": ("quantity", [site for site, _ in index])}
    coords["label"] = (
        "quantity",
        [f"{site}[{', '.join(map(str, place))}]" for site, place in index],
    )
    return xarray.Dataset(
        {name: (("engine", "quantity"), value) for name, value in variables.items()}, coords
    )


MODELS = {  # models of every kind of data and symmetry, and engines that apply to them
    "lda": ("gibbs", "nuts", "cavi", "svi", "trust_region", "numpyro_svi", "map"),
    "pmf": ("gibbs", "cavi", "laplace", "map"),
    "lg_nmf_votes": ("gibbs", "inla", "cavi", "map"),
    "lg_nmf": ("gibbs", "inla", "cavi"),
    "bernoulli_mixture": ("gibbs", "cavi", "map"),
    "gaussian_mixture": ("gibbs", "cavi"),
    "correlated_nmf": ("nuts", "cavi"),
    "bayesian_pmf": ("gibbs", "cavi"),
}


@pytest.fixture(scope="module")
def comparisons():
    return {name: made(name, engines, reference=engines[0]) for name, engines in MODELS.items()}


@pytest.fixture(scope="module")
def pages(comparisons):
    return {name: report.render(comparison) for name, comparison in comparisons.items()}


def pictures(page, about):
    """The figures of one sort."""
    return re.findall(rf'<figure class="{about}".*?</figure>', page, re.DOTALL)


def changed(comparison, **rows):
    """The comparison with some fields of its summary changed."""
    return comparison._replace(summary={**comparison.summary, **rows})


def check_page(page):
    """Well-formed, self-contained and small: what every page must be."""
    assert len(page.encode()) < 5_000_000
    assert not re.search(
        r"https?:|src=[\"'](?!data:)|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")", page
    )
    body = page[page.index("<body>") : page.index("<script>")]
    ElementTree.fromstring(f"{body}</body>".replace("&nbsp;", " ").replace(" hidden>", ">"))
    drawn = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert all(re.search(r'role="img" aria-label="[^"]{20,}"', one) for one in drawn)
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(identifiers)
    assert not re.search(
        r"(?<![\w.])(nan|inf|None)(?![\w])",
        re.sub(
            r"<style>.*?</style>|<script>.*?</script>|<article.*?</article>",
            "",
            page,
            flags=re.DOTALL,
        ),
    )


# The page -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_page_is_whole_and_stands_alone(pages, name):
    check_page(pages[name])
    for engine in MODELS[name]:
        assert pages[name].count(palette.css_class(engine)) > 5


def test_every_model_has_the_figures_that_suit_it(pages):
    common = ("density", "forest", "widths", "trace", "data")
    for name, page in pages.items():
        for about in common:
            assert pictures(page, about), (name, about)
    assert {name for name, page in pages.items() if pictures(page, "map")} == {
        "pmf",
        "lg_nmf_votes",
        "lg_nmf",
        "bayesian_pmf",
        "correlated_nmf",
    }
    assert {name for name, page in pages.items() if pictures(page, "gridded")} == {
        "lg_nmf",
        "lg_nmf_votes",
    }
    assert {name for name, page in pages.items() if pictures(page, "profile")} == {
        "bernoulli_mixture",
        "gaussian_mixture",
    }
    assert {name for name, page in pages.items() if "Topics side by side" in page} == {
        "lda",
        "lg_nmf",
        "lg_nmf_votes",
        "correlated_nmf",
    }


def test_a_figure_of_each_engine_against_the_reference(pages):
    """Small multiples: one scatter plot of means per engine, all with the same axes."""
    drawn = pictures(pages["lda"], "means")
    assert len(drawn) == len(MODELS["lda"]) - 1
    assert len({tuple(re.findall(r'class="tick"[^>]*>([^<]*)<', one)) for one in drawn}) == 1


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


def test_a_narrow_density_is_neither_lost_nor_does_it_hide_the_others():
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
def test_a_density_beyond_the_axis_is_marked_at_its_end(shift, end):
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


def test_a_failure_does_not_hide_other_scores(comparisons):
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


# What is said ---------------------------------------------------------------------------------


def test_verdict_comes_before_everything_else(pages):
    page = pages["lda"]
    assert (
        page.index("Nearest approximation") < page.index("<nav") < page.index("Generative process")
    )
    assert "R-hat 1.004" in page
    assert "log evidence −98.5 ± 0.3" in page


def test_data_are_summed_up_in_their_own_units(pages):
    """Tokens are counted; the sum of ratings or of pixels says nothing."""
    assert "<dt>tokens</dt>" in pages["lda"] and "3 rows, to score" in pages["lda"]
    assert (
        "12 ratings, to score" in pages["pmf"]
        and "<dt>tokens</dt>" not in pages["pmf"] + pages["gaussian_mixture"]
    )


def test_khat_is_explained(comparisons):
    rows = {name: dict(row) for name, row in comparisons["lda"].summary["engines"].items()}
    rows["cavi"]["khat"], rows["svi"]["khat"], rows["numpyro_svi"]["khat"] = 0.68, None, 0.3
    rows["cavi"]["psis"] = {"mean_error_sd": 0.1, "sd_ratio": 0.9}
    page = " ".join(report.render(changed(comparisons["lda"], engines=rows)).split())
    assert "k-hat 2.40: q is too far from the posterior for importance weighting" in page
    assert "k-hat 0.68: importance weighting can still repair q" in page
    assert "k-hat 0.30: q is near the posterior" in page
    assert "means are 0.10 reference sd off and widths 0.90 of the reference's." in page


def test_a_reference_that_has_not_converged_is_called_that(comparisons):
    """For its reasons, which need not be R-hat."""
    rows = {name: dict(row) for name, row in comparisons["lda"].summary["engines"].items()}
    rows["gibbs"]["ess_bulk"] = 12.0
    comparison = changed(comparisons["lda"], converged=False, engines=rows)
    page = report.render(comparison)
    words = "has not converged: 12 effective draws are fewer than 50. No engine is judged by it"
    assert re.search(rf'<p class="warning" role="alert">[^<]*{words}', page)
    assert page.count("these are differences, not errors") == 2
    assert "Nearest approximation" not in page
    assert words in report.table(comparison)
    assert 'class="warning"' not in report.render(comparisons["lda"])


def test_a_partial_run_says_so(comparisons):
    words = "Interrupted: nuts and <svi> were not run."
    comparison = changed(comparisons["pmf"], partial=words, quick=True)
    page = report.render(comparison)
    assert "Interrupted: nuts and &lt;svi&gt; were not run." in page
    assert "quick run" in page
    assert words in report.table(comparison)


def test_every_note_is_said_once(comparisons):
    """A fit that was cut short says so in its notes."""
    rows = {name: dict(row) for name, row in comparisons["lda"].summary["engines"].items()}
    rows["svi"]["notes"] = ["Stopped after 3 seconds."]
    fits = {name: SimpleNamespace(**vars(fit)) for name, fit in comparisons["lda"].fits.items()}
    fits["svi"].stopped = "Stopped after 3 seconds."
    assert (
        report.render(changed(comparisons["lda"], engines=rows)._replace(fits=fits)).count(
            "Stopped after 3 seconds."
        )
        == 1
    )


def test_chains_in_different_modes_are_reported(comparisons):
    rows = {name: dict(row) for name, row in comparisons["lda"].summary["engines"].items()}
    rows["gibbs"]["modes"] = {
        "groups": [[0, 2], [1]],
        "text": "Chains 1 and 3 are in another mode than chain 2.",
    }
    assert "Chains 1 and 3 are in another mode" in report.render(
        changed(comparisons["lda"], engines=rows)
    )


def test_how_to_reproduce(comparisons, pages):
    page = pages["lda"]
    assert comparisons["lda"].summary["data_hash"] in page
    assert "python -m pp_models compare lda --reference gibbs" in page
    assert "jax 0.10.2" in page
    short = changed(comparisons["lda"], quick=True, budget=30.0)
    assert "--quick --budget 30 --seed 0 --set num_topics=3" in report.render(short)
    assert "pp-models compare lda &lt;here&gt;" in report.render(
        comparisons["lda"], "pp-models compare lda <here>"
    )


def test_terminal_table(comparisons):
    rows = {name: dict(row) for name, row in comparisons["lda"].summary["engines"].items()}
    rows["svi"] |= {
        "error": "FloatingPointError: The bound became inf\nat step 3. " + 30 * "Long. ",
        "verdict": "failed",
    }
    lines = report.table(changed(comparisons["lda"], engines=rows)).splitlines()
    assert [line.split()[0] for line in lines[: 1 + len(rows)]] == ["engine", *rows]
    assert lines[1 + len(rows) :] == ["", lines[-1]] and lines[-1].startswith(
        "W1 and mean error: distance from the reference"
    )
    assert lines[1 + list(rows).index("svi")].endswith("Long.")  # nothing is cut
    assert "failed: FloatingPointError" in lines[1 + list(rows).index("svi")]


# What is missing ------------------------------------------------------------------------------


def test_without_a_reference_engines_stand_side_by_side():
    comparison = made("lda", ("cavi", "svi", "map"), reference=None, truth=False)
    page = report.render(comparison)
    check_page(page)
    assert "There is no reference" in page
    assert ">mean error<" not in page
    assert pictures(page, "density")
    assert not pictures(page, "means") + pictures(page, "widths") + pictures(page, "trace")
    assert "There is no reference" in report.table(comparison)


def test_a_sampler_that_was_not_to_judge_is_no_missing_sampler():
    comparison = made("lda", ("cavi", "gibbs"), reference=None, truth=False)
    assert "There is no reference (none was asked for)" in report.table(comparison)


@pytest.mark.parametrize(
    "engines", [("gibbs",), ("gibbs", "map"), ("gibbs", "map", "stochastic_map")]
)
def test_one_engine_or_points_only(engines):
    check_page(report.render(made("lda", engines)))


def test_points_alone():
    """They have no densities to draw, and no intervals to speak of."""
    page = report.render(made("nmf", ("map", "stochastic_map"), reference=None, truth=False))
    check_page(page)
    assert pictures(page, "forest") and not pictures(page, "density")
    assert "intervals" not in page and "Chosen by the reference" not in page


def test_an_engine_that_failed_is_in_the_table_only(comparisons):
    comparison = comparisons["lda"]
    rows = {name: dict(row) for name, row in comparison.summary["engines"].items()}
    rows["svi"] = {
        "engine": "svi",
        **dict.fromkeys(NOTHING),
        "error": "ValueError: a < b",
        "verdict": "failed",
    }
    keep = [name for name in comparison.draws if name != "svi"]
    comparison = changed(comparison, engines=rows)._replace(
        fits={name: comparison.fits[name] for name in keep},
        draws={name: comparison.draws[name] for name in keep},
        quantities=comparison.quantities.sel(engine=keep),
    )
    page = report.render(comparison)
    check_page(page)
    assert "failed: ValueError: a &lt; b" in page


def test_everything_failed():
    comparison = made("lda", ("gibbs", "cavi"))
    rows = {
        name: {
            "engine": name,
            **dict.fromkeys(NOTHING),
            "error": "ValueError: no",
            "verdict": "failed",
        }
        for name in ("gibbs", "cavi")
    }
    comparison = changed(comparison, engines=rows, reference=None, converged=None, evidence=None)
    comparison = comparison._replace(
        reference=None,
        fits={},
        draws={},
        chains={},
        truth=None,
        quantities=comparison.quantities.isel(engine=[]),
    )
    page = report.render(comparison)
    check_page(page)
    assert "gibbs failed" in page


def test_draws_that_are_not_numbers(comparisons):
    """One site of one engine, then one entry of the reference, is nan in all draws."""
    for engine, part in (("svi", np.s_[:]), ("gibbs", np.s_[:, 0, 0]), ("gibbs", np.s_[:])):
        comparison = made("lda", ("gibbs", "cavi", "svi"))
        comparison.draws[engine]["beta"][part] = np.nan
        with np.errstate(invalid="ignore"):
            comparison = comparison._replace(
                quantities=quantities(comparison.draws, "gibbs", comparison.data)
            )
            check_page(report.render(comparison))


def test_nothing_held_out_and_no_bounds(comparisons):
    rows = {
        name: {**row, "heldout": None, "heldout_se": None, "heldout_curve": []}
        for name, row in comparisons["lda"].summary["engines"].items()
    }
    comparison = changed(comparisons["lda"], engines=rows, evidence=None)
    page = report.render(comparison)
    check_page(page)
    assert not pictures(page, "heldout")
    for fit in (
        fits := {name: SimpleNamespace(**vars(fit)) for name, fit in comparison.fits.items()}
    ).values():
        fit.history = {"step": [], "seconds": [], "bound": []}
    assert not pictures(report.render(comparison._replace(fits=fits)), "bounds")


@pytest.mark.parametrize("name", ["lda", "pmf", "lg_nmf_votes", "bernoulli_mixture"])
def test_a_single_factor(name):
    factors = {
        "lda": "num_topics",
        "pmf": "rank",
        "lg_nmf_votes": "num_topics",
        "bernoulli_mixture": "num_components",
    }[name]
    example, _ = pp_models.load(name).example(jax.random.key(0))
    check_page(report.render(made(name, ("gibbs", "cavi"), hyper=example._replace(**{factors: 1}))))


def test_a_single_row():
    data = pp_models.data.counts(np.array([[3, 0, 1, 2]]))
    check_page(report.render(made("lda", ("gibbs", "cavi"), data=data)))


def test_forty_topics_and_ten_thousand_columns():
    """The page stays small: at most so many points, words and panels are drawn."""
    rows = np.random.default_rng(0).poisson(0.003, (30, 10_000))
    comparison = made(
        "lda",
        ("gibbs", "cavi", "svi", "map"),
        data=pp_models.data.counts(rows),
        hyper={"num_topics": 40},
        num_draws=4,
    )
    page = report.render(comparison)
    check_page(page)
    assert len(page) < 1_000_000
    assert page.count("<caption>Topic") == 40


def test_words_are_escaped():
    """A vocabulary may hold anything: tags, quotes, dollar signs, control characters."""
    names = [
        "<b>bold</b>",
        "$x_1$",
        "a\"b'c",
        "&amp;",
        "\x00\x1b[0m",
        "\\alpha",
        "</script>",
        "=cmd()",
        "ü" * 200,
    ]
    data = pp_models.data.counts(np.random.default_rng(0).poisson(3, (12, 9)), column_names=names)
    page = report.render(made("lda", ("gibbs", "cavi"), data=data))
    check_page(page)
    assert "<b>bold</b>" not in page
    assert "&lt;b&gt;bold" in page
    assert page.count("</script>") == 1


HOSTILE = [
    "<script>x()</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='x()",
    "&lt;b&gt;",
    "]]>",
    "<!--",
    "\x00\x1b",
    "a\nb",
]


@pytest.mark.parametrize("name", ["pmf", "lg_nmf_votes", "bernoulli_mixture"])
def test_names_of_rows_and_columns_are_escaped(name):
    """In maps, traces and profiles as in tables: the page stays well-formed and has no tag or
    attribute that a name brought along."""
    rng = np.random.default_rng(0)
    rows, columns = [f"{one} row" for one in HOSTILE], HOSTILE
    named = {"column_names": columns, "row_names": rows}
    if name == "pmf":
        users, items = np.divmod(np.arange(64), 8)
        data = pp_models.data.ratings(users, items, rng.normal(size=64), shape=(8, 8), **named)
    elif name == "lg_nmf_votes":
        data = pp_models.data.text_and_votes(
            rng.poisson(3, (8, 8)), rng.integers(0, 2, (8, 5)), **named
        )
    else:
        data = pp_models.data.dense(rng.integers(0, 2, (8, 8)).astype(float), **named)
    comparison = made(name, ("gibbs", "cavi"), data=data)
    comparison.chains["gibbs"].names[1:] = HOSTILE[:5]
    table = comparison.quantities
    table = table.assign_coords(
        label=(
            "quantity",
            [f"{site}[{HOSTILE[i % 8]}]" for i, site in enumerate(table["site"].values)],
        )
    )
    page = report.render(comparison._replace(quantities=table))
    check_page(page)
    assert "onerror" in page and "script&gt;" in page  # they are there
    body = ElementTree.fromstring(
        page[page.index("<body>") : page.index("<script>")].replace(" hidden>", ">") + "</body>"
    )
    assert not [one.tag for one in body.iter() if one.tag in ("img", "script")]
    assert not [key for one in body.iter() for key in one.attrib if key.startswith("on")]


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
    looks = [*map(palette.look, all_engines()), *palette.SPARE]
    assert len({(look.hue, look.marker, look.is_open) for look in looks}) == len(looks)
    assert len({(look.hue, look.dash) for look in looks}) == len(looks)
    assert len({palette.css_class(engine) for engine in all_engines()}) == len(all_engines())


def test_unknown_engines_have_a_look():
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


# Files ----------------------------------------------------------------------------------------


def test_files_of_a_comparison(comparisons, tmp_path):
    comparison = comparisons["lda"]
    assert report.write(comparison, tmp_path) == tmp_path / "report.html"
    assert {file.name for file in tmp_path.iterdir()} == {
        "report.html",
        "summary.json",
        "agreement.csv",
        *(f"{name}.nc" for name in comparison.fits),
    }
    assert json.loads((tmp_path / "summary.json").read_text()) == comparison.summary
    lines = (tmp_path / "agreement.csv").read_text().splitlines()
    assert (
        len(lines)
        == 1 + comparison.quantities.sizes["engine"] * comparison.quantities.sizes["quantity"]
    )
    assert {"engine", "site", "label", "mean", "sd", "sd_ratio"} <= set(lines[0].split(","))


def test_names_that_no_file_can_hold(tmp_path):
    """A null character, half a surrogate pair: the page and the table are written, and the .nc
    file's refusal is one sentence."""
    data = pp_models.data.counts(
        np.random.default_rng(0).poisson(3, (12, 3)), column_names=["a\x00b", "\ud800", "c"]
    )
    comparison = made("lda", ("gibbs", "cavi"), data=data)
    table = comparison.quantities
    comparison = comparison._replace(
        quantities=table.assign_coords(
            label=("quantity", [f"{one} \ud800" for one in table["label"].values])
        )
    )
    report.write(comparison, tmp_path / "good")
    check_page((tmp_path / "good" / "report.html").read_text(encoding="utf-8"))
    assert "\\ud800" in (tmp_path / "good" / "agreement.csv").read_text(encoding="utf-8")

    class Refusing:
        def to_netcdf(self, path):
            raise ValueError("VLEN strings do not support embedded NULLs")

    comparison.fits["cavi"].to_arviz = Refusing
    with pytest.raises(InputError, match="change the names of rows and columns"):
        report.write(comparison, tmp_path / "bad")
    assert (tmp_path / "bad" / "report.html").exists() and not (
        tmp_path / "bad" / "cavi.nc"
    ).exists()


def test_an_interrupted_write_keeps_the_old_page(comparisons, tmp_path, monkeypatch):
    report.write(comparisons["pmf"], tmp_path)
    before = (tmp_path / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(files.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.write(comparisons["lda"], tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before
    assert not [file for file in tmp_path.iterdir() if "tmp" in file.name]


def test_the_same_comparison_makes_the_same_page(comparisons, pages):
    assert report.render(comparisons["lda"]) == pages["lda"]


def test_no_module_needs_matplotlib_when_it_is_imported():
    """Matplotlib is an extra. Imports inside functions are indented."""
    for package in (pp_models, inference):
        for path in Path(package.__file__).parent.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?m)^(import|from) (matplotlib|contourpy)\b", text), path
