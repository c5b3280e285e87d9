"""Streams: a database that grows, an engine that follows, and a folder that goes on where it was
left.
"""

import errno
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core.interruption import Stopped
from inference.io import archives
from inference.run import stream as streams
from pp_models.data.arrivals import Arrivals, feed, no_ids
from pp_models.errors import Diverged, InputError

HYPER = {"num_topics": 3, "alpha": "learn", "eta": 0.3}
ENGINES = {
    "streaming": {"batch_size": 8, "num_inner": 2},
    "svb": {"batch_size": 8, "num_inner": 3},
    "streaming_batch": {"batch_size": 16, "num_inner": 4},
}


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    topics, shares = rng.dirichlet(np.full(12, 0.2), 3), rng.dirichlet(np.full(3, 0.3), 40)
    return np.array([rng.multinomial(30, p) for p in shares @ topics])


def topics_of(stream):
    return np.asarray(stream.fit().posterior.natural("beta"))


@pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=() if name == "streaming" else pytest.mark.slow) for name in ENGINES],
)
def test_reopening_goes_on_bit_for_bit(engine, corpus, tmp_path):
    """Closed and opened again in the middle, a stream ends with the same numbers as one left open,
    hyper-parameters and history included.
    """

    def open_(path):
        return inference.stream("lda", 12, engine, HYPER, path=path, **ENGINES[engine])

    with open_(tmp_path / "whole") as whole:
        whole.append(corpus[:20])
        whole.step(2)
        whole.append(corpus[20:])
        whole.step(3)
        expected = topics_of(whole), np.asarray(whole.fit().hyper.alpha), whole.history
    with open_(tmp_path / "parts") as first:
        first.append(corpus[:20])
        first.step(2)
    with open_(tmp_path / "parts") as second:
        assert second.num_rows == 20 and second.num_steps == 2
        second.append(corpus[20:])
        second.step(3)
        np.testing.assert_array_equal(topics_of(second), expected[0])
        np.testing.assert_array_equal(np.asarray(second.fit().hyper.alpha), expected[1])
        for name in ("step", "bound"):
            np.testing.assert_array_equal(second.history[name], expected[2][name])


def test_memory_and_disk_learn_the_same(corpus, tmp_path):
    """Where the rows are kept does not matter."""
    streams = [
        inference.stream("lda", 12, hyper=HYPER, path=path, batch_size=8, num_inner=2)
        for path in (None, tmp_path / "disk")
    ]
    for stream in streams:
        stream.partial_fit(corpus)
    assert streams[0].num_steps == 5
    np.testing.assert_array_equal(*(topics_of(stream) for stream in streams))
    streams[1].close()


def test_word_by_word_ends_as_the_whole(corpus):
    """Documents that came word by word, in any order, leave the database that whole documents
    leave, and a step on it is the same.
    """
    whole = inference.stream("lda", 12, hyper=HYPER, batch_size=8, num_inner=2)
    words = inference.stream("lda", 12, hyper=HYPER, batch_size=8, num_inner=2)
    data = pp_models.data.counts(corpus)
    ids = no_ids(data)
    for tick in Arrivals(data, rate=3.0, probability=0.5, seed=1):
        feed(words.database, tick, ids)
    whole.append(corpus[np.argsort(ids)])
    assert words.database.data().hash == whole.database.data().hash
    for stream in (whole, words):
        stream.step(2)
    np.testing.assert_array_equal(topics_of(whole), topics_of(words))


