"""The page of the papers' figures: no picture is missing, and what it says of them holds in their lines."""

import importlib
import re
from collections import defaultdict
from statistics import fmean

import pytest
from outcomes import RESULTS, read

from .conftest import FOLDER
from .test_quotes import DECIMAL, PAPERS, is_known, published_by

DOCS = FOLDER.parent / "docs"
TEXT = (DOCS / "figures.md").read_text()
PROSE = " ".join(re.sub(r"<!-- from .*?<!-- end -->", "", TEXT, flags=re.DOTALL).split())
FOLDERS = ("fedtsdp", "layercfl", "dc-pfl", "fedcps", "fesem", "hidden_groups")


def test_every_kept_figure_is_on_the_page_and_every_command_is_there():
    shown = re.findall(r"\]\(\.\./experiments/results/(\S+\.png)\)", TEXT)
    kept = {str(file.relative_to(RESULTS)) for folder in FOLDERS for file in (RESULTS / folder).glob("*.png")}
    assert set(shown) == kept
    assert len(shown) == len(kept) >= 25
    commands = re.findall(r"`python experiments/(\w+\.py) ([\w ]+?)(?: --seeds \d+)?`", TEXT)
    assert len(commands) >= 18
    for script, names in commands:
        code = (FOLDER / script).read_text()
        assert [name for name in names.split() if f"def {name}(scale" not in code] == []


def test_the_prose_quotes_numbers_of_the_papers_only():
    published = [number for script in PAPERS for number in published_by(script)]
    assert [number for number in DECIMAL.findall(PROSE) if not is_known(number, published)] == []


