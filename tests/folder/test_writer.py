"""One writer per folder: the second is told who the first is, and writes nothing."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import chex
import jax
import pytest

import fljax
from fljax.folder import writer
from fljax.folder.writer import new_folder, only_writer
from fljax.run.sweep import search
from fljax.run.train import train

pytestmark = pytest.mark.usefixtures("one_device")

HOLD = """
import sys, time
from pathlib import Path
from fljax.folder.writer import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of ``tmp_path``."""
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_the_second_writer_is_told_who_holds_it_until_its_process_dies(holder, key, averaging, federation, tmp_path):
    before = files(tmp_path)
    message = rf"is being written by process {holder.pid} on \S+ since \d{{4}}.*choose another folder"
    with pytest.raises(ValueError, match=message) as error:
        train(averaging, fljax.fedavg.Hyper(), federation, key, 1, folder=tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=message):
        search(averaging, fljax.fedavg.Hyper(lr=[0.1]), federation, key, 1, 1, folder=tmp_path)
    assert files(tmp_path) == before
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with only_writer(tmp_path) as writable:
        assert writable


def test_a_holder_that_has_not_written_its_name_yet_is_waited_for(tmp_path):
    with only_writer(tmp_path):
        (tmp_path / writer.LOCK).write_bytes(b"")
        name = f"{os.getpid()} here 2026-11-23 12:00:00\n"
        timer = threading.Timer(0.1, (tmp_path / writer.LOCK).write_text, [name])
        timer.start()
        with open(tmp_path / writer.LOCK) as lock:
            assert writer._holder(lock.fileno()) == f"process {os.getpid()} on here since 2026-11-23 12:00:00"
        timer.join()


def test_two_threads_exclude_each_other_and_one_does_not_exclude_itself(tmp_path):
    messages = []

    def write_too():
        try:
            with only_writer(tmp_path):
                pass
        except ValueError as error:
            messages.append(str(error))

    with only_writer(tmp_path), only_writer(tmp_path / "." / "") as is_writable:
        assert is_writable
        thread = threading.Thread(target=write_too)
        thread.start()
        thread.join()
    assert len(messages) == 1
    assert f"process {os.getpid()} on" in messages[0]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number):
    def flock(handle, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ValueError, match="on a file system that cannot lock files"), only_writer(tmp_path):
        pass


@pytest.mark.parametrize(
    ("kind", "options", "refused"),
    [
        ("nfs4", "rw,vers=4.2,local_lock=none", False),
        ("nfs", "rw,nolock,local_lock=all", True),
        ("nfs", "rw,local_lock=flock", True),
        ("lustre", "rw,flock", False),
        ("lustre", "rw,localflock", True),
        ("ext4", "rw", False),
    ],
)
def test_network_disks_whose_locks_stay_local_are_refused(tmp_path, monkeypatch, kind, options, refused):
    table = tmp_path / "mounts"
    elsewhere = f"server:/y {tmp_path}/there nfs rw,nolock 0 0\nserver:/z /mnt nfs rw,nolock 0 0\n"
    table.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} {kind} {options} 0 0\n{elsewhere}")
    monkeypatch.setattr(writer, "_MOUNTS", table)
    if refused:
        with pytest.raises(ValueError, match="on a network disk mounted with"), only_writer(tmp_path):
            pass
    else:
        with only_writer(tmp_path) as writable:
            assert writable


def test_every_run_gets_a_folder_of_its_own(tmp_path):
    folders = []
    threads = [
        threading.Thread(target=lambda: folders.append(new_folder(tmp_path / "results", "now"))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in folders) == sorted(["now", *(f"now-{i}" for i in range(2, 21))])
    assert all(path.is_dir() for path in folders)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file cannot be created \(.*\); choose a folder that is writable"):
        new_folder(tmp_path / "file", "now")


@pytest.fixture
def unprivileged_folder():
    """() -> from here on this process may write nothing that is root's, and a folder that it can read."""
    # Nor JAX's cache, in which another test may have had it put even the shortest compilation; it would warn.
    option = "jax_persistent_cache_min_compile_time_secs"
    setting = getattr(jax.config, option)
    jax.config.update(option, float("inf"))
    "".encode("cp437")  # of names in archives; root's Python may not be read from here on
    folder = Path(tempfile.mkdtemp())
    yield folder
    if os.getuid() == 0:
        os.seteuid(0)
    jax.config.update(option, setting)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def read_only(folder):
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    if os.getuid() == 0:
        os.seteuid(65534)


def test_a_finished_run_on_a_read_only_disk_can_be_reopened(unprivileged_folder, key, averaging, federation):
    unprivileged_folder.chmod(0o755)
    run = train(averaging, fljax.fedavg.Hyper(), federation, key, 2, folder=unprivileged_folder / "run")
    read_only(unprivileged_folder)
    before = files(unprivileged_folder)
    reopened = train(averaging, fljax.fedavg.Hyper(), federation, key, 2, folder=unprivileged_folder / "run")
    chex.assert_trees_all_equal((reopened.state, reopened.metrics), (run.state, run.metrics))
    with pytest.raises(ValueError, match="run is not writable; copy it to a place that is"):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 3, folder=unprivileged_folder / "run")
    with pytest.raises(ValueError, match="other cannot be created"):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 3, folder=unprivileged_folder / "other")
    assert files(unprivileged_folder) == before


@pytest.mark.slow
def test_a_finished_search_on_a_read_only_disk_can_be_reopened(unprivileged_folder, averaging, federation):
    unprivileged_folder.chmod(0o755)
    arguments = (averaging, fljax.fedavg.Hyper(lr=[0.1, 0.2]), federation, jax.random.key(0), 1, 1)
    result = search(*arguments, folder=unprivileged_folder / "search")
    read_only(unprivileged_folder)
    chex.assert_trees_all_equal(search(*arguments, folder=unprivileged_folder / "search").metrics, result.metrics)
