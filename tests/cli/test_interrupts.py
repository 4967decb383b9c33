"""Ctrl-C ends a command wherever it comes."""

import gc
import signal
import time

import pytest

from fljax.cli.interrupts import come_again


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_the_garbage_collector_ignored_comes_again(number, capfd):
    class Ended(KeyboardInterrupt):
        pass

    def raise_ended(*_):
        raise KeyboardInterrupt if number == signal.SIGINT else Ended

    def callback(*_):
        gc.callbacks.remove(callback)
        signal.raise_signal(number)

    def command():
        with come_again():
            gc.callbacks.append(callback)
            gc.collect()
            time.sleep(10)
            pytest.fail("the signal did not end the wait")

    old_handler = signal.signal(number, raise_ended)
    try:
        with pytest.raises(KeyboardInterrupt) as error:
            command()
        assert (error.type is Ended) == (number == signal.SIGTERM)
    finally:
        signal.signal(number, old_handler)
    assert "ignored" not in capfd.readouterr().err


def test_other_exceptions_that_are_ignored_are_said_as_ever(monkeypatch):
    types = []
    monkeypatch.setattr("sys.unraisablehook", lambda event: types.append(event.exc_type))

    class Bad:
        def __del__(self):
            raise ValueError

    with come_again():
        Bad()
    Bad()
    assert types == [ValueError, ValueError]