@pytest.fixture(scope="module")
def means():
    """Table of the page -> heading -> (setting, method) -> mean over seeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        tables = importlib.import_module("figure_tables")
    result = {}
    for name, shown in tables.FIGURES.items():
        result[name] = defaultdict(dict)
        for cell, values in tables.numbers(shown).items():
            for heading, metric in shown.columns.items():
                if metric in values:
                    result[name][heading][cell] = fmean(values[metric])
    return result


def test_a_cell_has_the_mean_and_the_ends(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    written = importlib.import_module("figure_tables").written
    assert written([0.25, 0.75], 1) == "0.5 (0.2 to 0.8)"
    assert (written([2.0, 2.0], 1), written([], 1)) == ("2.0", "")


def best(table):
    """(setting, method) with the largest number."""
    return max(table, key=table.__getitem__)


NOISE = "gamma=30%", "noise of the cluster"

KNOWN = "rotation", "dominant label", "writers (proxy)"
"""Settings of hidden groups."""

HOLDS = {
    "farther in gradients than in outputs": lambda m: (
        m["fedtsdp_fig3"]["across / within"]["two kinds", "gradients, L2"]
        > 2 * m["fedtsdp_fig3"]["across / within"]["two kinds", "outputs, Jensen-Shannon"]
        > 2
    ),
    "Ditto, which the paper has beside FedAvg, is level with FedTSDP here": lambda m: (
        (after := m["fedtsdp_t5"]["after 30"])
        and best(after)[1] == "Standalone"
        and all(abs(after["2 classes", name] - after["2 classes", "FedTSDP"]) < 0.002 for name in ("FedPer", "Ditto"))
        and after["2 classes", "FedTSDP"] - after["2 classes", "FedAvg"] > 0.1
        and abs(after["2 classes", "FedProx"] - after["2 classes", "FedAvg"]) < 0.002
    ),
    "With Dirichlet 0.2 FedTSDP ends second to Ditto": lambda m: (
        [method for _, method in sorted(m["fedtsdp_t4"]["after 30"], key=m["fedtsdp_t4"]["after 30"].get)][-2:]
        == ["FedTSDP", "Ditto"]
        and m["fedtsdp_t4"]["after 30"]["Dirichlet 0.2", "CFL"]
        == m["fedtsdp_t4"]["after 30"]["Dirichlet 0.2", "FedAvg"]
    ),
    "both stages cluster as outputs alone do": lambda m: (
        m["fedtsdp_fig9"]["accuracy after 30"]["Dirichlet 0.5", "both"]
        == m["fedtsdp_fig9"]["accuracy after 30"]["Dirichlet 0.5", "outputs"]
        <= m["fedtsdp_fig9"]["accuracy after 30"]["Dirichlet 0.5", "weights"]
    ),
    "the faster the more clients differ": lambda m: (
        1.95
        < m["fedtsdp_fig11"]["after 30"]["IID", "FedTSDP"]
        > m["fedtsdp_fig11"]["after 30"]["Dirichlet 0.5", "FedTSDP"]
        > m["fedtsdp_fig11"]["after 30"]["Dirichlet 0.2", "FedTSDP"]
        > m["fedtsdp_fig11"]["after 30"]["2 classes", "FedTSDP"]
    ),
    "All five measures show two blocks": lambda m: all(
        len(m[table]["gap"]) == 10 and min(m[table]["gap"].values()) > 0
        for table in ("layercfl_heat_rotation", "layercfl_heat_label")
    ),
    "Under label skew the dense layers lead": lambda m: (
        (gap := m["layercfl_layers"]["in round 10"])
        and min(gap["dominant label", name] for name in ("fc1", "fc2"))
        > max(gap["dominant label", name] for name in ("conv1", "conv2"))
    ),
    "under rotation, where the rule is a convolution, the dense layer does too": lambda m: all(
        m[table]["gap"][setting, "fc1, cos_update_part"] > 1.2 * m[table]["gap"][setting, "conv2, cos_update_part"] > 0
        for table, setting in (
            ("layercfl_heat_rotation", "rotation"),
            ("layercfl_heat_label", "dominant label"),
        )
    ),
    "the first convolution parts them no more after ten rounds": lambda m: (
        m["layercfl_layers"]["in round 10"]["rotation", "conv1"]
        < 0
        < m["layercfl_layers"]["in round 10"]["rotation", "conv2"]
        < m["layercfl_layers"]["in round 10"]["rotation", "fc1"]
        and best(m["layercfl_layers"]["gap in round 1"]) == ("dominant label", "fc2")
    ),
    "measure needs more rounds than CFL's, not fewer": lambda m: (
        m["layercfl_amount"]["first round, 30 images"]["rotation", "cos_update_part"]
        > m["layercfl_amount"]["first round, 30 images"]["rotation", "cos_update_full"]
        and max(m["layercfl_amount"]["100"].values()) < 2
        and {m["layercfl_amount"]["first round, 30 images"]["dominant label", "cos_update_part"]} == {1}
    ),
    "four groups gain more where clients differ more": lambda m: (
        (
            gain := lambda band: (
                m["dcpfl_motivation"]["accuracy"][band, "4 groups"]
                - m["dcpfl_motivation"]["accuracy"][band, "one group"]
            )
        )("High")
        > gain("Low")
        > 0
    ),
    "reaches half of the published correlation, clients of four kinds more": lambda m: (
        0.4
        < m["dcpfl_correlation"]["correlation"]["30 clients", "model discrepancy vs KLD"] / 0.895
        < 0.6
        < m["dcpfl_correlation"]["correlation"]["30 clients, four kinds", "model discrepancy vs KLD"] / 0.895
    ),
    "the two matrices hardly agree": lambda m: all(
        abs(v) < 0.2 for v in m["dcpfl_discrepancy"]["correlation"].values()
    ),
    "On Mid every trial of every seed was": lambda m: (
        m["dcpfl_period"]["adopted"]["Mid", "DC-PFL"] == m["dcpfl_period"]["trials"]["Mid", "DC-PFL"]
        and m["dcpfl_period"]["adopted"]["High", "DC-PFL"] < m["dcpfl_period"]["trials"]["High", "DC-PFL"]
        and min(m["dcpfl_period"]["first in round"].values()) >= 12
    ),
    "DC-PFL is ahead of groups cut at 0.8 on both bands, and behind those cut at 0.4": lambda m: all(
        m["dcpfl_thresholds"]["accuracy"][band, "NoDC 0.8"]
        < m["dcpfl_thresholds"]["accuracy"][band, "DC-PFL"]
        < m["dcpfl_thresholds"]["accuracy"][band, "NoDC 0.4"]
        for band in ("Mid", "High")
    ),
    "all of the model is sent, and with seven tenths little waits": lambda m: (
        m["dcpfl_layers"]["share of a model sent"]["Mid", "low 0.1"]
        == 1
        > m["dcpfl_layers"]["share of a model sent"]["Mid", "low 0.7"]
        > 0.9
    ),
    "Standalone, ClusterFL and Per-FedAvg are ahead of both here": lambda m: all(
        min(m[table]["after 40"][band, name] for name in ("Standalone", "ClusterFL", "Per-FedAvg"))
        > m[table]["after 40"][band, "DC-PFL"]
        > m[table]["after 40"][band, "FedAvg"]
        and m[table]["after 5"][band, "DC-PFL"] == m[table]["after 5"][band, "FedAvg"]
        for table, band in (("dcpfl_mid", "Mid"), ("dcpfl_high", "High"))
    ),
    "it rises for both in the mean": lambda m: (
        all(m["fedcps_lambda"]["regular"]["gamma=30%", f"spread of the {what}"] > 0 for what in ("cluster", "client"))
        and min(m["fedcps_lambda"]["few-shot"].values()) > 0 > m["fedcps_lambda"]["regular"][NOISE]
    ),
    "are level and still rising after 16 rounds": lambda m: (
        abs(
            m["fedcps_personal"]["accuracy after 16"]["non-iid_1", "shared_base"]
            - m["fedcps_personal"]["accuracy after 16"]["non-iid_1", "personal_layers"]
        )
        < 0.01
    ),
    "FedCPS loses less than a point, and so does each method whose clients keep something": lambda m: (
        all(
            m["fedcps_hostile"]["accuracy of the honest, %"]["0% wrong", method]
            - m["fedcps_hostile"]["accuracy of the honest, %"]["40% wrong", method]
            < 1
            for method in ("FedCPS", "FedPer", "Ditto")
        )
        and 0.6
        < m["fedcps_hostile"]["accuracy of the honest, %"]["40% wrong", "FedAVG"]
        / m["fedcps_hostile"]["accuracy of the honest, %"]["0% wrong", "FedAVG"]
        < 0.7
        and best(m["fedcps_hostile"]["accuracy of the honest, %"])[1] == "FedPer"
    ),
    "the classes are parted about equally well by both": lambda m: (
        abs(
            m["fedcps_outputs"]["silhouette"]["non-iid_1", "FedCPS"]
            - m["fedcps_outputs"]["silhouette"]["non-iid_1", "FedAVG"]
        )
        < 0.05
    ),
    "four largest hold 78 % of a client's images": lambda m: (
        round(m["fedcps_labels"]["% of its images in its four largest"]["non-iid_2", "partition"]) == 78
        and round(m["fedcps_labels"]["classes of a client"]["non-iid_2", "partition"]) == 9
    ),
    "The same order": lambda m: (
        m["fesem_fig3"]["after 15"]["writers (proxy)", "FeSEM(4)"]
        > m["fesem_fig3"]["after 15"]["writers (proxy)", "FeSEM(3)"]
        > m["fesem_fig3"]["after 15"]["writers (proxy)", "FeSEM(2)"]
    ),
    "with one to four hands as many centers are best": lambda m: all(
        best({c: v for c, v in m["fesem_hands"]["accuracy"].items() if c[0] == f"{n} hands"})[1] == f"FeSEM({n})"
        and m["fesem_hands"]["ARI"][f"{n} hands", f"FeSEM({n})"] == 1
        for n in (1, 2, 3, 4)
    ),
    "The four clusters are clearly apart and are the hidden hands": lambda m: (
        m["fesem_components"]["ARI"]["clients' models", "FeSEM(4)"] == 1
    ),
    "LayerCFL and FeSEM find all groups on every seed": lambda m: all(
        m["hidden_groups"]["ARI"][setting, method] == 1
        for setting, method in [(setting, method) for setting in KNOWN for method in ("LayerCFL", "FeSEM")]
        + [(setting, method) for setting in KNOWN[:2] for method in ("FedTSDP", "FedCPS")]
    ),
    "DC-PFL agrees least in every setting, and more under label skew than elsewhere": lambda m: (
        all(
            m["hidden_groups"]["ARI"][setting, "DC-PFL"]
            == min(v for (name, _), v in m["hidden_groups"]["ARI"].items() if name == setting)
            for setting in KNOWN
        )
        and best({c: v for c, v in m["hidden_groups"]["ARI"].items() if c[1] == "DC-PFL"})[0] == "dominant label"
        and max(m["hidden_groups"]["ARI"]["writers (proxy)", name] for name in ("FedTSDP", "FedCPS")) < 1
    ),
    "LayerCFL and CFL never split and FedTSDP does on one seed of five": lambda m: (
        [m["hidden_groups_iid"]["clusters"]["IID", name] for name in ("LayerCFL", "CFL", "FedTSDP")] == [1, 1, 1.2]
        and all(
            m["hidden_groups_iid"]["clusters"]["IID", f"DC-PFL, train, {end}"]
            > 8
            > 2
            > m["hidden_groups_iid"]["clusters"]["IID", f"DC-PFL, val, {end}"]
            for end in ("minimum", "formula")
        )
    ),
}
"""A part of a sentence of the page -> whether it holds in the kept lines."""


@pytest.mark.parametrize("sentence", HOLDS)
def test_what_the_page_says_holds_in_the_lines(sentence, means):
    assert sentence in PROSE
    assert HOLDS[sentence](means)


def test_lambda_rises_for_few_shot_clients_and_falls_for_the_others_on_every_seed():
    lines = [line for line in read(RESULTS / "fedcps" / "lambda-FMNIST-smoke.csv") if line["method"] == NOISE[1]]
    changes = {(line["metric"], line["seed"]): float(line["value"]) for line in lines}
    seeds = {seed for _, seed in changes}
    assert len(seeds) == 3
    for seed in seeds:
        assert changes["lambda_change_few-shot", seed] > 0 > changes["lambda_change_regular", seed]
