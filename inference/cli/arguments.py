"""The commands, their arguments and their help. Nothing heavy is imported here."""

import argparse
import os
from typing import Any

EPILOG = """examples:
  pp-models list
  pp-models check my_model.py
  pp-models compare lda --out results
  pp-models choose lda --data corpus.npz --grid num_topics=10,20,40 --out chosen
  pp-models fit lda --data corpus.npz --engine svi --set num_topics=50 num_epochs=3 --out fitted
  pp-models topics fitted --rank relevance
  pp-models transform fitted --data new.npz --out new.csv
  pp-models fit lda --data talks.csv --text-column talk --id-column speaker --out talks
  pp-models evaluate fitted --data heldout.npz --measure completion chib
  pp-models explore fitted --data corpus.npz --open
  pp-models data convert docword.wiki.txt.gz wiki.h5ad
"""

MEASURES = """measures of documents:
  completion, perplexity       each third of a document's words from the rest (the default)
  npmi, diversity, c_v         topics: do their words go together in the held-out documents, do
                               they differ (the first two by default)
  chib, left_to_right          the probability of whole documents, for lda
  precision, recall            the columns that a row is predicted to have next, a fifth held out
measures of ratings:           rmse, mae, log_density, coverage (all by default)
measures of votes:             accuracy, auc, log_loss, brier, calibration_error (all by default),
                               of new bills from their text
"""

RAW = argparse.RawDescriptionHelpFormatter


def parser() -> argparse.ArgumentParser:
    """Every command's `run` names a module of this package and a function in it."""
    about = "Fit and compare Bayesian factor and topic models."
    made = argparse.ArgumentParser("pp-models", None, about, EPILOG, formatter_class=RAW)
    names = "list | fit | topics | transform | explore | evaluate | choose | compare | check | data"
    names += " | reference"
    commands = made.add_subparsers(title="commands", required=True, metavar=names)
    listing = commands.add_parser("list", help="the models and engines there are")
    listing.set_defaults(run="listing:run_list")
    for add in (_add_check, _add_fit, _add_compare, _add_reference, _add_evaluate):
        add(commands)
    for add in (_add_data, _add_topics, _add_transform, _add_explore, _add_choose):
        add(commands)
    return made


def _text(command: Any, name: str, metavar: str, text: str, **more: Any) -> None:
    command.add_argument(name, metavar=metavar, help=text, **more)


def _number(command: Any, name: str, text: str, default: Any = None, metavar: str = "N") -> None:
    """A whole number; a real one where the default is one."""
    kind = float if isinstance(default, float) else int
    _text(command, name, metavar, text, type=kind, default=default)


def _several(command: Any, name: str, metavar: str, text: str) -> None:
    _text(command, name, metavar, text, nargs="+", default=[], action="extend")


def _flag(command: Any, name: str, text: str) -> None:
    command.add_argument(name, action="store_true", help=text)


def add_table_options(command: Any) -> None:
    """Which columns of a table are texts and their names; `table_options` reads them."""
    text = "of a csv, tsv, Parquet or Arrow table, the column of texts, whose words are counted"
    _text(command, "--text-column", "NAME", text)
    _text(command, "--id-column", "NAME", "of such a table, the column that names the texts")


def table_options(chosen: argparse.Namespace) -> dict[str, str]:
    """The options of `datasets.load` that were given."""
    names = ("text_column", "id_column")
    return {name: found for name in names if (found := getattr(chosen, name, None)) is not None}


def _add_check(commands: Any) -> None:
    text = "hold a model to the shared laws, first its F to the density of its `generate`"
    command = commands.add_parser("check", help=text)
    command.set_defaults(run="check:run_check")
    _text(command, "model", "MODEL|FILE", "a model's name, or the file that declares it")
    text = "a data set's name or a file (default: the model's example)"
    _text(command, "--data", "NAME|PATH", text)
    _several(command, "--set", "NAME=VALUE", "hyper-parameters (default: the example's)")
    _flag(command, "--quick", "compare F with `generate` and leave the other laws out")


