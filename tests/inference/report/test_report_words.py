"""Laws of what the report says in words."""

import re
import sys
from types import SimpleNamespace

import pytest

import pp_models
from inference.report import markup
from inference.report import page as report


def test_verdict_comes_before_everything_else(pages):
    page = pages["lda"]
    assert (
        page.index("Nearest approximation") < page.index("<nav") < page.index("Generative process")
    )
    assert "R-hat 1.004" in page
    assert "log evidence −98.5 ± 0.3" in page


@pytest.mark.parametrize("model", pp_models.available())
def test_papers_are_named_by_their_authors(model):
    """Readers of a page do not know the letters by which the code cites papers."""
    text = markup.named_papers(sys.modules[pp_models.load(model).log_local.__module__].__doc__)
    assert not re.search(r"\b[PTXHC] ?\(?\d|\| [PTXH] \|", text)
    assert markup.named_papers("By P(11.25) of C18 (Theis & Hoffman, T 9).") == (
        "By Paisley et al. (11.25) of Columbia lecture 18 (Theis & Hoffman, 9)."
    )


def test_data_are_summed_up_in_their_own_units(pages):
    """Tokens are counted; the sum of ratings or of pixels says nothing."""
    assert "<dt>tokens</dt>" in pages["lda"] and "3 rows, to score" in pages["lda"]
    assert (
        "12 ratings, to score" in pages["pmf"]
        and "<dt>tokens</dt>" not in pages["pmf"] + pages["gaussian_mixture"]
    )


def test_khat_is_explained(comparisons, changed):
    rows = {name: dict(row) for name, row in comparisons["lda"].summary["engines"].items()}
    rows["cavi"]["khat"], rows["svi"]["khat"], rows["numpyro_svi"]["khat"] = 0.68, None, 0.3
    rows["cavi"]["psis"] = {"mean_error_sd": 0.1, "sd_ratio": 0.9}
    page = " ".join(report.render(changed(comparisons["lda"], engines=rows)).split())
    assert "k-hat 2.40: q is too far from the posterior for importance weighting" in page
    assert "k-hat 0.68: importance weighting can still repair q" in page
    assert "k-hat 0.30: q is near the posterior" in page
    assert "means are 0.10 reference sd off and widths 0.90 of the reference's." in page


def test_a_reference_that_has_not_converged_is_called_that(comparisons, changed):
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


def test_a_partial_run_says_so(comparisons, changed):
    words = "Interrupted: nuts and <svi> were not run."
    comparison = changed(comparisons["pmf"], partial=words, quick=True)
    page = report.render(comparison)
    assert "Interrupted: nuts and &lt;svi&gt; were not run." in page
    assert "quick run" in page
    assert words in report.table(comparison)


def test_every_note_is_said_once(comparisons, changed):
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


def test_chains_in_different_modes_are_reported(comparisons, changed):
    rows = {name: dict(row) for name, row in comparisons["lda"].summary["engines"].items()}
    rows["gibbs"]["modes"] = {
        "groups": [[0, 2], [1]],
        "text": "Chains 1 and 3 are in another mode than chain 2.",
    }
    assert "Chains 1 and 3 are in another mode" in report.render(
        changed(comparisons["lda"], engines=rows)
    )


def test_how_to_reproduce(comparisons, pages, changed):
    page = pages["lda"]
    assert comparisons["lda"].summary["data_hash"] in page
    assert "python -m pp_models compare lda --reference gibbs" in page
    assert "jax 0.10.2" in page
    short = changed(comparisons["lda"], quick=True, budget=30.0)
    assert "--quick --budget 30 --seed 0 --set num_topics=3" in report.render(short)
    assert "pp-models compare lda &lt;here&gt;" in report.render(
        comparisons["lda"], "pp-models compare lda <here>"
    )


def test_terminal_table(comparisons, changed):
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