@pytest.mark.slow
def test_learns_while_data_come(corpus):
    """Learning from half of the corpus and then from all of it predicts held-out rows better than
    the first steps alone.
    """
    stream = inference.stream("lda", 12, hyper=HYPER, batch_size=10, num_inner=4)
    stream.append(corpus[:15])
    stream.step(1)
    early = stream.fit()
    ids = stream.append(corpus[15:30] // 2)
    stream.step(20)
    stream.extend(ids, corpus[15:30] - corpus[15:30] // 2)
    stream.step(20)
    held = pp_models.data.counts(corpus[30:])
    assert (
        inference.document_completion(stream.fit(), held).value
        > inference.document_completion(early, held).value + 0.02
    )
    np.testing.assert_allclose(stream.history["rows"], [15] + 40 * [30])


def test_dense_rows(tmp_path):
    """Models of dense rows stream as well."""
    rng = np.random.default_rng(0)
    X = (
        rng.random((60, 6)) < np.repeat([[0.9] * 3 + [0.1] * 3, [0.1] * 3 + [0.9] * 3], 30, 0)
    ).astype(int)
    with inference.stream(
        "bernoulli_mixture",
        6,
        hyper={"num_components": 2},
        path=tmp_path / "dense",
        batch_size=20,
        num_inner=3,
    ) as stream:
        stream.append(rng.permutation(X))
        stream.step(30)
        beta = stream.fit().posterior.mean("beta")
    assert np.abs(np.sort(beta[:, 0]) - [0.1, 0.9]).max() < 0.15


def test_svb_waits_for_a_batch(corpus):
    """svb takes rows once and in order; fewer than a batch wait until flushed."""
    stream = inference.stream("lda", 12, "svb", HYPER, batch_size=16, num_inner=2)
    stream.append(corpus[:20])
    assert stream.step(5) == 1
    assert stream.step(5) == 0
    assert stream.step(5, flush=True) == 1
    assert stream.step(5, flush=True) == 0


def test_two_writers_are_refused(corpus, tmp_path):
    """A second process that would write to the folder is turned away in a sentence, and nothing is
    harmed.
    """
    with inference.stream("lda", 12, hyper=HYPER, path=tmp_path / "one", batch_size=8) as stream:
        stream.append(corpus)
        code = f"import inference; inference.stream('lda', 12, path={str(tmp_path / 'one')!r})"
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert second.returncode != 0 and "InputError" in second.stderr.splitlines()[-1]
        assert stream.num_rows == 40


def test_bad_input_leaves_everything_as_it_was(corpus, tmp_path):
    """Another model, vocabulary, engine, option or key; words that do not exist; rows that cannot
    be: one sentence each.
    """
    path = tmp_path / "stream"
    with inference.stream("lda", 12, hyper=HYPER, path=path, batch_size=8, num_inner=2) as stream:
        stream.append(corpus)
        stream.step(1)
        before = stream.database.data().hash, topics_of(stream)
        for wrong in (
            lambda: stream.append(-corpus),
            lambda: stream.add([0], [12]),
            lambda: stream.add([0], [-1]),
            lambda: stream.add([99], [1]),
        ):
            with pytest.raises(InputError):
                wrong()
        with pytest.raises(InputError, match="columns"):
            stream.append(corpus[:, :5])
    again = {"hyper": HYPER, "path": path, "batch_size": 8, "num_inner": 2}
    for arguments, options in (
        (("bayesian_nmf", 12), {}),
        (("lda", 13), {}),
        (("lda", 12, "svb"), {}),
        (("lda", 12), {"num_inner": 3}),
        (("lda", 12), {"key": jax.random.key(5)}),
        (("lda", 12), {"hyper": {"num_topicz": 3}}),
        (("lda", 12), {"hyper": {"num_topics": 4, "alpha": "learn", "eta": 0.3}}),
        (("lda", 12), {"arrivals": 3}),
        (("lda", 12), {"key": 3}),
        (("lda", 12), {"checkpoint_every": -1}),
        (("lda", 12, "cavi"), {}),
    ):
        with pytest.raises(InputError):
            inference.stream(*arguments, **{**again, **options})
    with inference.stream("lda", 12, **again) as stream:
        assert stream.database.data().hash == before[0]
        np.testing.assert_array_equal(topics_of(stream), before[1])


def test_a_torn_checkpoint_is_refused_and_rows_are_kept(corpus, tmp_path):
    """A truncated state is named; without it the rows are still there."""
    with inference.stream(
        "lda", 12, hyper=HYPER, path=tmp_path / "s", batch_size=8, num_inner=1
    ) as stream:
        stream.append(corpus)
        stream.step(1)
    file = tmp_path / "s" / "learned.npz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(InputError, match="truncated"):
        inference.stream("lda", 12, hyper=HYPER, path=tmp_path / "s", batch_size=8, num_inner=1)
    file.unlink()
    with inference.stream(
        "lda", 12, hyper=HYPER, path=tmp_path / "s", batch_size=8, num_inner=1
    ) as stream:
        assert stream.num_rows == 40 and stream.num_steps == 0


def test_divergence_keeps_the_last_checkpoint(tmp_path):
    """A step that ends in numbers that are not finite is refused, and what was learned before it is
    still there, in memory and on disk.
    """
    rows = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)

    def open_():
        return inference.stream(
            "gaussian_mixture",
            3,
            hyper={"num_components": 2},
            path=tmp_path / "s",
            batch_size=16,
            num_inner=1,
            bound_every=1,
        )

    with jax.enable_x64(False):
        with open_() as stream:
            stream.append(rows)
            stream.step(2)
            good = stream.fit().posterior.mean("components")
        with pytest.raises(Diverged), open_() as stream:
            stream.append(1e25 * rows)
            stream.step(6)
        with open_() as stream:
            assert stream.num_steps == len(stream.history["step"]) < 8
            assert np.all(np.isfinite(stream.fit().posterior.mean("components")))
            if stream.num_steps == 2:
                np.testing.assert_array_equal(stream.fit().posterior.mean("components"), good)


def test_an_interrupt_leaves_a_stream_that_works(corpus, tmp_path, monkeypatch):
    """Interrupted in its very first step, a stream closes, lets go of the folder, and opens again
    with its rows.
    """
    from inference.engines import streaming

    monkeypatch.setattr(
        streaming.mb, "first_natural", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with (
        pytest.raises(KeyboardInterrupt),
        inference.stream("lda", 12, hyper=HYPER, path=tmp_path / "s", batch_size=8) as stream,
    ):
        stream.append(corpus)
        stream.step(1)
    monkeypatch.undo()
    with inference.stream(
        "lda", 12, hyper=HYPER, path=tmp_path / "s", batch_size=8, num_inner=1
    ) as stream:
        assert stream.num_rows == 40 and stream.step(1) == 1


def test_rows_a_model_cannot_explain_are_not_written():
    """Whatever the model refuses never enters the database, before the first step or after."""
    stream = inference.stream(
        "bernoulli_mixture", 4, hyper={"num_components": 2}, batch_size=8, num_inner=1
    )
    with pytest.raises(InputError, match="0 or 1"):
        stream.append(np.full((3, 4), 3.0))
    assert stream.num_rows == 0
    with pytest.raises(InputError, match="proper"):
        flat = inference.stream("bayesian_nmf", 3, hyper={"num_topics": 2, "flat": True})
        flat.append(np.ones((4, 3), int))
        flat.step(1)


def test_svb_learns_only_what_it_uses(corpus):
    """The topics' prior enters svb once: learning it is refused (T 4.3); the documents' prior is
    learned.
    """
    with pytest.raises(InputError, match="eta"):
        inference.fit(
            "lda",
            pp_models.data.counts(corpus),
            "svb",
            {"num_topics": 3, "eta": "learn"},
            progress=False,
        )


def test_nothing_learned_yet():
    """Asking for a fit before the first step says what to do."""
    with pytest.raises(InputError, match="step"):
        inference.stream("lda", 12).fit()


def test_the_history_of_a_long_stream_is_thinned_by_the_number_of_steps_alone(
    corpus, tmp_path, monkeypatch
):
    """Steps at even distances, a power of two, and the last; the same where the stream was closed
    in between.
    """
    monkeypatch.setattr(streams, "MOST_HISTORY", 4)
    kept = []
    with inference.stream("lda", 12, hyper=HYPER, batch_size=8, num_inner=2) as whole:
        whole.append(corpus)
        for _ in range(20):
            whole.step()
            kept.append(whole.history["step"].tolist())
        bounds = whole.history["bound"]
    assert (
        kept[3] == [0, 1, 2, 3]
        and kept[4] == [0, 2, 4]
        and kept[5] == [0, 2, 4, 5]
        and kept[8] == [0, 4, 8]
        and kept[19] == [0, 8, 16, 19]
    )
    for until in (3, 7, 13):
        with inference.stream(
            "lda", 12, hyper=HYPER, path=tmp_path / "parts", batch_size=8, num_inner=2
        ) as part:
            if not part.num_rows:
                part.append(corpus)
            part.step(until - part.num_steps)
            assert part.history["step"].tolist() == kept[until - 1]
    with inference.stream(
        "lda", 12, hyper=HYPER, path=tmp_path / "parts", batch_size=8, num_inner=2
    ) as part:
        part.step(20 - part.num_steps)
        np.testing.assert_array_equal(part.history["bound"], bounds)


def test_a_signal_ends_a_stream_with_everything_safe(corpus, tmp_path, monkeypatch):
    with inference.stream(
        "lda", 12, hyper=HYPER, path=tmp_path / "rows", batch_size=8, num_inner=2
    ) as learner:
        learner.append(corpus)
        update = learner._update
        monkeypatch.setattr(
            learner,
            "_update",
            lambda rows: (
                os.kill(os.getpid(), signal.SIGTERM) if learner.num_steps == 3 else None,
                update(rows),
            )[1],
        )
        with pytest.raises(Stopped, match="stopped after step 3") as stopped:
            learner.step(10)
        assert stopped.value.signal == signal.SIGTERM and learner.num_steps == 4
        learner.database.close()  # as a process that ends does
        learner._open = False
    with inference.stream(
        "lda", 12, hyper=HYPER, path=tmp_path / "rows", batch_size=8, num_inner=2
    ) as learner:
        assert learner.num_steps == 4


def test_a_full_disk_ends_the_steps_of_a_stream(corpus, tmp_path, monkeypatch):
    """The last good checkpoint and all rows stay; with room again the stream goes on, and ends with
    the same bits.
    """
    write, tries = archives.write, []
    options = {"hyper": HYPER, "batch_size": 8, "num_inner": 2, "checkpoint_every": 1}

    def attempt(*arguments):
        tries.append(1)
        if len(tries) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)

    with inference.stream("lda", 12, **options) as whole:
        whole.append(corpus)
        whole.step(3)
        want = whole.fit().posterior.mean("beta")
    monkeypatch.setattr(archives, "write", attempt)
    with (
        pytest.raises(InputError, match=r"ends at step 1.*that of step 0 is kept"),
        inference.stream("lda", 12, path=tmp_path / "rows", **options) as learner,
    ):
        learner.append(corpus)
        learner.step(3)
    monkeypatch.undo()
    with inference.stream("lda", 12, path=tmp_path / "rows", **options) as learner:
        assert learner.num_steps == 1 and learner.num_rows == len(corpus)
        learner.step(2)
        np.testing.assert_array_equal(learner.fit().posterior.mean("beta"), want)


def test_hyper_parameters_that_are_not_finite_never_replace_a_checkpoint(corpus, tmp_path):
    with inference.stream(
        "lda", 12, hyper=HYPER, path=tmp_path / "rows", batch_size=8, num_inner=2
    ) as learner:
        learner.append(corpus)
        learner.step(2)
        learner.checkpoint()
        learner._state = learner._state._replace(
            hyper=jax.tree.map(lambda x: x * np.nan, learner._state.hyper)
        )
        with pytest.raises(Diverged, match="hyper-parameters is not finite"):
            learner.checkpoint()
        learner.database.close()
        learner._open = False
    with inference.stream(
        "lda", 12, hyper=HYPER, path=tmp_path / "rows", batch_size=8, num_inner=2
    ) as learner:
        assert learner.num_steps == 2


@pytest.mark.parametrize(
    "when", [{"checkpoint_every": -1}, {"checkpoint_every": 1.5}, {"checkpoint_seconds": -1.0}]
)
def test_times_between_checkpoints_are_checked(when):
    with pytest.raises(InputError, match="checkpoint_"):
        inference.stream("lda", 12, **when)
