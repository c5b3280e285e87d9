"""A user's first hour on the command line: texts in, topics out, new documents labelled."""

import csv
import shutil

import numpy as np
import pytest

import inference
import pp_models
from inference.cli import main, shown

PETS = "the cat and the dog chase the pet cat; a dog and a cat are pets"
LAWS = "congress voted on the tax law; the vote on the tax law passed by one vote"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with a file for each document."""
    folder = tmp_path_factory.mktemp("texts")
    for i in range(4):
        (folder / f"pets{i}.txt").write_text(PETS)
        (folder / f"laws{i}.txt").write_text(LAWS)
    return folder


@pytest.fixture(scope="module")
def fitted(texts, tmp_path_factory):
    """What `pp-models fit` wrote, and what is printed is not looked at here."""
    out = tmp_path_factory.mktemp("fits") / "fitted"
    arguments = ["fit", "lda", "--data", str(texts), "--set", "num_topics=2", "--out", str(out)]
    assert main([*arguments, "--devices", "1", "--quiet"]) == 0
    return out


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_the_first_command_shows_topics(texts, tmp_path, capsys, monkeypatch):
    """They are printed, the largest first, as wide as the terminal, and written with the documents'
    proportions; draws are not, unless they are asked for.
    """
    monkeypatch.setenv("COLUMNS", "40")
    out = tmp_path / "out"
    arguments = ["fit", "lda", "--data", str(texts), "--set", "num_topics=2", "--out", str(out)]
    assert main([*arguments, "--devices", "1", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("topic  share  words")
    shares = [float(line.split()[1].rstrip("%")) for line in lines[start + 1 : start + 3]]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(100, abs=0.11)
    assert all(30 < len(line) <= 40 for line in lines[start + 1 : start + 3])
    assert not (out / "posterior.nc").exists()

    fit = inference.load(out / "fit.npz")
    head, *rows = read(out / "document_topics.csv")
    assert head == ["document", "topic 0", "topic 1"] and [row[0] for row in rows][:1] == ["laws0"]
    values = np.array([row[1:] for row in rows], float)
    np.testing.assert_allclose(values, fit.documents(), rtol=1e-5)
    head, *rows = read(out / "topics.csv")
    table = fit.topics(20)
    assert head == ["topic", "share", "words"]
    assert [row[2] for row in rows] == list(table["words"])

    assert main([*arguments, "--devices", "1", "--quiet", "--overwrite", "--draws", "5"]) == 0
    assert (out / "posterior.nc").exists()
    assert main([*arguments, "--devices", "1", "--quiet", "--overwrite"]) == 0
    assert not (out / "posterior.nc").exists(), "draws of a fit that was replaced"
    assert main([*arguments, "--draws", "-1"]) == 2


def test_topics_of_a_stored_fit(fitted, tmp_path, capsys):
    """The fit knows its words; each ranking is that of the table in Python."""
    fit = inference.load(fitted / "fit.npz")
    for rank in ("probability", "relevance", "lift"):
        out = tmp_path / f"{rank}.csv"
        arguments = ["topics", str(fitted), "--num-words", "3", "--rank", rank, "--out", str(out)]
        assert main([*arguments, "--relevance", "0.3"]) == 0
        lines = capsys.readouterr().out.splitlines()
        words = [words.split(", ") for words in fit.topics(3, rank, 0.3)["words"]]
        assert [line.split()[2:] for line in lines[1:3]] == words
        assert [row[2].split(", ") for row in read(out)[1:]] == words


def test_new_texts_are_labelled(fitted, tmp_path, capsys):
    """One row for each file, named as the file; a word that was not fitted is told on stderr. The
    preview shows what --out writes, and --sd adds columns.
    """
    new = tmp_path / "new"
    new.mkdir()
    (new / "a.txt").write_text("The dog, the zebra and the cat")
    (new / "b.txt").write_text("")
    table = tmp_path / "table.csv"
    assert main(["transform", str(fitted), "--data", str(new), "--out", str(table)]) == 0
    said = capsys.readouterr()
    told = "1 of 3 tokens (33.3 %) is of 1 word that was not fitted, stop words aside"
    assert said.err == f"pp-models: transform: {told}\n" and "2 rows written" in said.out
    head, a, b = read(table)
    assert head == ["document", "topic 0", "topic 1"] and (a[0], b[0]) == ("a", "b")
    assert max(float(a[1]), float(a[2])) > 0.9 and b[1:] == ["0.5", "0.5"]
    assert main(["transform", str(fitted), "--data", str(new), "--sd"]) == 0
    first, row = capsys.readouterr().out.splitlines()[:2]
    assert first.split("  ")[0] == "row" and "topic 1 sd" in first
    assert float(row.split()[1]) == pytest.approx(float(a[1]), abs=1e-3)


def test_counts_are_matched_by_their_names(fitted, tmp_path, capsys):
    """A table of counts with its vocabulary beside it, in another order."""
    (tmp_path / "new.csv").write_text("0,0,3\n0,1,2\n1,2,4\n")
    (tmp_path / "new.vocab").write_text("dog\ncat\nyak\n")
    table = tmp_path / "out.csv"
    arguments = ["transform", str(fitted), "--data", str(tmp_path / "new.csv")]
    assert main([*arguments, "--out", str(table)]) == 0
    assert "4 of 9 tokens (44.4 %) are of 1 word" in capsys.readouterr().err
    fit = inference.load(fitted / "fit.npz")
    wanted = fit.transform(["dog dog dog cat cat", ""])
    values = np.array([row[1:] for row in read(table)[1:]], float)
    np.testing.assert_allclose(values, wanted, atol=1e-5)


def test_a_column_of_texts_is_counted_by_the_fitted_words(fitted, tmp_path, capsys):
    """As texts elsewhere: rows without known words are ordinary, and what is lost is counted."""
    texts = ["a dog and a cat", "the yak", "of the"]
    lines = [f"{name},{text}\n" for name, text in zip("abc", texts, strict=True)]
    (tmp_path / "new.csv").write_text("".join(["who,speech\n", *lines]))
    table = tmp_path / "out.csv"
    named = ["--text-column", "speech", "--id-column", "who"]
    arguments = ["transform", str(fitted), "--data", str(tmp_path / "new.csv"), *named]
    assert main([*arguments, "--out", str(table)]) == 0
    assert "1 of 3 tokens (33.3 %) is of 1 word that was not fitted" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="1 of 3 tokens"):
        wanted = inference.load(fitted / "fit.npz").transform(texts)
    assert [row[0] for row in read(table)[1:]] == ["a", "b", "c"]
    values = np.array([row[1:] for row in read(table)[1:]], float)
    np.testing.assert_allclose(values, wanted, atol=1e-5)


def test_ratings_say_how_well_they_are_fitted(tmp_path, capsys):
    """No topics: the RMSE beside that of the mean rating; new users are described by factors."""
    rng = np.random.default_rng(0)
    value = rng.normal(size=(8, 1)) * rng.normal(size=(1, 6)) * 2 + 3
    rows = [f"{i},{j},{value[i, j]:.3f}\n" for i in range(8) for j in range(6)]
    (tmp_path / "ratings.csv").write_text("".join(rows))
    out = tmp_path / "out"
    arguments = ["fit", "pmf", "--data", str(tmp_path / "ratings.csv"), "--set", "rank=1"]
    assert main([*arguments, "--out", str(out), "--devices", "1", "--quiet"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("48 fitted ratings")]
    words = line.replace(",", "").split()
    assert float(words[4]) < float(words[6]) == pytest.approx(value.std(), abs=1e-3)
    assert not (out / "topics.csv").exists()
    assert main(["topics", str(out)]) == 2
    assert "'pmf' has no topics or components" in capsys.readouterr().err
    (tmp_path / "new.csv").write_text("0,1,5\n0,2,1\n")
    assert main(["transform", str(out), "--data", str(tmp_path / "new.csv")]) == 0
    assert capsys.readouterr().out.split()[:3] == ["row", "factor", "0"]
    check_whole_numbers(out, tmp_path, capsys)


def check_whole_numbers(out, folder, capsys):
    """Ids that leave gaps: a row for each user that there is, and items that were fitted."""
    (folder / "gaps.csv").write_text("99,3,5\n99,5,1\n99,70,1\n")
    assert main(["transform", str(out), "--data", str(folder / "gaps.csv")]) == 0
    said, noted = capsys.readouterr()
    fit = inference.load(out / "fit.npz")
    wanted = fit.transform(pp_models.data.ratings([0, 0], [3, 5], [5.0, 1.0], shape=(1, 6)))
    user, value = said.splitlines()[-1].split()
    assert len(said.splitlines()) == 2 and user == "99"
    assert float(value) == pytest.approx(np.asarray(wanted).item(), rel=1e-3)
    assert "1 of 3 ratings (33.3 %) is of 1 item that was not fitted" in noted
    assert main(["evaluate", str(out), "--data", str(folder / "new.csv")]) == 0
    (folder / "more.csv").write_text("0,1,5\n90000000,60,3\n")
    assert main(["evaluate", str(out), "--data", str(folder / "more.csv")]) == 0
    assert "1 of 2 ratings are of users or items not fitted" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PP_MODELS_DATA", str(folder))
        assert main(["evaluate", str(out), "--data", "ratings"]) == 0, "a data set by its name"
    for command, words in (
        (["transform", "--data", "new.csv", "--text-column", "item"], "Ratings have no columns"),
        (["evaluate", "--data", "no-such-set"], "Unknown data set 'no-such-set'"),
    ):
        assert main([command[0], str(out), *command[1:]]) == 2
        assert words in capsys.readouterr().err


def test_large_tables_are_left_to_be_asked_for(texts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shown, "MOST_NUMBERS", 15)
    monkeypatch.setattr(shown, "MOST_TOPICS", 1)
    out = tmp_path / "out"
    arguments = ["fit", "lda", "--data", str(texts), "--set", "num_topics=2", "--out", str(out)]
    assert main([*arguments, "--devices", "1", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "document_topics.csv would be large for 8 documents and 2 topics" in said
    assert "and 1 more" in said and not (out / "document_topics.csv").exists()


def test_bad_requests_are_refused_in_a_sentence(fitted, tmp_path, capsys):
    missing = tmp_path / "nowhere"
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    for arguments, words in (
        (["topics", str(missing)], "There is no fit at"),
        (["topics", str(fitted), "--rank", "best"], "Unknown ranking of words 'best'"),
        (["topics", str(fitted), "--relevance", "2"], "relevance must be"),
        (["topics", str(fitted), "--num-words", "0"], "--num-words must be at least 1"),
        (["topics", str(fitted), "--out", str(copy)], "choose another --out"),
        (["transform", str(fitted), "--data", "synthetic"], "give new data"),
        (["transform", str(fitted), "--data", str(missing / "x.npz")], "x.npz"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
