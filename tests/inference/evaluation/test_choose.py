"""`choose`: what a user asks who does not know how many topics there are."""

import csv
import math

import numpy as np
import pytest

import inference
import pp_models
from inference.cli import choose as commands
from inference.cli import main
from inference.evaluation import choose as choosing
from inference.evaluation.choice import Choice, Row
from inference.evaluation.heldout import RowScores, heldout_score, row_scores
from inference.evaluation.splits import hold_out
from pp_models.errors import Diverged, InputError

NAMES = [f"word{i}" for i in range(12)]


def corpus(num_rows=60, seed=0):
    """Documents of two groups of words that never meet."""
    rng = np.random.default_rng(seed)
    group = rng.random(num_rows) < 0.5
    rates = np.where(group[:, None], np.repeat([4.0, 0.0], 6), np.repeat([0.0, 4.0], 6))
    return pp_models.data.counts(rng.poisson(rates) + rng.poisson(0.05, rates.shape), NAMES)


@pytest.fixture(scope="module")
def chosen():
    seen = []
    found = pp_models.choose(
        "lda", corpus(), num_topics=[1, 2, 3], num_words=4, keep_fits=True, progress=False,
        watch=seen.append, num_epochs=30,
    )  # fmt: skip
    return found, seen


def test_the_number_of_topics_is_found(chosen):
    """Two groups of words that never meet are two topics: one is far worse, a third adds nothing
    that the held-out documents show clearly.
    """
    found, seen = chosen
    one, two, _ = found.rows
    assert found.best != {"num_topics": 1} and {"num_topics": 2} in [found.best, *found.tied]
    assert one.difference < -10 * one.difference_error and not one.tied
    assert two.coherence > one.coherence and two.diversity == one.diversity == 1
    assert one.effective == pytest.approx(1) and two.effective == pytest.approx(2, abs=0.2)
    assert all(row.seconds > 0 for row in found.rows)
    assert [row.settings for row in seen] == [{"num_topics": k} for k in (1, 2, 3)]
    assert [fit.hyper.num_topics for fit in found.fits] == [1, 2, 3]
    assert {"num_topics": found.fit.hyper.num_topics} == found.best


def test_scores_are_those_of_document_completion_on_the_same_documents(chosen):
    """The split is that of `hold_out`, and differences are taken document by document."""
    found, _ = chosen
    heldout = hold_out(corpus(), 0.2, 0).heldout
    scores = [inference.document_completion(fit, heldout) for fit in found.fits]
    best = int(np.argmax([score.value for score in scores]))
    for row, score in zip(found.rows, scores, strict=True):
        assert row.score == pytest.approx(score.value, rel=1e-12)
        assert row.error == pytest.approx(score.standard_error, rel=1e-12)
        gaps = score.per_document - scores[best].per_document
        assert row.difference == pytest.approx(gaps.sum() / score.num_tokens.sum(), abs=1e-12)
    assert found.num_rows == heldout.num_rows == 12


def test_the_table_reads_and_can_be_worked_with(chosen):
    """Printed with a mark on the best; as records, and as a DataFrame where pandas is there."""
    found, _ = chosen
    text = str(found)
    assert repr(found) == text and "nats per held-out word" in text
    assert "num_topics" in text.splitlines()[0] and "effective topics" in text.splitlines()[0]
    (best,) = (line for line in text.splitlines() if line.startswith("best"))
    assert best.split()[1] == str(found.best["num_topics"])
    assert [record["num_topics"] for record in found.records()] == [1, 2, 3]
    pytest.importorskip("pandas")
    assert list(found.table()["score"]) == [row.score for row in found.rows]


def test_the_figure_shows_scores_and_coherence(chosen):
    found, _ = chosen
    scores, coherence = found.figure().axes
    assert "held-out score" in scores.get_ylabel() and "NPMI" in coherence.get_ylabel()
    assert coherence.get_xlabel() == "num_topics"
    assert list(scores.get_lines()[0].get_ydata()) == [row.score for row in found.rows]


def row(value, score, difference, error, tied, **more):
    return Row({"num_topics": value}, score, 0.1, difference, error, tied, **more)


def test_sentences_say_what_can_be_told_apart():
    """Of paired differences, in one standard error; a best value at the edge of those tried."""
    rows = (
        row(5, -8.5, -0.5, 0.01, False),
        row(10, -8.02, -0.02, 0.015, False),
        row(20, -8.01, -0.01, 0.02, True),
        row(40, -8.0, 0.0, 0.0, True),
        Row({"num_topics": 80}, failed="it diverged."),
    )
    assert Choice("lda", "nats per held-out word", 9, rows).sentences == [
        "num_topics=40 scores highest: -8.0000 ± 0.1000 nats per held-out word.",
        "40 and 20 cannot be told apart on these data: the difference to the best is "
        "0.0100 ± 0.0200, within one standard error.",
        "5 scores lower by 0.5000 ± 0.0100.",
        "10 scores lower by 0.0200 ± 0.0150, less than two standard errors.",
        "80 failed: it diverged.",
    ]
    told = Choice("lda", "nats", 9, (rows[0], rows[1], rows[3])).sentences
    assert told[-1] == "40 is the largest num_topics tried: a larger one may score higher."


