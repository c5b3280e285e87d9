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
    value = float(capsys.readouterr().out.split()[0])
    assert -np.log(20) - 0.7 < value < 0


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
