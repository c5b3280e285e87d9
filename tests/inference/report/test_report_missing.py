"""Laws of the report where something is missing, failed, very small, very large or hostile:
the page leaves out only its own part."""

from types import SimpleNamespace
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

import pp_models
from inference.report import page as report


def test_without_a_reference_engines_stand_side_by_side(made, pictures, check_page):
    comparison = made("lda", ("cavi", "svi", "map"), reference=None, truth=False)
    page = report.render(comparison)
    check_page(page)
    assert "There is no reference" in page
    assert ">mean error<" not in page
    assert pictures(page, "density")
    assert not pictures(page, "means") + pictures(page, "widths") + pictures(page, "trace")
    assert "There is no reference" in report.table(comparison)


def test_a_sampler_that_was_not_to_judge_is_no_missing_sampler(made):
    comparison = made("lda", ("cavi", "gibbs"), reference=None, truth=False)
    assert "There is no reference (none was asked for)" in report.table(comparison)


@pytest.mark.parametrize(
    "engines", [("gibbs",), ("gibbs", "map"), ("gibbs", "map", "stochastic_map")]
)
def test_one_engine_or_points_only(engines, made, check_page):
    check_page(report.render(made("lda", engines)))


def test_points_alone(made, pictures, check_page):
    """They have no densities to draw, and no intervals to speak of."""
    page = report.render(made("nmf", ("map", "stochastic_map"), reference=None, truth=False))
    check_page(page)
    assert pictures(page, "forest") and not pictures(page, "density")
    assert "intervals" not in page and "Chosen by the reference" not in page


def test_an_engine_that_failed_is_in_the_table_only(comparisons, changed, check_page, nothing):
    comparison = comparisons["lda"]
    rows = {name: dict(row) for name, row in comparison.summary["engines"].items()}
    rows["svi"] = {
        "engine": "svi",
        **nothing,
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


def test_everything_failed(made, changed, check_page, nothing):
    comparison = made("lda", ("gibbs", "cavi"))
    rows = {
        name: {
            "engine": name,
            **nothing,
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


def test_draws_that_are_not_numbers(comparisons, made, check_page, quantities):
    """One site of one engine, then one entry of the reference, is nan in all draws."""
    for engine, part in (("svi", np.s_[:]), ("gibbs", np.s_[:, 0, 0]), ("gibbs", np.s_[:])):
        comparison = made("lda", ("gibbs", "cavi", "svi"))
        comparison.draws[engine]["beta"][part] = np.nan
        with np.errstate(invalid="ignore"):
            comparison = comparison._replace(
                quantities=quantities(comparison.draws, "gibbs", comparison.data)
            )
            check_page(report.render(comparison))


def test_nothing_held_out_and_no_bounds(comparisons, changed, pictures, check_page):
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
def test_a_single_factor(name, made, check_page):
    factors = {
        "lda": "num_topics",
        "pmf": "rank",
        "lg_nmf_votes": "num_topics",
        "bernoulli_mixture": "num_components",
    }[name]
    example, _ = pp_models.load(name).example(jax.random.key(0))
    check_page(report.render(made(name, ("gibbs", "cavi"), hyper=example._replace(**{factors: 1}))))


def test_a_single_row(made, check_page):
    data = pp_models.data.counts(np.array([[3, 0, 1, 2]]))
    check_page(report.render(made("lda", ("gibbs", "cavi"), data=data)))


def test_forty_topics_and_ten_thousand_columns(made, check_page):
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


def test_words_are_escaped(made, check_page):
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
def test_names_of_rows_and_columns_are_escaped(name, made, check_page):
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
