"""Laws of the report: every page is whole and stands alone, and is written as files."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import inference
import pp_models
from inference.report import page as report
from inference.report import palette
from pp_models.data import files
from pp_models.errors import InputError


def test_every_page_is_whole_and_stands_alone(comparisons, pages, model, check_page):
    check_page(pages[model])
    for engine in comparisons[model].fits:
        assert pages[model].count(palette.css_class(engine)) > 5


def test_every_model_has_the_figures_that_suit_it(pages, pictures):
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


def test_a_figure_of_each_engine_against_the_reference(comparisons, pages, pictures):
    """Small multiples: one scatter plot of means per engine and site, with a site's own axes."""
    drawn = pictures(pages["lda"], "means")
    number = len(comparisons["lda"].fits) - 1
    assert len(drawn) == 2 * number
    for panels in (drawn[:number], drawn[number:]):
        assert len({tuple(re.findall(r'class="tick"[^>]*>([^<]*)<', one)) for one in panels}) == 1


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


def test_names_that_no_file_can_hold(tmp_path, made, check_page):
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

    class Refusing(type(comparison.fits["cavi"].to_arviz())):
        def to_netcdf(self, path):
            raise ValueError("VLEN strings do not support embedded NULLs")

    comparison.fits["cavi"].to_arviz = Refusing
    with pytest.raises(InputError, match="change the names of rows and columns"):
        report.write(comparison, tmp_path / "bad")
    assert (tmp_path / "bad" / "report.html").exists() and not (
        tmp_path / "bad" / "cavi.nc"
    ).exists()


def test_exports_have_the_labels_of_the_page_and_say_what_they_lack(tmp_path, made, capsys):
    """Every engine's draws are aligned to the pivot of the page. What a file lacks is told."""
    comparison, asked = made("lda"), {}

    class Thinned(type(comparison.fits["cavi"].to_arviz())):
        def __init__(self, **given):
            asked.update(given)

        def __getitem__(self, group):
            return SimpleNamespace(attrs={"note": "Of 60 draws 20 were kept."})

    comparison.fits["cavi"].to_arviz = Thinned
    report.write(comparison, tmp_path)
    assert asked["pivot"] is comparison.pivot
    assert asked["attributes"] == {"seed": comparison.summary["seed"]}
    assert "cavi.nc: Of 60 draws 20 were kept." in capsys.readouterr().err


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