def _add_fit(commands: Any) -> None:
    command = commands.add_parser("fit", help="fit a model by one engine and store the result")
    command.set_defaults(run="fit:run_fit")
    _text(command, "model", "MODEL", "a model's name")
    _text(command, "--engine", "E", "an engine's name (default: cavi)")
    text = "score every N-th batch of documents before it is learned from (default: never)"
    _number(command, "--evaluate-every", text, 0)
    text = "time between checkpoints in DIR, with which --resume goes on (default: 60)"
    _number(command, "--checkpoint-seconds", text, 60.0, "S")
    _number(command, "--checkpoint-steps", "steps between checkpoints, in place of seconds", 0)
    text = "draws of the posterior to write to posterior.nc, for ArviZ (default: none)"
    _number(command, "--draws", text, 0)
    text = "start the same command once for each, on one machine or many (docs/scaling.md)"
    group = command.add_argument_group("several processes", text)
    _text(group, "--coordinator", "HOST:PORT", "address of process 0, where the others meet it")
    _number(group, "--num-processes", "how many processes there are")
    text = "which of them this is, from 0; process 0 writes the results"
    _number(group, "--process-id", text, metavar="I")
    _add_run_options(command)


def _add_compare(commands: Any) -> None:
    text = "fit a model by several engines and judge them against MCMC"
    command = commands.add_parser("compare", help=text)
    command.set_defaults(run="compare:run_compare")
    _text(command, "model", "MODEL", "a model's name")
    text = (
        "engines to judge (default: a standard set of those that fit the model); E+lr: the fit by "
    )
    text += "variational engine E with the widths of linear response (docs/widths.md)"
    _text(command, "--engines", "a,b,c", text)
    text = "sampler to judge by (default: the one with most effective draws; none: judge nobody)"
    _text(command, "--reference", "E", text)
    text = "shorter fits and chains, and smaller synthetic data: for a first look, or a class"
    _flag(command, "--quick", text)
    text = "time, compiling aside: samplers get three shares, every other engine one (default: 600)"
    _text(command, "--budget", "SECONDS", text, type=float, default=600.0)
    _number(command, "--rows", "compare on a random part of so many rows")
    _add_run_options(command)


def _add_run_options(command: Any) -> None:
    text = "a data set's name or a file (default: draws from the model's prior)"
    _text(command, "--data", "NAME|PATH", text, default="synthetic")
    add_table_options(command)
    _text(command, "--out", "DIR", "folder for the results", required=True)
    _flag(command, "--overwrite", "replace results that are already there")
    text = "go on with what was interrupted in DIR, to the same bits; begin where nothing was"
    _flag(command, "--resume", text)
    _number(command, "--seed", "random seed (default: 0)", 0)
    text = "hyper-parameters and engine options; NAME=learn learns a hyper-parameter"
    _several(command, "--set", "NAME=VALUE", text)
    text = "CPU devices to use (default: one per core; one for a quick comparison)"
    _number(command, "--devices", text)
    _flag(command, "--quiet", "no progress bars")


def _add_reference(commands: Any) -> None:
    text = "make or check a reference posterior: draws of two samplers that meet written criteria"
    command = commands.add_parser("reference", help=text)
    command.set_defaults(run="reference:run_reference")
    _text(command, "model", "MODEL", "a model's name")
    what = command.add_mutually_exclusive_group(required=True)
    text = "make it, and write it to this .npz file; interrupted, the same command goes on"
    _text(what, "--out", "FILE", text)
    _text(what, "--check", "FILE", "say what a file holds, and check its figures")
    _flag(command, "--again", "with --check, run both samplers again and compare with the file")
    _number(command, "--seed", "random seed (default: 1)", 1)
    _flag(command, "--overwrite", "replace a file that is already there")
    _number(command, "--devices", "CPU devices to use (default: one per core)", os.cpu_count() or 1)
    _flag(command, "--quiet", "no progress bars")


def _add_evaluate(commands: Any) -> None:
    text = "score a stored fit on held-out data"
    command = commands.add_parser("evaluate", help=text, epilog=MEASURES, formatter_class=RAW)
    command.set_defaults(run="evaluate:run_evaluate")
    _text(command, "folder", "DIR", "what `fit --out` wrote")
    text = "held-out documents, or ratings of the users and items fitted"
    _text(command, "--data", "NAME|PATH", text, required=True)
    add_table_options(command)
    _several(command, "--measure", "NAME", "what to compute (default: see below)")
    _number(command, "--folds", "parts of each document's words (default: 3)", 3)
    text = "predictions for each row, for precision and recall (default: 20)"
    _number(command, "--top", text, 20, "M")
    _number(command, "--words", "words of a topic, for npmi, c_v and diversity (default: 10)", 10)
    _number(command, "--seed", "random seed of splits and estimators (default: 0)", 0)
    text = "write JSON to a file, or print it in place of the table"
    _text(command, "--json", "FILE", text, nargs="?", const="-")


