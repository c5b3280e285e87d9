"""The command line: results appear whole, bad input is one sentence and exit code 2, nothing already there is lost."""

import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import inference
from pp_models.__main__ import main


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "small.npz"
    rng = np.random.default_rng(0)
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(rng.poisson(0.8, (30, 20))))
    return path


def test_list(capsys):
    """Every model and engine is named."""
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "lda" in out and "bayesian_nmf" in out and "gibbs" in out


def test_fit_then_evaluate(corpus, tmp_path, capsys):
    """`fit` writes a fit that loads, a netCDF file and a summary; `evaluate` scores it."""
    out = tmp_path / "out"
    assert (
        main(["fit", "lda", "--data", str(corpus), "--engine", "cavi", "--set", "num_topics=3", "num_epochs=20", "--out", str(out), "--devices", "1"])
        == 0
    )
    summary = json.loads((out / "summary.json").read_text())
    assert summary["model"] == "lda" and summary["steps"] <= 20 and np.isfinite(summary["bound"])
    assert inference.load(out / "fit.npz").posterior.mean("beta").shape == (3, 20)
    assert (out / "posterior.nc").exists()
    capsys.readouterr()
    assert main(["evaluate", str(out), "--data", str(corpus)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split()[0]: [float(x) for x in line.split()[1:3]] for line in lines[1:]}
    assert list(shown) == ["completion", "perplexity", "npmi", "diversity"] and "nats per token" in lines[1]
    assert -np.log(20) - 0.7 < shown["completion"][0] < 0 and all(error > 0 for _, error in shown.values())

    names = ["--measure", "completion", "recall", "--json"]
    assert main(["evaluate", str(out), "--data", str(corpus), *names]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"] == "lda" and [row["measure"] for row in printed["measures"]] == ["completion", "recall"]
    assert printed["measures"][0]["value"] == pytest.approx(shown["completion"][0], abs=1e-4)  # four digits are shown
    assert main(["evaluate", str(out), "--data", str(corpus), *names, str(tmp_path / "scores.json")]) == 0
    assert json.loads((tmp_path / "scores.json").read_text()) == printed


def test_evaluate_refuses(corpus, tmp_path, capsys):
    """Another vocabulary, measures that do not exist or do not suit, and files that cannot be written: one sentence, exit code 2."""
    out, other, heldout = tmp_path / "out", tmp_path / "other.npz", tmp_path / "ldac" / "held.ldac"
    words = [f"w{v}" for v in range(20)]
    heldout.parent.mkdir()
    heldout.write_text("2 0:1 19:2\n")
    heldout.with_suffix(".vocab").write_text("\n".join(words))
    assert main(["fit", "lda", "--data", str(heldout), "--set", "num_topics=2", "num_epochs=2", "--out", str(out), "--devices", "1"]) == 0
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
        (["--data", str(corpus), "--measure", "diversity", "--json", str(other / "where.json")], "Cannot write"),
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
    arguments = ["--data", str(tmp_path / "ratings.csv"), "--engine", "map", "--set", "rank=2", "num_epochs=3", "--out", str(out), "--devices", "1"]
    assert main(["fit", "pmf", *arguments]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(out), "--data", str(tmp_path / "held.csv")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["measure", "rmse", "mae", "log_density", "coverage"]


def test_results_are_not_overwritten(corpus, tmp_path, capsys):
    """A folder with results is refused and left alone, unless --overwrite is given."""
    (tmp_path / "precious.txt").write_text("kept")
    arguments = ["fit", "lda", "--data", str(corpus), "--set", "num_topics=2", "num_epochs=2", "--out", str(tmp_path), "--devices", "1"]
    assert main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
    assert main([*arguments, "--overwrite"]) == 0
    assert (tmp_path / "precious.txt").read_text() == "kept" and (tmp_path / "fit.npz").exists()


BAD = {
    "unknown model": (["fit", "ldaa", "--out", "X"], "Did you mean 'lda'"),
    "unknown engine": (["fit", "lda", "--engine", "caviar", "--out", "X"], "Did you mean 'cavi'"),
    "unknown option": (["fit", "lda", "--set", "num_topic=3", "--out", "X"], "Did you mean 'num_topics'"),
    "no topics": (["fit", "lda", "--set", "num_topics=0", "--out", "X"], "num_topics"),
    "bad number": (["fit", "lda", "--set", "num_epochs=-3", "--out", "X"], "num_epochs"),
    "no sweeps": (["fit", "lda", "--set", "num_epochs=0", "--out", "X"], "at least 1"),
    "not a setting": (["fit", "lda", "--set", "num_topics", "--out", "X"], "NAME=VALUE"),
    "missing file": (["fit", "lda", "--data", "nowhere/corpus.npz", "--out", "X"], "nowhere/corpus.npz"),
    "unknown data": (["fit", "lda", "--data", "synthetc", "--out", "X"], "synthetic"),
    "missing fit": (["evaluate", "nowhere", "--data", "also-nowhere.npz"], "nowhere"),
    "unknown reference": (["compare", "lda", "--reference", "gibs", "--out", "X"], "Did you mean 'gibbs'"),
    "unknown engines": (["compare", "lda", "--engines", "cavi,svii", "--out", "X"], "Did you mean 'svi'"),
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
    assert main(["fit", "lda", "--data", str(path), "--out", str(tmp_path / "out"), "--devices", "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pp-models: ") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_truncated_fit_file(corpus, tmp_path, capsys):
    """A fit file cut short is named as such."""
    out = tmp_path / "out"
    assert main(["fit", "lda", "--data", str(corpus), "--set", "num_topics=2", "num_epochs=2", "--out", str(out), "--devices", "1"]) == 0
    whole = (out / "fit.npz").read_bytes()
    (out / "fit.npz").write_bytes(whole[: len(whole) // 2])
    assert main(["evaluate", str(out), "--data", str(corpus)]) == 2
    assert "truncated" in capsys.readouterr().err


def test_help_and_module():
    """`python -m pp_models --help` works in a fresh process."""
    result = subprocess.run([sys.executable, "-m", "pp_models", "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and "compare" in result.stdout
