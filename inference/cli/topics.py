"""`pp-models topics`: the topics of a stored fit."""

import argparse
from pathlib import Path

from inference.cli import shown
from inference.core.topics import check_ranking
from pp_models.errors import InputError


def run_topics(chosen: argparse.Namespace) -> int:
    """Print them, the largest first; with --out, write a CSV."""
    if chosen.num_words is not None and chosen.num_words < 1:
        raise InputError(f"--num-words must be at least 1, not {chosen.num_words}.")
    check_ranking(chosen.rank, chosen.relevance)
    fit = shown.load_fit(chosen.folder)
    found, ranking = shown.parts(fit), (chosen.rank, chosen.relevance)
    names = fit.column_names
    most = len(found.share)
    print(shown.format_parts(found, names, chosen.num_words, *ranking, most))
    if chosen.out is not None:
        shown.write_parts(Path(chosen.out), found, names, chosen.num_words or 20, *ranking)
        print(f"written to {chosen.out}")
    return 0