def _add_data(commands: Any) -> None:
    group = commands.add_parser("data", help="convert data between formats, or say what is in them")
    parts = group.add_subparsers(title="commands", required=True, metavar="convert | info")
    text = "write data in the format of DST's name; an .h5ad corpus is read in batches"
    converting = parts.add_parser("convert", help=text)
    converting.set_defaults(run="data:run_convert")
    telling = parts.add_parser("info", help="sizes, names and checksum")
    telling.set_defaults(run="data:run_info")
    for command in (converting, telling):
        _text(command, "source", "SRC", "a file, a folder or a data set's name")
        _text(command, "--kind", "KIND", "counts (default), ratings, dense or text_and_votes")
        _flag(command, "--quiet", "no progress bars")
    _text(converting, "target", "DST", "the file to write")
    add_table_options(converting)
    _flag(converting, "--overwrite", "replace what is already there")
    text = "of raw text, leave out words in fewer documents (a number, or a share such as 0.01)"
    _text(converting, "--min-df", "N", text)
    _text(converting, "--max-df", "N", "of raw text, leave out words in more documents")
    text = "of raw text, words to leave out: a file, 'english' (default) or 'none'"
    _text(converting, "--stop-words", "FILE", text)


def _add_topics(commands: Any) -> None:
    command = commands.add_parser("topics", help="show the topics of a stored fit")
    command.set_defaults(run="topics:run_topics")
    _text(command, "folder", "DIR", "what `fit --out` wrote")
    _number(command, "--num-words", "words of a topic (default: as many as fit the terminal)")
    text = "order of words: probability (default), relevance, or lift, which prefers words that "
    _text(command, "--rank", "RANK", text + "only this topic uses", default="probability")
    text = "weight of the probability against the lift in the relevance, 0 to 1 (default: 0.6)"
    _number(command, "--relevance", text, 0.6, "L")
    _text(command, "--out", "FILE", "also write them to a CSV file")


def _add_transform(commands: Any) -> None:
    text = "weights of new rows under a stored fit: topics of documents, factors of users"
    command = commands.add_parser("transform", help=text)
    command.set_defaults(run="transform:run_transform")
    _text(command, "folder", "DIR", "what `fit --out` wrote")
    text = "new documents, rows, or ratings of the items fitted; columns are matched by name"
    _text(command, "--data", "NAME|PATH", text, required=True)
    add_table_options(command)
    _text(command, "--out", "FILE", "CSV file to write (default: show the first rows)")
    _flag(command, "--sd", "add columns with standard deviations")


def _add_explore(commands: Any) -> None:
    text = "write a page to browse a stored fit: topics, documents, items, predictions, votes"
    command = commands.add_parser("explore", help=text)
    command.set_defaults(run="explore:run_explore")
    _text(command, "folder", "DIR", "what `fit --out` wrote, or a file of a fit")
    text = "the data fitted, for words of documents, ratings and votes (default: without them)"
    _text(command, "--data", "NAME|PATH", text)
    _text(command, "--out", "FILE", "the page (default: explore.html in DIR)")
    _flag(command, "--open", "open the page in the browser")


def _add_choose(commands: Any) -> None:
    text = "compare numbers of factors, other hyper-parameters or engines on held-out data"
    command = commands.add_parser("choose", help=text)
    command.set_defaults(run="choose:run_choose")
    _text(command, "model", "MODEL", "a model's name")
    text = "a data set's name or a file; synthetic: draws from the model's prior"
    _text(command, "--data", "NAME|PATH", text, required=True)
    add_table_options(command)
    text = "values to compare, e.g. num_topics=10,20,40 or engine=cavi,svi; several make a grid"
    _several(command, "--grid", "NAME=A,B,...", text)
    text = "hyper-parameters and engine options that all have"
    _several(command, "--set", "NAME=VALUE", text)
    _text(command, "--heldout", "NAME|PATH", "what to score (default: a random part of the data)")
    _text(command, "--share", "S", "size of that part (default: 0.2)", type=float, default=0.2)
    text = "documents by which coherence is measured (default: the held-out ones)"
    _text(command, "--reference", "NAME|PATH", text)
    _number(command, "--words", "words of a topic, for coherence and diversity (default: 10)", 10)
    _text(command, "--out", "DIR", "folder for choose.csv and choose.svg", required=True)
    _flag(command, "--overwrite", "replace results that are already there")
    _number(command, "--seed", "random seed of the split and the fits (default: 0)", 0)
    _number(command, "--devices", "CPU devices to use (default: one per core)")
    _flag(command, "--quiet", "no progress bars")