def test_paired_differences_have_smaller_errors():
    """Documents differ far more among themselves than two models on one document do."""
    rng = np.random.default_rng(0)
    hard, sizes = rng.normal(-8, 1, 200), np.full(200, 10.0)
    one = RowScores(sizes * hard, sizes)
    other = RowScores(sizes * (hard + 0.05 + rng.normal(0, 0.1, 200)), sizes)
    found = choosing._compared([Row({}, -8.0), Row({}, -7.95)], [one, other])
    assert not found[0].tied and found[0].difference == pytest.approx(-0.05, abs=0.02)
    assert found[0].difference_error == pytest.approx(0.1 / np.sqrt(200), rel=0.2)
    assert found[1].tied and found[1].difference == 0


def test_one_row_tells_nothing_apart():
    """Its error is unknown."""
    scores = [RowScores(np.array([x]), np.ones(1)) for x in (-2.0, -1.0)]
    rows = [Row({"rank": k}, x) for k, x in ((1, -2.0), (2, -1.0))]
    rows = choosing._compared(rows, scores)
    assert all(row.tied for row in rows)
    told = Choice("pmf", "nats", 1, rows).sentences
    assert told[1] == "One held-out row cannot tell candidates apart: hold out more."


def test_a_fit_that_diverges_does_not_end_the_others(monkeypatch):
    """It has a row that says why; only if all diverge there is nothing to choose."""

    def refuse(model, data, engine, hyper, **more):
        if hyper["eta"] > 1:
            raise Diverged("the bound fell")
        return inference.fit(model, data, engine, {"num_topics": 1, **hyper}, num_epochs=2)

    monkeypatch.setattr(choosing, "fit", refuse)
    found = pp_models.choose("lda", corpus(), eta=[0.1, 2.0], num_words=2)
    assert found.best == {"eta": 0.1} and math.isnan(found.rows[1].score)
    assert "2.0 failed: the bound fell" in str(found)
    with pytest.raises(Diverged, match=r"Every fit failed.*the bound fell"):
        pp_models.choose("lda", corpus(), eta=[2.0, 3.0])


