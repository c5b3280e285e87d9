"""The command line: `python -m pp_models`, also installed as `pp-models`."""

import argparse
import ast
import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pp_models.compilation import keep_programs
from pp_models.discovery import available
from pp_models.errors import Diverged, InputError, unknown
from pp_models.interruption import Stopped, terminable

EPILOG = """examples:
  pp-models list
  pp-models compare lda --out results
  pp-models fit lda --data corpus.npz --engine svi --set num_topics=50 num_epochs=3 --out fitted
  pp-models evaluate fitted --data heldout.npz --measure completion chib
  pp-models data convert docword.wiki.txt.gz wiki.store
"""

MEASURES = """measures of documents:
  completion, perplexity       each third of a document's words from the rest (computed unless others are named)
  npmi, diversity, c_v         topics: do their words go together in the held-out documents, do they differ (the first two likewise)
  chib, left_to_right          the probability of whole documents, for lda
  precision, recall            the columns that a row is predicted to have next, a fifth of them held out
measures of ratings:           rmse, mae, log_density, coverage (all of them unless some are named)
measures of votes:             accuracy, auc, log_loss, brier, calibration_error (likewise), of new bills from their text
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 1 where it went wrong, 2 on bad input, 130 when interrupted, 143 when terminated."""
    chosen = _parser().parse_args(arguments)
    chosen.arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not 0 <= getattr(chosen, "seed", 0) < 2**32:  # JAX forgets the higher bits
            raise InputError(f"--seed must be a whole number from 0 to {2**32 - 1}, not {chosen.seed}.")
        with terminable():
            return chosen.run(chosen)
    except InputError as error:
        print(f"pp-models: {error}", file=sys.stderr)
        return 2
    except Diverged as error:
        print(f"pp-models: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        print(f"pp-models: {stopped if str(stopped) else 'interrupted.'}", file=sys.stderr)
        return 128 + getattr(stopped, "signal", signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pp-models",
        description="Fit and compare Bayesian factor and topic models.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="list | fit | compare | reference | evaluate | data")

    listing = commands.add_parser("list", help="the models and engines there are")
    listing.set_defaults(run=run_list)

    fitting = commands.add_parser("fit", help="fit a model by one engine and store the result")
    fitting.add_argument("model", metavar="MODEL", help="a model's name")
    fitting.add_argument("--engine", default="cavi", metavar="E", help="an engine's name (default: cavi)")
    fitting.add_argument(
        "--evaluate-every", type=int, default=0, metavar="N", help="score every N-th batch of documents before it is learned from (default: never)"
    )
    fitting.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="time between checkpoints in DIR, with which --resume goes on (default: 60)",
    )
    fitting.add_argument("--checkpoint-steps", type=int, default=0, metavar="N", help="steps between checkpoints, in place of seconds")
    _add_process_options(fitting)
    fitting.set_defaults(run=run_fit)

    comparing = commands.add_parser("compare", help="fit a model by several engines and judge them against MCMC")
    comparing.add_argument("model", metavar="MODEL", help="a model's name")
    comparing.add_argument("--engines", metavar="a,b,c", help="engines to judge (default: those that apply to the model)")
    comparing.add_argument(
        "--reference", metavar="E", help="the sampler to judge by (default: the one with most effective draws; none: judge nobody)"
    )
    comparing.add_argument("--quick", action="store_true", help="shorter fits and chains, and of drawn data less: for a first look, or a class")
    comparing.add_argument(
        "--budget", type=float, metavar="SECONDS", help="time to fit in: samplers get three shares, every other engine one; compiling comes on top"
    )
    comparing.add_argument("--rows", type=int, metavar="N", help="compare on a random part of so many rows")
    comparing.set_defaults(run=run_compare)

    _add_reference_command(commands)

    evaluating = commands.add_parser(
        "evaluate", help="score a stored fit on held-out data", epilog=MEASURES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    evaluating.add_argument("folder", metavar="DIR", help="what `fit --out` wrote")
    evaluating.add_argument("--data", required=True, metavar="NAME|PATH", help="held-out documents, or ratings of the users and items fitted")
    evaluating.add_argument("--measure", nargs="+", default=[], action="extend", metavar="NAME", help="what to compute (default: see below)")
    evaluating.add_argument("--folds", type=int, default=3, metavar="N", help="parts that each document's words are split into (default: 3)")
    evaluating.add_argument("--top", type=int, default=20, metavar="M", help="predictions for each row, for precision and recall (default: 20)")
    evaluating.add_argument("--words", type=int, default=10, metavar="N", help="words of each topic, for npmi, c_v and diversity (default: 10)")
    evaluating.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of splits and estimators (default: 0)")
    evaluating.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write JSON to a file, or print it in place of the table")
    evaluating.set_defaults(run=run_evaluate)

    _add_data_commands(commands)

    for command in (fitting, comparing):
        command.add_argument(
            "--data", metavar="NAME|PATH", default="synthetic", help="a data set's name or a file (default: draws from the model's prior)"
        )
        command.add_argument("--out", required=True, metavar="DIR", help="folder for the results")
        command.add_argument("--overwrite", action="store_true", help="replace results that are already there")
        command.add_argument(
            "--resume", action="store_true", help="go on with what was interrupted in DIR, to the same bits; begin where nothing was"
        )
        command.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
        command.add_argument(
            "--set",
            nargs="+",
            default=[],
            action="extend",
            metavar="NAME=VALUE",
            help="hyper-parameters and engine options; NAME=learn learns a hyper-parameter",
        )
        command.add_argument("--devices", type=int, metavar="N", help="CPU devices to use (default: one per core; one for a quick comparison)")
        command.add_argument("--quiet", action="store_true", help="no progress bars")
    return parser


def _add_process_options(fitting: argparse.ArgumentParser) -> None:
    several = fitting.add_argument_group("several processes", "start the same command once for each, on one machine or many (docs/scaling.md)")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0, where the others meet it")
    several.add_argument("--num-processes", type=int, metavar="N", help="how many processes there are")
    several.add_argument("--process-id", type=int, metavar="I", help="which of them this is, from 0; process 0 writes the results")


def _add_reference_command(commands: Any) -> None:
    referring = commands.add_parser("reference", help="make or check a reference posterior: draws of two samplers that meet written criteria")
    referring.add_argument("model", metavar="MODEL", help="a model's name")
    what = referring.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="FILE", help="make it, and write it to this .npz file; interrupted, the same command goes on")
    what.add_argument("--check", metavar="FILE", help="say what a file holds, and hold its figures to the criteria")
    referring.add_argument("--again", action="store_true", help="with --check, run both samplers anew and hold them to what is stored")
    referring.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (default: 1)")
    referring.add_argument("--overwrite", action="store_true", help="replace a file that is already there")
    referring.add_argument("--devices", type=int, default=os.cpu_count() or 1, metavar="N", help="CPU devices to use (default: one per core)")
    referring.add_argument("--quiet", action="store_true", help="no progress bars")
    referring.set_defaults(run=run_reference)


def _add_data_commands(commands: Any) -> None:
    parts = commands.add_parser("data", help="convert data between formats, or say what is in them").add_subparsers(
        title="commands", required=True, metavar="convert | info"
    )
    converting = parts.add_parser("convert", help="write data in another format: DST's name tells which, .store being a corpus store")
    converting.add_argument("source", metavar="SRC", help="a file, a folder or a data set's name")
    converting.add_argument("target", metavar="DST", help="the file or store to write")
    converting.add_argument("--overwrite", action="store_true", help="replace what is already there")
    converting.add_argument("--min-df", metavar="N", help="of raw text, leave out words in fewer documents (a number, or a share such as 0.01)")
    converting.add_argument("--max-df", metavar="N", help="of raw text, leave out words in more documents")
    converting.add_argument("--stop-words", metavar="FILE", help="of raw text, words to leave out: a file, 'english' (default) or 'none'")
    converting.set_defaults(run=run_convert)
    telling = parts.add_parser("info", help="sizes, names and checksum")
    telling.add_argument("source", metavar="SRC", help="a file, a folder or a data set's name")
    telling.set_defaults(run=run_info)
    for command in (converting, telling):
        command.add_argument("--kind", metavar="KIND", help="counts (default), ratings, dense or text_and_votes")
        command.add_argument("--quiet", action="store_true", help="no progress bars")


def run_list(chosen: argparse.Namespace) -> int:
    """Names only: nothing is imported."""
    from inference.registry import engines

    print("models: ", " ".join(available()))
    print("engines:", " ".join(engines()))
    return 0


def run_fit(chosen: argparse.Namespace) -> int:
    """DIR/fit.npz, DIR/posterior.nc and DIR/summary.json; until they are there, DIR/checkpoint.npz."""
    _check_processes(chosen)
    model, settings = _prepare(chosen, [chosen.engine])
    folder = _folder(chosen)
    _join_processes(chosen)  # before JAX is first used, which reading data may do
    from inference import fitted

    data, hyper, _ = _data(chosen, model, settings["hyper"])
    asked = {"model": chosen.model, "engine": chosen.engine, "seed": chosen.seed, "data": data.hash, "evaluate_every": chosen.evaluate_every}
    asked |= {"hyper-parameters and options": dict(sorted(_setting(text) for text in chosen.set))}
    import jax

    import inference
    from inference import checkpoints, devices

    writes = not chosen.process_id
    if chosen.resume and devices.agreed(jax.devices(), fitted.is_finished(folder)):  # of several processes, the first may be alone to see its results
        if writes:
            fitted.check_same(folder, asked)
            print(f"{folder} holds the finished fit: nothing is left to do.")
        else:
            checkpoints.remove(folder / fitted.CHECKPOINT)  # which the first process could not, on another disk
        return 0
    if chosen.coordinator is None:
        _make_folder(folder)  # several processes look for themselves, together, when they look for checkpoints
    if chosen.overwrite:  # nobody looks for a checkpoint before all are gone
        devices.all_or_none(jax.devices(), lambda: fitted.begin_anew(folder))
    options = settings["options"].get(chosen.engine, {})
    shown: dict[str, Any] = {"progress": False if chosen.quiet else None, "evaluate_every": chosen.evaluate_every}
    shown |= {"checkpoint": folder / fitted.CHECKPOINT, "checkpoint_seconds": chosen.checkpoint_seconds, "checkpoint_steps": chosen.checkpoint_steps}
    try:
        fit = inference.fit(chosen.model, data, chosen.engine, hyper, jax.random.key(chosen.seed), **shown, **options)
    except Diverged as error:
        raise fitted.keep_last_good(error, folder) if writes else error from None
    except Stopped as stopped:
        raise Stopped(stopped.signal, f"{stopped} Add --resume to the same command to go on.") from None
    if not writes:
        if not chosen.quiet:
            print(f"process {chosen.process_id} of {chosen.num_processes} is done; process 0 writes the results")
        return 0
    fitted.write(fit, folder, asked)
    print(fit)
    if chosen.evaluate_every and (scored := [x for x in fit.history["heldout"] if x == x]):
        print(f"batches scored before they were learned from: {len(scored)}, the first {scored[0]:.4f} and the last {scored[-1]:.4f} nats per word")
    print(f"written to {folder}")
    return 0


def run_compare(chosen: argparse.Namespace) -> int:
    """DIR/report.html, DIR/summary.json, DIR/agreement.csv and one .nc per engine; finished fits in DIR/fits."""
    if chosen.budget is not None and not 0 < chosen.budget < float("inf"):
        raise InputError(f"--budget must be a positive number of seconds, not {chosen.budget}.")
    if chosen.rows is not None and chosen.rows < 1:
        raise InputError(f"--rows must be at least 1, not {chosen.rows}.")
    names = None if chosen.engines is None else [name for part in chosen.engines.split(",") if (name := part.strip())]
    model, settings = _prepare(chosen, names)
    folder = _folder(chosen)
    data = None if chosen.data == "synthetic" else _data(chosen, model, settings["hyper"])[0]
    if folder.is_dir():
        _make_folder(folder)  # one that is not there is made when everything has been checked
    import jax

    import inference
    from inference import report, results
    from pp_models.files import explained

    comparison = inference.compare(
        chosen.model,
        data,
        reference=chosen.reference,
        engines=names,
        hyper=settings["hyper"] or None,
        key=jax.random.key(chosen.seed),
        options=settings["options"],
        progress=False if chosen.quiet else None,
        on_result=_tell,
        quick=chosen.quick,
        budget=chosen.budget,
        rows=chosen.rows,
        folder=folder,
        overwrite=chosen.overwrite,
        command=f"pp-models {shlex.join(chosen.arguments)}",
    )
    with explained(folder):
        page = report.write(comparison, folder)
    results.tidy(folder, comparison.fits)
    print(f"\n{report.table(comparison)}\n\nreport: {page}")
    if comparison.summary["partial"]:
        again = " Leave --overwrite out then, or everything is fitted again." if chosen.overwrite else ""
        print(f"pp-models: {comparison.summary['partial']}{again}", file=sys.stderr)
        return 130
    return 0 if len(comparison.fits) > 1 else 1


def _tell(engine: str, row: dict[str, Any]) -> None:
    seconds = "" if row["seconds"] is None else f" ({row['seconds']:.1f} s)"
    print(f"{engine}{seconds}: {'failed: ' + row['error'] if row['error'] else row['verdict']}", flush=True)


def run_reference(chosen: argparse.Namespace) -> int:
    """A reference posterior, made or checked; 1 where a criterion is not met."""
    if chosen.devices < 1:
        raise InputError(f"--devices must be at least 1, not {chosen.devices}.")
    _use_devices(chosen.devices)
    from inference import checkpoints, reference

    progress = False if chosen.quiet else None
    reference.find_recipe(chosen.model)
    if chosen.check is not None:
        found = reference.load(chosen.check)
        if found.model != chosen.model:
            raise InputError(f"{chosen.check} is a reference posterior of {found.model}, not of {chosen.model}: name that model.")
        criteria = reference.check(found)
        print(reference.describe(found))
        if chosen.again:
            anew = reference.check_again(found, chosen.seed, progress)
            criteria += anew
            print("\n".join(f"  {one.name}: {one.figure:.4g} ({one.limit}){'' if one.met else ' NOT MET'}" for one in anew))
        return 0 if all(one.met for one in criteria) else 1
    path = Path(chosen.out)
    if path.exists() and not chosen.overwrite:
        raise InputError(f"{path} is already there: choose another --out, or add --overwrite to replace it.")
    _make_folder(path.parent)
    found = reference.make(chosen.model, chosen.seed, progress=progress, path=path)
    reference.save(found, path)
    for checkpoint in reference.checkpoints_of(reference.find_recipe(chosen.model), path):
        if checkpoint is not None:
            checkpoints.remove(checkpoint)
    print(f"{reference.describe(found)}\n\nwritten to {path}")
    return 0 if all(one.met for one in reference.check(found)) else 1


def run_evaluate(chosen: argparse.Namespace) -> int:
    """A table of held-out measures that suit the model, or JSON."""
    if chosen.folds < 2:
        raise InputError(f"--folds must be at least 2, not {chosen.folds}: some words must stay observed.")
    for name, least in (("top", 1), ("words", 2)):
        if getattr(chosen, name) < least:
            raise InputError(f"--{name} must be at least {least}, not {getattr(chosen, name)}.")
    if chosen.data == "synthetic":
        raise InputError("--data synthetic draws other topics than those fitted: give held-out data of the same source.")
    import inference
    from inference import measures
    from pp_models import datasets, tables

    folder = Path(chosen.folder)
    fit = inference.load(folder / "fit.npz" if folder.is_dir() else folder)
    measures.check_names(fit.model, chosen.measure)
    ratings = fit.model.kind == "ratings"
    heldout = tables.read_ratings(Path(chosen.data), complete=False) if ratings else datasets.load(chosen.data, fit.model)
    rows = measures.measure(fit, heldout, chosen.measure, measures.Settings(chosen.folds, chosen.top, chosen.words, chosen.seed))
    if chosen.json is None:
        print(measures.table(rows))
        return 0
    what = {"model": fit.model.name, "engine": fit.engine, "data": {"path": chosen.data, "hash": heldout.hash}, "seed": chosen.seed}
    text = json.dumps({**what, "measures": [measures.plain(row) for row in rows]}, indent=2, allow_nan=False)
    if chosen.json == "-":
        print(text)
        return 0
    from pp_models.files import write_whole

    path = Path(chosen.json)
    try:
        write_whole(path, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot write to {path} ({error.strerror}): choose another --json.") from error
    print(f"written to {path}")
    return 0


def run_convert(chosen: argparse.Namespace) -> int:
    """The same data in another format."""
    from pp_models.conversion import convert

    options = {name: _frequency(name, value) for name in ("min_df", "max_df") if (value := getattr(chosen, name)) is not None}
    options |= {} if chosen.stop_words is None else {"stop_words": chosen.stop_words}
    print(convert(chosen.source, chosen.target, chosen.kind, chosen.overwrite, False if chosen.quiet else None, **options))
    return 0


def _frequency(name: str, text: str) -> int | float:
    try:
        return float(text) if "." in text else int(text)
    except ValueError as error:
        raise InputError(f"--{name.replace('_', '-')} takes a number of documents or a share of them, such as 5 or 0.5, not {text!r}.") from error


def run_info(chosen: argparse.Namespace) -> int:
    """What the data are."""
    from pp_models.conversion import describe

    for name, value in describe(chosen.source, chosen.kind, False if chosen.quiet else None).items():
        print(f"{name + ':':<16} {value}")
    return 0


# Shared by the commands --------------------------------------------------------------------------------------------------------


def _prepare(chosen: argparse.Namespace, engines: list[str] | None) -> tuple[Any, dict[str, Any]]:
    """Check every name before anything is compiled, and sort --set into hyper-parameters and engine options. engines: None for all."""
    quick = getattr(chosen, "quick", False)
    if chosen.devices is not None and chosen.devices < 1:
        raise InputError(f"--devices must be at least 1, not {chosen.devices}.")
    _use_devices(chosen.devices or (1 if quick else os.cpu_count() or 1))
    if quick:
        _compile_fast()
    from inference.registry import COMPARED, POINTS, default_reference, load_engine, make_options
    from pp_models.discovery import load

    model = load(chosen.model)
    names = [*COMPARED, *POINTS] if engines is None else list(engines)
    if "reference" in chosen and chosen.reference != "none":
        names.append(chosen.reference or default_reference(model) or "gibbs")
    loaded = [load_engine(name) for name in dict.fromkeys(names)]
    fields = {engine.name: engine.Options._fields for engine in loaded}
    known = {*model.Hyper._fields, *(name for names in fields.values() for name in names)}
    given = dict(_setting(text) for text in chosen.set)
    for name in given:
        if name not in known:
            raise unknown("hyper-parameter or option", name, known)
    options = {engine.name: {n: v for n, v in given.items() if n in fields[engine.name]} for engine in loaded}
    for engine in loaded:
        make_options(engine, options[engine.name])
    options = {name: one for name, one in options.items() if one}
    return model, {"hyper": {n: v for n, v in given.items() if n in model.Hyper._fields}, "options": options}


def _use_devices(number: int) -> None:
    """One CPU device per core, so that rows and chains run side by side. JAX takes the number only before its first use."""
    import jax

    with contextlib.suppress(RuntimeError):  # already in use: called from a running Python, which keeps its devices
        jax.config.update("jax_num_cpu_devices", number)
    keep_programs()


def _check_processes(chosen: argparse.Namespace) -> None:
    """All three options or none, and numbers that can be."""
    given = {"--coordinator": chosen.coordinator, "--num-processes": chosen.num_processes, "--process-id": chosen.process_id}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return
    if missing:
        raise InputError(f"--coordinator, --num-processes and --process-id go together; missing: {' and '.join(missing)}: give all three.")
    if chosen.num_processes < 1 or not 0 <= chosen.process_id < chosen.num_processes:
        raise InputError(f"--process-id must be from 0 to --num-processes - 1, not {chosen.process_id} of {chosen.num_processes}.")
    host, colon, port = chosen.coordinator.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise InputError(f"--coordinator must be HOST:PORT, such as 10.0.0.1:5000, not {chosen.coordinator!r}.")


def _join_processes(chosen: argparse.Namespace) -> None:
    """Meet the other processes, where there are any. They must all come within some minutes."""
    if getattr(chosen, "coordinator", None) is None:
        return
    import jax

    try:
        # the others wait at their end for process 0, which may solve rows and write for a long time
        jax.distributed.initialize(chosen.coordinator, chosen.num_processes, chosen.process_id, shutdown_timeout_seconds=24 * 3600)
    except RuntimeError as error:
        raise InputError(
            f"The processes did not meet at {chosen.coordinator} ({str(error).splitlines()[0]}): start all of them, with the same address."
        ) from error


def _compile_fast() -> None:
    """Of a small problem, most of the time is compiling: a quick comparison leaves most of XLA's optimisations out."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--set takes NAME=VALUE, not {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _folder(chosen: argparse.Namespace) -> Path:
    """The output folder: new, empty, to be overwritten on request, or of a run or comparison that goes on."""
    from inference import fitted

    folder = Path(chosen.out)
    if chosen.resume and chosen.overwrite:
        raise InputError("--resume goes on with what is there and --overwrite replaces it: give one of them.")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: name a folder.")
    comparing, unfinished = chosen.run is run_compare, fitted.is_unfinished(folder)
    goes_on = (folder / "recipe.json").is_file() if comparing else chosen.resume and not fitted.holds_other_things(folder)
    if fitted.holds_anything(folder) and not chosen.overwrite and not goes_on:
        if unfinished and not comparing:
            raise InputError(f"{folder} holds a run that is not finished: add --resume to go on with it, or --overwrite to begin anew.")
        raise InputError(f"{folder} already holds results: choose another --out, or add --overwrite to replace them.")
    return folder


def _make_folder(folder: Path) -> None:
    """Make the folder and try to write there before hours of fitting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"Cannot write to {folder} ({error.strerror}): choose another --out.") from error


def _data(chosen: argparse.Namespace, model: Any, hyper: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The data, the hyper-parameters to fit with (for draws from the prior those of the draw), and the values drawn, or None."""
    import jax

    from pp_models import datasets
    from pp_models.base import make_hyper, split_learned

    plain, learned = split_learned(model, hyper)
    if chosen.data == "synthetic":
        drawn, data, truth = datasets.synthetic(model, jax.random.key(chosen.seed), hyper=plain or None)
        marked = {name: ("learn", getattr(drawn, name)) for name in learned or ()}
        return data, {**drawn._asdict(), **marked}, truth
    data = datasets.load(chosen.data, model)
    make_hyper(model, plain, data)
    return data, hyper, None


if __name__ == "__main__":
    sys.exit(main())
