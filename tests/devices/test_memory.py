"""What memory there is, by every limit that Linux knows, and that what needs more is refused before it is taken."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.devices import memory
from fljax.devices.memory import Memory, check_compiled, check_fits, host_memory, least, size
from fljax.run.train import train

GB, HYPER = 10**9, fljax.fedavg.Hyper()


@pytest.fixture
def system(tmp_path, monkeypatch):
    """``system({"proc/meminfo": text})`` makes the files that the kernel would show."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")

    def make(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return make


def test_without_limits_the_machine_is_the_limit(system):
    system({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   1000000 kB\n", "proc/self/cgroup": "0::/\n"})
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host_memory() == Memory(machine, 1_024_000_000)


def test_cgroups_of_version_2_from_the_own_to_the_top(system):
    system(
        {
            "proc/self/cgroup": "0::/user/job\n",
            "cgroup/user/job/memory.max": "max\n",
            "cgroup/user/job/memory.current": "1\n",
            "cgroup/user/memory.max": f"{5 * GB}\n",
            "cgroup/user/memory.current": f"{4 * GB}\n",
            "cgroup/user/memory.stat": f"anon {GB}\ninactive_file {3 * GB}\n",
        }
    )
    assert host_memory() == Memory(5 * GB, 4 * GB)


@pytest.mark.parametrize("path", ["/docker/x", "/../outside"])
def test_cgroups_of_version_1_in_a_container_whose_path_is_the_hosts(system, path):
    system(
        {
            "proc/self/cgroup": f"3:cpuset:/\n4:cpu,memory:{path}\n0::/\n",
            "cgroup/memory/memory.limit_in_bytes": f"{3 * GB}\n",
            "cgroup/memory/memory.usage_in_bytes": f"{4 * GB}\n",
            "cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 0\n",
        }
    )
    assert host_memory() == Memory(3 * GB, 0)


def test_version_1_without_a_limit(system):
    system({"proc/self/cgroup": "4:memory:/\n", "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert host_memory().limit == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


LIMITED = """
import resource, sys
from fljax.devices.memory import host_memory
for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
    usual = resource.getrlimit(kind)
    resource.setrlimit(kind, (int(sys.argv[1]), usual[1]))
    print(*host_memory())
    resource.setrlimit(kind, usual)
"""


def test_limits_of_the_process():
    """Of its address space, and of its data alone."""
    process = subprocess.run([sys.executable, "-c", LIMITED, str(8 * GB)], capture_output=True, text=True, check=True)
    lines = process.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        limit, free_bytes = map(int, line.split())
        assert limit <= 8 * GB
        assert free_bytes < limit


def test_the_refusal_has_the_need_and_what_is_there(monkeypatch):
    monkeypatch.setattr(memory, "host_memory", lambda: Memory(5 * GB, 2 * GB))
    check_fits("a round needs", 2 * GB)
    with pytest.raises(MemoryError, match=r"^a round needs 3.0 GB, but 2.0 GB of 5.0 GB are free$"):
        check_fits("a round needs", 3 * GB)


def test_what_a_program_takes_at_least_is_no_more_than_what_the_compiler_says():
    n = 1000

    @jax.jit
    def program(x):
        rows = jax.lax.map(lambda i: jnp.sin(x + i), jnp.arange(float(n)))  # kept: n rows
        return jnp.broadcast_to(rows.sum(), (n, n, n)).sum()  # fused away: n cubed

    x = jnp.ones(n)
    lower_bound, memory = least(program.trace(x)), program.lower(x).compile().memory_analysis()
    assert lower_bound == 4 * n * n
    assert lower_bound <= memory.temp_size_in_bytes < 2 * lower_bound


def test_a_program_that_does_not_fit_is_not_begun(monkeypatch):
    program = jax.jit(lambda x: jnp.outer(x, x)).lower(np.ones(1000, np.float32)).compile()
    for free_bytes, fits in ((4 * 10**6, True), (4 * 10**6 - 1, False)):
        monkeypatch.setattr(memory, "host_memory", lambda free_bytes=free_bytes: Memory(GB, free_bytes))
        if fits:
            check_compiled("it needs", program)
        else:
            with pytest.raises(MemoryError, match=r"^it needs 4.0 MB, but 4.0 MB of 1.0 GB are free$"):
                check_compiled("it needs", program)


@pytest.mark.parametrize(
    ("free_bytes", "message"), [(100, "the state between rounds needs"), (5000, "a round needs at le")]
)
def test_a_run_that_does_not_fit_is_not_begun(averaging, federation, tmp_path, monkeypatch, free_bytes, message):
    monkeypatch.setattr(memory, "host_memory", lambda: Memory(GB, free_bytes))
    with pytest.raises(MemoryError, match=message):
        train(
            averaging,
            fljax.fedavg.Hyper(),
            federation,
            jax.random.key(0),
            3,
            folder=tmp_path,
            devices=jax.devices()[:1],
        )
    assert not (tmp_path / "metrics.jsonl").exists()
    assert size(free_bytes)
