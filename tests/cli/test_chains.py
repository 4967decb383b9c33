"""``--uplink clip:1 top-k:0.1`` is a short spelling of bricks and of their numbers."""

import pytest
import tomli_w

from fljax.jobs.config import as_toml
from fljax.jobs.job import read_job
from fljax.jobs.sweep import read_sweep


def test_bricks_and_their_numbers_go_into_every_method():
    words = "--algorithm fedavg ditto --uplink clip:0.5 error-feedback top-k:0.2 quantize:4 --downlink top-k:0.3"
    job = read_job(words.split())
    bricks = "clip_update+error_feedback+top_k+quantize+down_top_k"
    assert tuple(job.run.algorithm) == (f"fedavg+{bricks}", f"ditto+{bricks}")
    for name in job.methods:
        numbers = {number: job.settings[name][number] for number in ("clip", "top_share", "bits", "down_top_share")}
        assert numbers == {"clip": 0.5, "top_share": 0.2, "bits": 4.0, "down_top_share": 0.3}
    of_one_method = read_job(["--algorithm", "fedavg", "--uplink", "top-k", "--downlink", "quantize"])
    assert tuple(of_one_method.run.algorithm) == ("fedavg+top_k+down_quantize",)
    assert of_one_method.settings["fedavg+top_k+down_quantize"]["top_share"] == 0.1
    assert tuple(read_job(["--algorithm", "fedavg"]).run.algorithm) == ("fedavg",)


def test_images_are_changed_in_every_method():
    words = "--algorithm fedavg ditto+prox --augment flip crop:2 --uplink top-k --crop-padding 3"
    job = read_job(words.split())
    bricks = "flip+crop+top_k"
    assert tuple(job.run.algorithm) == (f"fedavg+{bricks}", f"ditto+prox+{bricks}")
    for name in job.methods:
        assert (job.settings[name]["crop_padding"], job.settings[name]["flip_rate"]) == (3, 0.5)


def test_a_stored_job_is_read_again(tmp_path):
    job = read_job(["--algorithm", "fedavg", "--uplink", "top-k:0.2"])
    path = tmp_path / "job.toml"
    path.write_text(tomli_w.dumps(as_toml(job)))
    read_back = read_job(["--config", str(path)])
    assert read_back.run.algorithm == job.run.algorithm
    assert read_back.settings["fedavg+top_k"] == job.settings["fedavg+top_k"]
    with_other_number = read_job(["--config", str(path), "--uplink", "top-k:0.3"])
    assert with_other_number.run.algorithm == job.run.algorithm
    assert with_other_number.settings["fedavg+top_k"]["top_share"] == 0.3


def test_a_stored_job_with_a_brick_takes_another_number_of_it_and_another_brick(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(tomli_w.dumps(as_toml(read_job(["--algorithm", "fedavg", "--uplink", "clip:1"]))))
    arguments = ["--config", str(path), "--uplink"]
    assert read_job([*arguments, "clip:1"]).settings["fedavg+clip_update"]["clip"] == 1.0
    assert read_job([*arguments, "clip:2"]).settings["fedavg+clip_update"]["clip"] == 2.0
    assert read_job([*arguments, "clip:2", "--clip", "3"]).settings["fedavg+clip_update"]["clip"] == 3.0
    assert tuple(read_job([*arguments, "clip", "top-k:0.2"]).run.algorithm) == ("fedavg+clip_update+top_k",)


def test_what_is_said_of_a_method_is_said_of_it_with_its_bricks(tmp_path):
    words = "--algorithm fedavg ifca --epochs 2 --lr 0.02 --ifca.n-clusters 3"
    path = tmp_path / "job.toml"
    path.write_text(tomli_w.dumps(as_toml(read_job(words.split()))))
    for arguments in (words, f"--config {path}"):
        job = read_job(f"{arguments} --uplink clip:1".split())
        assert tuple(job.methods) == ("fedavg+clip_update", "ifca+clip_update")
        settings = job.settings["ifca+clip_update"]
        assert (settings["n_clusters"], settings["epochs"], settings["lr"], settings["clip"]) == (3, 2, 0.02, 1.0)
    words = "--algorithm ifca --uplink clip:1 --lr 0.1 0.2 --outer.ifca.n-clusters 2 3"
    outer = read_sweep(words.split()).outer
    assert outer == {"ifca+clip_update.n_clusters": [2, 3]}


def test_a_number_is_swept():
    sweep = read_sweep(["--algorithm", "fedavg", "--uplink", "clip", "top-k:0.1", "--clip", "0.1", "1", "10"])
    assert sweep.name == "fedavg+clip_update+top_k"
    assert sweep.axes["clip"].words == ["0.1", "1", "10"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--augment krum", "no brick for --augment: 'krum'"),
        (
            "--algorithm fedavg+top_k --augment flip --uplink clip top-k",
            r"^--uplink clip_update top_k: fedavg\+top_k would apply top_k, then clip_update; write all of them in one",
        ),
        ("--augment flip:0.5:1", "2 numbers are given, but the numbers of flip are: flip_rate"),
        ("--algorithm fedsgd --augment flip", "fedsgd.flip: .* has no slot 'augment'"),
        ("--augment flip:2", "flip_rate=2 is out of its range"),
        ("--uplink krum", "no brick for --uplink: 'krum'"),
        ("--uplink topk:0.1", "no brick for --uplink: 'topk'; the nearest is 'top_k'"),
        ("--uplink top-k:0.1:3", "--uplink top-k:0.1:3: 2 numbers are given, but the numbers of top_k are: top_share"),
        ("--uplink sign:1", " are: none"),
        ("--uplink top-k:2", "top_share=2 is out of its range"),
        ("--downlink clip:1", "no brick for --downlink: 'clip'"),
        ("--algorithm ifca --downlink sign", "no slot 'downlink'"),
    ],
)
def test_chains_that_make_no_sense_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        read_job(["--algorithm", "fedavg", *words.split()])