def test_what_is_compared():
    """Lists make a grid, tuples are values, and an option counts only for engines that have it."""
    model = pp_models.load("lda")

    def of(engine="cavi", **settings):
        return list(choosing._candidates(model, engine, settings))

    grid = of(num_topics=[2, 3], eta=[0.1, 0.2], alpha=(0.1, 0.2, 0.3))
    assert [one.varied["num_topics"] for one in grid] == [2, 2, 3, 3]
    assert all(one.hyper["alpha"] == (0.1, 0.2, 0.3) for one in grid)
    engines = of(engine=["cavi", "svi"], batch_size=[8, 16])
    assert [one.varied for one in engines] == [
        {"engine": "cavi"},
        {"engine": "svi", "batch_size": 8},
        {"engine": "svi", "batch_size": 16},
    ]
    assert [one.varied for one in of(num_topics=[2, 2, 3])] == [{"num_topics": k} for k in (2, 3)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "nothing to choose from"),
        ({"num_topics": []}, "num_topics is an empty list"),
        ({"num_topic": [2, 3]}, "Did you mean 'num_topics'"),
        ({"num_topics": [2, 0]}, "num_topics"),
        ({"num_topics": [2, 3], "batch_size": 8}, "batch_size is an option of .*svi.* not of cavi"),
        ({"engine": ["cavi", "gibs"]}, "Did you mean 'gibbs'"),
        ({"num_topics": [2, 3], "share": 1.5}, "share must be between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_fitted(settings, words, monkeypatch):
    monkeypatch.setattr(choosing, "fit", lambda *_, **__: pytest.fail("a fit began"))
    with pytest.raises(InputError, match=words):
        pp_models.choose("lda", corpus(), **settings)


def test_ranks_of_ratings_are_compared_on_held_out_ratings():
    """By their log density, with errors over users; there are no topics to measure."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((30, 12)) < 0.7)
    values = np.outer(rng.normal(size=30), rng.normal(0, 2, 12))[users, items]
    data = pp_models.data.ratings(users, items, values + rng.normal(0, 0.3, len(users)))
    found = inference.choose(
        "pmf", data, "map", rank=[1, 4], sigma2=0.1, keep_fits=True, progress=False
    )
    assert found.units == "nats per held-out rating" and math.isnan(found.rows[0].coherence)
    assert "coherence" not in str(found) and len(found.figure().axes) == 1
    heldout = hold_out(data, 0.2, 0).heldout
    for one, fit in zip(found.rows, found.fits, strict=True):
        assert (one.score, one.error) == pytest.approx(heldout_score(fit, heldout), rel=1e-9)


def test_row_scores_add_up_to_the_score_of_dense_rows():
    rng = np.random.default_rng(0)
    rows = (rng.random((20, 4)) < 0.6).astype(int)
    fit = inference.fit(
        "bernoulli_mixture", pp_models.data.dense(rows[:12]), hyper={"num_components": 1},
        num_epochs=2, progress=False,
    )  # fmt: skip
    heldout = pp_models.data.dense(rows[12:])
    found = row_scores(fit, heldout)
    assert found.sums.shape == (8,) and np.all(found.sizes == 1)
    assert found.sums.mean() == pytest.approx(heldout_score(fit, heldout)[0])


def test_scoring_the_data_that_were_fitted_warns(chosen):
    """Whatever the measure; other data do not warn."""
    fit = chosen[0].fit
    with pytest.warns(UserWarning, match="the data that were fitted"):
        inference.document_completion(fit, fit.data)
    with pytest.warns(UserWarning, match="the data that were fitted"):
        inference.precision_recall_at(fit, fit.data, 2)
    inference.document_completion(fit, corpus(seed=1))


def test_held_out_ratings_are_matched_by_name():
    """To the users and items of the data, before anything is fitted."""
    users, items = np.repeat(["al", "bob"], 2), np.tile(["Heat", "Up"], 2)
    data = pp_models.data.as_data((users, items, np.arange(4.0)), "ratings")
    new = pp_models.data.ratings(["bob", "dee"], ["Up", "Up"], [5.0, 1.0])
    with pytest.warns(UserWarning, match="1 of 2 ratings are of users or items not fitted"):
        _, heldout, _ = choosing._split("ratings", (data, new, None), 0.2, 0)
    assert heldout.row_names == data.row_names and heldout.matrix.toarray()[1, 1] == 5


def test_words_in_another_order_are_refused_before_the_first_fit(monkeypatch):
    """Held-out documents and those of the reference."""
    monkeypatch.setattr(choosing, "fit", None)
    data = corpus()
    other = pp_models.data.counts(data.matrix, NAMES[::-1])
    for given, words in (
        ({"heldout": other}, "columns of the held-out data have other names"),
        ({"reference": other}, "columns of the documents of the reference have other names"),
    ):
        with pytest.raises(InputError, match=words):
            inference.choose("lda", data, num_topics=[1, 2], progress=False, **given)


def test_the_command_counts_held_out_texts_by_the_words_to_fit(tmp_path, monkeypatch):
    """Of --heldout and --reference, raw or in a column of a table."""
    seen = []

    def choose(*arguments, heldout, reference, **_):
        seen.append((arguments[1].column_names, heldout, reference))
        raise InputError("It is enough.")

    monkeypatch.setattr(commands, "choose", choose)
    (tmp_path / "a.docs").write_text("the cat sat\na dog sat\n")
    (tmp_path / "b.docs").write_text("a cat and a zebra\n")
    (tmp_path / "a.csv").write_text("id,speech\nx,the cat sat\ny,a dog sat\n")
    (tmp_path / "b.csv").write_text("id,speech\nz,a cat and a zebra\n")
    for end, options in ((".docs", []), (".csv", ["--text-column", "speech"])):
        a, b = (str(tmp_path / f"{name}{end}") for name in "ab")
        command = ["choose", "lda", "--data", a, "--heldout", b, "--reference", b, *options]
        more = ["--grid", "num_topics=1,2", "--out", str(tmp_path / "out")]
        assert main([*command, *more]) == 2
    for words, *others in seen:
        assert words == ("cat", "dog", "sat")
        for other in others:
            assert other.column_names == words and other.matrix.toarray().tolist() == [[1, 0, 0]]
    assert len(seen) == 2


def test_the_command_prints_a_table_and_writes_it(tmp_path, capsys):
    """`pp-models choose`: a line for each candidate, the table, choose.csv and choose.svg."""
    path, out = tmp_path / "corpus.npz", tmp_path / "out"
    import scipy.sparse

    scipy.sparse.save_npz(path, corpus().matrix)
    command = ["choose", "lda", "--data", str(path), "--out", str(out), "--set", "num_epochs=30"]
    assert main([*command, "--grid", "num_topics=1,2", "--words", "4"]) == 0
    said = capsys.readouterr().out
    assert "num_topics=1: -" in said and "num_topics=2 scores highest" in said
    with (out / "choose.csv").open(newline="") as file:
        records = list(csv.DictReader(file))
    assert [record["num_topics"] for record in records] == ["1", "2"]
    assert float(records[1]["score"]) > float(records[0]["score"]) and records[0]["failed"] == ""
    assert (out / "choose.svg").read_text().lstrip().startswith("<?xml")
    assert main([*command, "--grid", "num_topics=1,2"]) == 2
    assert "already holds results" in capsys.readouterr().err
    for grid in (["num_topics"], ["eta=[0.1"], []):
        assert main([*command, "--overwrite", *(["--grid", *grid] if grid else [])]) == 2
