"""The command line: results appear whole, bad input is one sentence and exit code 2, nothing
already there is lost.
"""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import xarray

import inference
from inference.cli import main
from inference.comparison import loop
from inference.core.registry import engines
from pp_models import data as data_
from pp_models import datasets
from pp_models.data import corpus as corpora
from pp_models.data.formats import readers, writers
from pp_models.models import available


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "small.npz"
    rng = np.random.default_rng(0)
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(rng.poisson(0.8, (30, 20))))
    return path


def test_list(capsys):
    """Every model and engine has a line with the first sentence of its docstring."""
    assert main(["list"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    said = dict(line for line in lines if len(line) == 2)
    assert set(said) == {*available(), *engines()}
    assert said["lda"] == "Latent Dirichlet allocation"
    assert said["inla"] == "Integrated nested Laplace approximation (Rue et al. 2009)"
    assert not any("$" in about for about in said.values())


def test_list_does_not_wait_for_jax():
    """Names are read from files: neither JAX nor NumPyro is imported."""
    script = (
        "import sys; from pp_models.__main__ import main; main(['list']); "
        "sys.exit(bool({'jax', 'numpyro'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_fit_then_evaluate(corpus, tmp_path, capsys):
    """`fit` writes a fit that loads, its topics and a summary; `evaluate` scores it."""
    out = tmp_path / "out"
    assert (
        main(
            [
                "fit",
                "lda",
                "--data",
                str(corpus),
                "--engine",
                "cavi",
                "--set",
                "num_topics=3",
                "num_epochs=20",
                "--out",
                str(out),
                "--devices",
                "1",
            ]
        )
        == 0
    )
    summary = json.loads((out / "summary.json").read_text())
    assert summary["model"] == "lda" and summary["steps"] <= 20 and np.isfinite(summary["bound"])
    assert inference.load(out / "fit.npz").posterior.mean("beta").shape == (3, 20)
    assert sorted(file.name for file in out.iterdir()) == [
        *("document_topics.csv", "explore.html", "fit.npz", "summary.json", "topics.csv")
    ]
    capsys.readouterr()
    assert main(["evaluate", str(out), "--data", str(corpus)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split()[0]: [float(x) for x in line.split()[1:3]] for line in lines[1:]}
    assert (
        list(shown) == ["completion", "perplexity", "npmi", "diversity"]
        and "nats per token" in lines[1]
    )
    assert -np.log(20) - 0.7 < shown["completion"][0] < 0 and all(
        error > 0 for _, error in shown.values()
    )

    names = ["--measure", "completion", "recall", "--json"]
    assert main(["evaluate", str(out), "--data", str(corpus), *names]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"] == "lda" and [row["measure"] for row in printed["measures"]] == [
        "completion",
        "recall",
    ]
    assert printed["measures"][0]["value"] == pytest.approx(
        shown["completion"][0], abs=1e-4
    )  # four digits are shown
    assert (
        main(["evaluate", str(out), "--data", str(corpus), *names, str(tmp_path / "scores.json")])
        == 0
    )
    assert json.loads((tmp_path / "scores.json").read_text()) == printed


def test_names_reach_the_results(tmp_path):
    """Words and documents are called in `posterior.nc` what the files beside the counts call
    them.
    """
    (tmp_path / "small.csv").write_text("0,0,3\n0,1,1\n1,2,2\n2,0,1\n")
    (tmp_path / "small.vocab").write_text("ape\nbee\ncat\n")
    (tmp_path / "small.rows").write_text("first\nsecond\nthird\n")
    arguments = [
        "--data",
        str(tmp_path / "small.csv"),
        "--set",
        "num_topics=2",
        "num_epochs=3",
        "--out",
        str(tmp_path / "out"),
        "--devices",
        "1",
        "--draws",
        "20",
    ]
    assert main(["fit", "lda", *arguments]) == 0
    stored = xarray.open_dataset(
        tmp_path / "out" / "posterior.nc", group="posterior", engine="h5netcdf"
    )
    assert list(stored["feature"].values) == ["ape", "bee", "cat"] and list(
        stored["row"].values
    ) == ["first", "second", "third"]


def test_evaluate_refuses(corpus, tmp_path, capsys):
    """Another vocabulary, measures that do not exist or do not suit, and files that cannot be
    written: one sentence, exit code 2.
    """
    out, other, heldout = tmp_path / "out", tmp_path / "other.npz", tmp_path / "ldac" / "held.ldac"
    words = [f"w{v}" for v in range(20)]
    heldout.parent.mkdir()
    heldout.write_text("2 0:1 19:2\n")
    heldout.with_suffix(".vocab").write_text("\n".join(words))
    assert (
        main(
            [
                "fit",
                "lda",
                "--data",
                str(heldout),
                "--set",
                "num_topics=2",
                "num_epochs=2",
                "--out",
                str(out),
                "--devices",
                "1",
            ]
        )
        == 0
    )
    assert main(["evaluate", str(out), "--data", str(heldout), "--measure", "completion"]) == 0
    heldout.with_suffix(".vocab").write_text("\n".join(words[::-1]))
    scipy.sparse.save_npz(other, scipy.sparse.csr_array(np.ones((3, 7))))
    capsys.readouterr()
    for arguments, part in (
        (["--data", str(other)], "same vocabulary"),
        (["--data", str(heldout)], "in another order"),
        (["--data", str(corpus), "--measure", "complete"], "Did you mean 'completion'"),
        (["--data", str(corpus), "--measure", "rmse"], "measure that suits lda"),
        (["--data", str(corpus), "--folds", "1"], "--folds"),
        (["--data", str(corpus), "--top", "0"], "--top"),
        (["--data", str(corpus), "--words", "1"], "--words"),
        (["--data", "synthetic"], "other topics"),
        (["--data", str(tmp_path / "none.npz")], "does not exist"),
        (
            ["--data", str(corpus), "--measure", "diversity", "--json", str(other / "where.json")],
            "Cannot write",
        ),
    ):
        assert main(["evaluate", str(out), *arguments]) == 2
        error = capsys.readouterr().err
        assert part in error and error.count("\n") == 1, error


def test_evaluate_ratings(tmp_path, capsys):
    """Of ratings, their measures."""
    lines = [f"{u},{i},{(u * i) % 5 + 1}" for u in range(6) for i in range(5)]
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    (tmp_path / "held.csv").write_text("\n".join(lines[::4]))
    out = tmp_path / "out"
    arguments = [
        "--data",
        str(tmp_path / "ratings.csv"),
        "--engine",
        "map",
        "--set",
        "rank=2",
        "num_epochs=3",
        "--out",
        str(out),
        "--devices",
        "1",
    ]
    assert main(["fit", "pmf", *arguments]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(out), "--data", str(tmp_path / "held.csv")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "measure",
        "rmse",
        "mae",
        "log_density",
        "coverage",
    ]


@pytest.mark.slow
def test_evaluate_votes(tmp_path, capsys):
    """Votes on new bills from their text: members who vote by the bills' one strong topic are told
    apart better than by chance.
    """
    rng = np.random.default_rng(0)
    words, members = np.abs(rng.normal(size=(12, 2))), 3 * rng.normal(size=(6, 2))
    for name, size in (("old", 20), ("new", 15)):
        weights = np.abs(rng.normal(size=(size, 2)))
        votes = (weights @ members.T + 0.3 * rng.normal(size=(size, 6)) > 0).astype(float)
        writers.write(data_.counts(rng.poisson(4 * weights @ words.T)), tmp_path / f"{name}.csv")
        lines = (f"{bill},{member},{vote:.0f}\n" for (bill, member), vote in np.ndenumerate(votes))
        (tmp_path / f"{name}.votes.csv").write_text("".join(lines))
    out, settings = tmp_path / "out", ["num_topics=2", "alpha1=1.0", "alpha2=0.3", "num_epochs=20"]
    assert (
        main(
            [
                "fit",
                "lg_nmf_votes",
                "--data",
                str(tmp_path / "old.csv"),
                "--engine",
                "map",
                "--set",
                *settings,
                "--out",
                str(out),
                "--devices",
                "1",
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert main(["evaluate", str(out), "--data", str(tmp_path / "new.csv"), "--json"]) == 0
    found = {
        row["measure"]: row["value"] for row in json.loads(capsys.readouterr().out)["measures"]
    }
    assert list(found) == ["accuracy", "auc", "log_loss", "brier", "calibration_error"]
    assert found["auc"] > 0.8 and found["log_loss"] < np.log(2)


def test_results_are_not_overwritten(corpus, tmp_path, capsys):
    """A folder with results is refused and left alone, unless --overwrite is given."""
    (tmp_path / "precious.txt").write_text("kept")
    arguments = [
        "fit",
        "lda",
        "--data",
        str(corpus),
        "--set",
        "num_topics=2",
        "num_epochs=2",
        "--out",
        str(tmp_path),
        "--devices",
        "1",
    ]
    assert main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
    assert main([*arguments, "--overwrite"]) == 0
    assert (tmp_path / "precious.txt").read_text() == "kept" and (tmp_path / "fit.npz").exists()


BAD = {
    "unknown model": (["fit", "ldaa", "--out", "X"], "Did you mean 'lda'"),
    "unknown engine": (["fit", "lda", "--engine", "caviar", "--out", "X"], "Did you mean 'cavi'"),
    "unknown option": (
        ["fit", "lda", "--set", "num_topic=3", "--out", "X"],
        "Did you mean 'num_topics'",
    ),
    "no topics": (["fit", "lda", "--set", "num_topics=0", "--out", "X"], "num_topics"),
    "bad number": (["fit", "lda", "--set", "num_epochs=-3", "--out", "X"], "num_epochs"),
    "no sweeps": (["fit", "lda", "--set", "num_epochs=0", "--out", "X"], "at least 1"),
    "not a setting": (["fit", "lda", "--set", "num_topics", "--out", "X"], "NAME=VALUE"),
    "missing file": (
        ["fit", "lda", "--data", "nowhere/corpus.npz", "--out", "X"],
        "nowhere/corpus.npz",
    ),
    "unknown data": (["fit", "lda", "--data", "synthetc", "--out", "X"], "synthetic"),
    "missing fit": (["evaluate", "nowhere", "--data", "also-nowhere.npz"], "nowhere"),
    "unknown reference": (
        ["compare", "lda", "--reference", "gibs", "--out", "X"],
        "Did you mean 'gibbs'",
    ),
    "no budget": (
        ["compare", "lda", "--budget", "0", "--out", "X"],
        "--budget must be a positive number",
    ),
    "no rows": (["compare", "lda", "--rows", "0", "--out", "X"], "--rows must be at least 1"),
    "no reference there": (
        ["reference", "lda", "--check", "nowhere.npz"],
        "There is no reference posterior at nowhere.npz",
    ),
    "no posterior": (["reference", "nmf", "--out", "X"], "no proper prior"),
    "reference that is no sampler": (
        ["compare", "lda", "--reference", "cavi", "--out", "X"],
        "is no sampler",
    ),
    "nothing to compare": (
        ["compare", "lda", "--quick", "--engines", "nuts", "--reference", "nuts", "--out", "X"],
        "nothing to compare with 'nuts'",
    ),
    "no engines": (["compare", "lda", "--engines", " , ", "--out", "X"], "name at least one"),
    "seed too large": (
        ["compare", "lda", "--seed", "4294967296", "--out", "X"],
        "--seed must be a whole number from 0 to 4294967295",
    ),
    "negative seed": (
        ["fit", "lda", "--seed", "-1", "--out", "X"],
        "--seed must be a whole number from 0",
    ),
    "unknown engines": (
        ["compare", "lda", "--engines", "cavi,svii", "--out", "X"],
        "Did you mean 'svi'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, tmp_path, monkeypatch, capsys):
    """One sentence on the error stream, exit code 2, no folder made, no traceback."""
    monkeypatch.chdir(tmp_path)
    arguments, part = BAD[name]
    if arguments[0] != "evaluate":
        arguments = [*arguments, "--devices", "1"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert part in error and error.count("\n") == 1 and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("contents", ["negative", "fractional", "nan", "empty", "truncated"])
def test_bad_files(contents, tmp_path, capsys):
    """Bad counts in a file and a file cut short are refused the same way."""
    X = np.random.default_rng(0).poisson(1.0, (50, 40)).astype(float)
    X[0, 0] = {"negative": -1, "fractional": 0.5, "nan": np.nan}.get(contents, 1)
    path = tmp_path / "corpus.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(X * 0 if contents == "empty" else X))
    if contents == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    assert (
        main(["fit", "lda", "--data", str(path), "--out", str(tmp_path / "out"), "--devices", "1"])
        == 2
    )
    error = capsys.readouterr().err
    assert error.startswith("pp-models: ") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def compare(corpus, tmp_path):
    """A small comparison, which writes to `out`."""
    settings = ["num_topics=2", "num_samples=100", "num_warmup=20", "num_epochs=10"]
    arguments = [
        "compare",
        "lda",
        "--data",
        str(corpus),
        "--quick",
        "--rows",
        "26",
        "--reference",
        "gibbs",
        "--devices",
        "1",
        "--quiet",
        "--set",
        *settings,
    ]
    return lambda engines, *more: main(
        [*arguments, "--engines", engines, "--out", str(tmp_path / "out"), *more]
    )


@pytest.mark.slow
def test_compare_keeps_what_is_finished_and_goes_on(compare, tmp_path, monkeypatch, capsys):
    """Ctrl-C: a page that says what is missing, exit code 130. The same command again fits that
    alone. Everything is there at the end.
    """
    fitted, fit = [], inference.fit

    def stops(*positional, engine, **named):
        fitted.append(engine)
        if engine == "map" and fitted.count("map") == 1:
            raise KeyboardInterrupt
        return fit(*positional, engine=engine, **named)

    monkeypatch.setattr(loop, "fit", stops)
    out = tmp_path / "out"
    assert compare("cavi, map", "--overwrite") == 130
    assert "Interrupted: map was not run" in (out / "report.html").read_text(encoding="utf-8")
    said = capsys.readouterr().err
    assert "Interrupted" in said and "Leave --overwrite out" in said
    assert compare("cavi,map") == 0
    assert fitted == ["gibbs", "cavi", "map", "map"]
    summary = json.loads((out / "summary.json").read_text())
    assert (
        summary["partial"] is None
        and set(summary["engines"]) == {"gibbs", "cavi", "map"}
        and summary["data"]["rows"] == 26
    )
    assert {"report.html", "agreement.csv", "recipe.json", "gibbs.nc", "cavi.nc", "map.nc"} <= {
        path.name for path in out.iterdir()
    }
    assert "--rows 26" in (out / "report.html").read_text(encoding="utf-8")
    assert compare("cavi,map", "--seed", "3") == 2
    said = capsys.readouterr().err
    assert "other data (another file" in said and "seed" in said
    assert compare("cavi", "--seed", "3", "--overwrite") == 0
    assert fitted[4:] == ["gibbs", "cavi"]


@pytest.mark.slow
def test_compare_on_a_full_disk(compare, tmp_path, monkeypatch, capsys):
    """A report that cannot be written is one sentence and exit code 2; the finished fits are kept
    for when there is room.
    """
    from inference.report import page as report

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "write", full)
    assert compare("map") == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error and error.count("\n") == 1
    assert {"gibbs.json", "map.json"} <= {
        path.name for path in (tmp_path / "out" / "fits").iterdir()
    }


def test_compare_without_a_sampler_that_can_run(compare, tmp_path, monkeypatch, capsys):
    """The sampler fails: the others are compared without it, and its row says why. All fail: exit
    code 2 and one sentence.
    """
    from pp_models.errors import TooLarge

    fit = inference.fit

    def fails(*positional, engine, **named):
        if engine in failing:
            raise TooLarge("lda by gibbs would take about 900 seconds.")
        return fit(*positional, engine=engine, **named)

    monkeypatch.setattr(loop, "fit", fails)
    failing = {"gibbs"}
    assert compare("cavi,map") == 0
    told = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (
        told["reference"] is None
        and "900 seconds" in told["engines"]["gibbs"]["error"]
        and "--rows" in told["engines"]["gibbs"]["error"]
    )
    assert told["engines"]["cavi"]["verdict"].startswith("not judged")
    failing = {"gibbs", "map", "cavi"}
    capsys.readouterr()
    assert compare("map", "--overwrite") == 2
    assert "No engine could be fitted" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", available())
def test_the_same_command_compares_every_model(name, tmp_path):
    """`compare MODEL --quick`: nothing fails, the summary fits its schema, and the page holds every
    engine.
    """
    import jsonschema

    from inference.comparison.record import schema
    from inference.report import palette

    assert (
        main(["compare", name, "--quick", "--quiet", "--devices", "1", "--out", str(tmp_path)]) == 0
    )
    told = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema()).validate(told)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 5_000_000
    for engine, row in told["engines"].items():
        assert row["error"] is None
        assert (
            f'class="{palette.css_class(engine)}"' in page and (tmp_path / f"{engine}.nc").exists()
        )


def test_truncated_fit_file(corpus, tmp_path, capsys):
    """A fit file cut short is named as such."""
    out = tmp_path / "out"
    assert (
        main(
            [
                "fit",
                "lda",
                "--data",
                str(corpus),
                "--set",
                "num_topics=2",
                "num_epochs=2",
                "--out",
                str(out),
                "--devices",
                "1",
            ]
        )
        == 0
    )
    whole = (out / "fit.npz").read_bytes()
    (out / "fit.npz").write_bytes(whole[: len(whole) // 2])
    assert main(["evaluate", str(out), "--data", str(corpus)]) == 2
    assert "truncated" in capsys.readouterr().err


# Data ---------------------------------------------------------------------------------------------


def test_convert_there_and_back(corpus, tmp_path, capsys):
    """Through a corpus on disk and every kind of file back to the same counts, names included."""
    names = "a.h5ad", "b.mtx", "c.csv", "d.h5ad", "e.npy", "f.npz"
    steps = [corpus, *(tmp_path / name for name in names)]
    for source, target in itertools.pairwise(steps):
        assert main(["data", "convert", str(source), str(target), "--quiet"]) == 0
        entries = readers.read(corpus).num_entries
        said = f"counts: 30 rows x 20 columns, {entries} entries, written to {target}"
        assert said in capsys.readouterr().out
    assert readers.read(steps[-1]).hash == readers.read(corpus).hash


def test_convert_text_and_other_kinds(tmp_path, capsys, monkeypatch):
    """Raw text with its options, ratings, and text with votes, which a model of votes is then
    given.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw.docs").write_text("a cat and a dog\na cat\n")
    assert (
        main(["data", "convert", "raw.docs", "raw.h5ad", "--min-df", "2", "--stop-words", "none"])
        == 0
    )
    assert corpora.read("raw.h5ad").column_names == ("cat",)
    (tmp_path / "r.csv").write_text("0,0,3.5\n1,1,4\n")
    assert main(["data", "convert", "r.csv", "r.npz", "--kind", "ratings"]) == 0
    assert readers.read_ratings(tmp_path / "r.npz").total == 7.5
    (tmp_path / "bills.csv").write_text("0,0,3\n1,1,4\n2,0,1\n")
    (tmp_path / "bills.votes.csv").write_text("0,0,1\n1,0,0\n1,1,1\n2,1,0\n")
    capsys.readouterr()
    assert main(["data", "info", "bills.csv", "--kind", "text_and_votes"]) == 0
    assert (
        "members:         2\nvotes:           4\nyeas:            50.0%" in capsys.readouterr().out
    )
    assert datasets.load("bills.csv", "lg_nmf_votes").votes.nnz == 4


def test_counts_of_other_data_are_converted(tmp_path, capsys):
    """`--kind counts` keeps the counts of a data set of another kind; without it, it is named."""
    target = str(tmp_path / "digits.h5ad")
    assert main(["data", "convert", "digits", target, "--quiet"]) == 2
    assert "add --kind counts" in capsys.readouterr().err
    assert main(["data", "convert", "digits", target, "--kind", "counts", "--quiet"]) == 0
    assert corpora.read(target).kind == "counts"


def test_info(corpus, tmp_path, capsys):
    """Sizes, names, and of a corpus its checksum; the same sizes from a file read in blocks, as a
    whole, and from a corpus.
    """
    data = readers.read(corpus)
    assert main(["data", "convert", str(corpus), str(tmp_path / "a.h5ad"), "--quiet"]) == 0
    entries = np.argwhere(data.matrix.toarray())[::-1]
    lines = "".join(f"{d},{v},{int(data.matrix[d, v])}\n" for d, v in entries)
    (tmp_path / "unsorted.csv").write_text(lines + "29,19,0\n")
    capsys.readouterr()
    shown = []
    for path in (corpus, tmp_path / "a.h5ad", tmp_path / "unsorted.csv"):
        assert main(["data", "info", str(path), "--quiet"]) == 0
        shown.append(dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines()))
        assert {
            "rows",
            "columns",
            "entries",
            "tokens",
            "density",
            "longest row",
            "column names",
            "row names",
        } <= set(shown[-1])
        assert all(shown[-1][name] == shown[0][name] for name in shown[0])
    assert (
        shown[0]["tokens"].strip() == str(int(data.total))
        and shown[1]["complete"].strip() == "yes"
        and len(shown[1]["checksum"].strip()) == 64
    )


def test_converting_loses_nothing(corpus, tmp_path, capsys):
    """What is there stays unless --overwrite is given, and a conversion that fails leaves it even
    then.
    """
    (tmp_path / "bad.csv").write_text("0,0,1\n0,1,x\n")
    for name in ("a.h5ad", "a.csv"):
        target = str(tmp_path / name)
        assert main(["data", "convert", str(corpus), target, "--quiet"]) == 0
        for extra in ([], ["--overwrite"]):
            assert (
                main(["data", "convert", str(tmp_path / "bad.csv"), target, *extra, "--quiet"]) == 2
            )
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and ("line 2" in error or "--overwrite" in error)
            assert datasets.load(target).hash == readers.read(corpus).hash
        assert main(["data", "convert", str(corpus), target, "--overwrite", "--quiet"]) == 0
        assert (
            sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".tmp")) == []
        )


BAD_DATA = {
    "missing": (["data", "convert", "nowhere.csv", "x.h5ad"], "nowhere.csv does not exist"),
    "missing corpus": (["data", "info", "nowhere.h5ad"], "nowhere.h5ad does not exist"),
    "missing store": (["data", "info", "nowhere.store"], "nowhere.store does not exist"),
    "old store": (
        ["data", "info", "mine.store"],
        "stores are .h5ad files now: pp-models data convert mine.store mine.h5ad",
    ),
    "incomplete store": (["data", "convert", "mine.store", "x.h5ad"], "not a complete store"),
    "unknown set": (["data", "info", "reuterz"], "Did you mean 'reuters'"),
    "synthetic": (["data", "info", "synthetic"], "drawn from a model"),
    "unknown format": (["data", "convert", "good.csv", "x.store"], "end the name in .npz"),
    "unknown kind": (["data", "info", "good.csv", "--kind", "count"], "Did you mean 'counts'"),
    "corpus of ratings": (
        ["data", "convert", "good.csv", "x.h5ad", "--kind", "ratings"],
        "A corpus holds counts",
    ),
    "corpus of images": (
        ["data", "convert", "digits", "x.h5ad"],
        "digits is dense data, and a corpus holds counts",
    ),
    "not text": (["data", "convert", "good.csv", "x.npz", "--min-df", "2"], "not raw text"),
    "bad frequency": (
        ["data", "convert", "raw.docs", "x.npz", "--min-df", "few"],
        "--min-df takes a number",
    ),
    "unsorted": (
        ["data", "convert", "unsorted.csv", "x.h5ad"],
        "row 0 follows row 1: sort",
    ),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data(name, tmp_path, monkeypatch, capsys):
    """One sentence, exit code 2, and nothing new."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PP_MODELS_DATA", raising=False)
    for file, content in (
        ("good.csv", "0,0,1\n"),
        ("unsorted.csv", "1,0,1\n0,0,1\n"),
        ("raw.docs", "words\n"),
        ("mine.store/thesis.tex", ""),
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    before = sorted(map(str, tmp_path.rglob("*")))
    arguments, part = BAD_DATA[name]
    assert main([*arguments, "--quiet"]) == 2
    error = capsys.readouterr().err
    assert part in error and error.count("\n") == 1 and "Traceback" not in error
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_help_and_module():
    """`python -m pp_models --help` works in a fresh process."""
    result = subprocess.run(
        [sys.executable, "-m", "pp_models", "--help"], capture_output=True, text=True
    )
    assert result.returncode == 0 and "compare" in result.stdout
