import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from fljax.data import cache


def chunks(n=3):
    for i in range(n):
        yield {"x": np.full((2, 3, 3, 1), i, np.uint8), "y": np.array([i, i + 10], np.int32)}


def fail():
    raise AssertionError("decoded again")


def test_columns_stream_in_and_are_reused():
    columns = cache.cached("set/1.0/train", chunks)
    np.testing.assert_array_equal(columns["y"], [0, 10, 1, 11, 2, 12])
    np.testing.assert_array_equal(columns["x"][:, 0, 0, 0], [0, 0, 1, 1, 2, 2])
    assert isinstance(columns["x"], np.memmap)
    reused = cache.cached("set/1.0/train", fail)
    np.testing.assert_array_equal(reused["y"], columns["y"])


def test_a_failure_leaves_nothing_behind():
    def broken_chunks():
        yield from chunks()
        raise ValueError("bad record")

    with pytest.raises(ValueError, match="bad record"):
        cache.cached("set/train", broken_chunks)
    assert list((cache.folder() / "set").iterdir()) == []


def test_nothing_to_store_is_an_error():
    with pytest.raises(ValueError, match="no examples"):
        cache.cached("set/train", lambda: [])


def test_a_damaged_entry_is_decoded_again():
    cache.cached("set/train", chunks)
    file = cache.entry_of("set/train") / "x.npy"
    file.write_bytes(file.read_bytes()[:-5])
    np.testing.assert_array_equal(cache.cached("set/train", chunks)["y"], [0, 10, 1, 11, 2, 12])


def test_other_files_have_another_fingerprint(tmp_path):
    file = tmp_path / "a"
    file.write_text("1")
    first = cache.fingerprint(tmp_path, [file])
    assert cache.fingerprint(tmp_path, [file]) == first
    file.write_text("12")
    assert cache.fingerprint(tmp_path, [file]) != first


def test_killed_while_caching_then_loaded_again(tmp_path):
    """A process writes slowly and is killed between two chunks; the next one starts afresh and sweeps up."""
    program = textwrap.dedent("""
        import time
        import numpy as np
        from fljax.data import cache
        def slow():
            for i in range(1000):
                yield {"x": np.full((4000, 8, 8, 1), i, np.uint8), "y": np.zeros(4000, np.int32)}
                print(i, flush=True)
                time.sleep(0.02)
        cache.cached("set/train", slow)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ) as process:
        for _ in range(3):
            process.stdout.readline()
        time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    remains = list((cache.folder() / "set").iterdir())
    assert [path.name.startswith(".partial-") for path in remains] == [True]
    np.testing.assert_array_equal(cache.cached("set/train", chunks)["y"], [0, 10, 1, 11, 2, 12])
    assert [path.name for path in (cache.folder() / "set").iterdir()] == [cache.entry_of("set/train").name]


def flipped(file, byte, bit):
    content = bytearray(file.read_bytes())
    content[byte] ^= 1 << bit
    file.write_bytes(content)


def test_every_flipped_bit_of_an_entry_is_noticed():
    stored = cache.cached("set/train", chunks)
    expected = {name: column.copy() for name, column in stored.items()}
    entry = cache.entry_of("set/train")
    content = {file: file.read_bytes() for file in entry.iterdir()}
    rng = np.random.default_rng(0)
    for file, original in content.items():
        for position in rng.choice(8 * len(original), 60, replace=False).tolist():
            flipped(file, position // 8, position % 8)
            decoded = []
            columns = cache.cached("set/train", lambda calls=decoded: calls.append(1) or chunks())
            assert decoded or file.suffix == ".json"
            for name, column in expected.items():
                np.testing.assert_array_equal(columns[name], column)
            for path, bytes_ in content.items():
                path.write_bytes(bytes_)


@pytest.mark.parametrize(
    "change", [lambda entry: (entry / "y.npy").unlink(), lambda entry: (entry / "checksums.json").unlink()]
)
def test_an_entry_that_lacks_a_column_is_decoded_again(change):
    cache.cached("set/train", chunks)
    change(cache.entry_of("set/train"))
    assert set(cache.cached("set/train", chunks)) == {"x", "y"}
