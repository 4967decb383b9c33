"""Claims: pairs over seeds, Student's intervals, verdicts; causes by pattern."""

import numpy as np
import pytest
from causes import all_causes, cause
from claims import claim_result, claim_results, summary, write
from claims_list import Claim, claims
from outcomes import Outcome, described, keep, read
from scipy.stats import ttest_1samp

CLAIM = Claim("FeSEM", "in the text", "T2", "MNIST-writers", "writers (proxy)", "FeSEM(4)", "FedAvg", "accuracy_micro")
SMALL = described(False, 15, 15)


@pytest.fixture
def judge(tmp_path):
    """(scores, rival_scores, ...) of each seed -> the result of `CLAIM`."""

    def result_of(scores, rival_scores, claim=CLAIM, settings=SMALL):
        lines = [
            Outcome(method, claim.setting, seed, claim.metric, value, None, 15, 1.0, settings)
            for method, values in ((claim.ours, scores), (claim.rival, rival_scores))
            for seed, value in enumerate(values)
            if value is not None
        ]
        keep(tmp_path, claim.paper, claim.table, claim.dataset, lines)
        return claim_result(claim, tmp_path)

    return result_of


def test_the_interval_is_that_of_a_paired_t_test(judge):
    scores, rival_scores = [0.9, 0.85, 0.93, 0.88], [0.8, 0.79, 0.85, 0.86]
    expected = ttest_1samp(np.subtract(scores, rival_scores), 0).confidence_interval(0.95)
    row = judge(scores, rival_scores)
    np.testing.assert_allclose(row.interval, expected, rtol=1e-6)
    assert row.verdict == ("holds" if expected.low > 0 else "undecided")


@pytest.mark.parametrize(
    ("scores", "rival_scores", "verdict"),
    [
        ([0.9, 0.91, 0.92], [0.8, 0.81, 0.82], "holds"),
        ([0.8, 0.81, 0.82], [0.9, 0.91, 0.92], "fails"),
        ([0.8, 0.91, 0.82], [0.9, 0.81, 0.83], "undecided"),
        ([0.9], [0.1], "undecided"),
        ([0.9, None, 0.92], [0.8, 0.7, None], "undecided"),  # one pair is left
        ([], [0.9, 0.8], "not run"),
    ],
)
def test_verdicts(judge, scores, rival_scores, verdict):
    assert judge(scores, rival_scores).verdict == verdict


def test_less_is_better_for_times(judge):
    claim = CLAIM._replace(metric="total_time_s", less=True)
    assert judge([10.0, 11.0, 12.0], [20.0, 21.5, 22.0], claim).verdict == "holds"


def test_no_worse_than_allows_a_little(judge):
    claim = CLAIM._replace(at_least=-0.01)
    behind = judge([0.899, 0.898, 0.8985], [0.9, 0.9, 0.9], claim)
    assert (behind.verdict, behind.mean < 0) == ("holds", True)


def test_one_test_example_on_every_seed_is_no_lead(judge):
    """Three leads of one of 285 or 284: their deviation is of the test's size, not of the methods."""
    rival_scores = [217 / 285, 220 / 285, 219 / 284]
    scores = [218 / 285, 221 / 285, 220 / 284]
    row = judge(scores, rival_scores)
    assert (row.interval[0] > 0, row.verdict) == (True, "undecided")
    assert judge(rival_scores, scores).verdict == "undecided"
    assert judge(rival_scores, scores, CLAIM._replace(at_least=-0.01)).verdict == "holds"  # no worse than a hundredth
    assert judge([218 / 285, 222 / 285, 220 / 284], rival_scores).verdict == "undecided"  # by the interval, 1, 2 and 1
    assert judge([237 / 285, 241 / 285, 239 / 284], rival_scores).verdict == "holds"  # 20, 21 and 20


def test_small_runs_of_a_part_of_the_rounds_are_not_counted(judge):
    scores, rival_scores = [0.9, 0.91, 0.92], [0.8, 0.81, 0.82]
    assert judge(scores, rival_scores, settings=described(False, 2, 15)).verdict == "not run"
    assert judge(scores, rival_scores).verdict == "holds"


def test_whole_runs_of_the_papers_size_go_before_small_ones(judge):
    judge([0.1, 0.1, 0.1], [0.9, 0.91, 0.92])
    assert judge([0.9], [0.8], settings=described(True, 5, 15)).scale == "smoke"
    row = judge([0.9, 0.91, 0.92], [0.8, 0.81, 0.82], settings=described(True, 15, 15))
    assert (row.scale, row.verdict) == ("paper", "holds")


def test_every_published_lead_of_the_tables_is_a_claim():
    all_claims = claims()
    assert len(set(all_claims)) == len(all_claims) > 200
    assert {claim.paper for claim in all_claims} == {"FedCPS", "DC-PFL", "FedTSDP", "LayerCFL", "FeSEM"}
    (lead,) = [
        c for c in all_claims if (c.table, c.dataset, c.setting, c.rival) == ("T2", "FMNIST", "non-iid_1", "FedCR")
    ]
    assert (lead.ours, lead.by) == ("FedCPS", pytest.approx(0.96))  # 93.51 against 92.55
    (faster,) = [
        c for c in all_claims if (c.table, c.setting, c.rival, c.metric) == ("T2", "Mid", "ClusterFL", "comm_time_s")
    ]
    assert (faster.less, faster.by) == (True, pytest.approx(214 - 78))


def test_files_tell_what_is_printed(tmp_path, judge):
    judge([0.8, 0.81, 0.82], [0.9, 0.91, 0.92])
    rows = claim_results(tmp_path)
    write(rows, tmp_path)
    text = (tmp_path / "claims.md").read_text()
    assert text == summary(rows) + "\n"
    assert "FeSEM: FeSEM(4) over FedAvg, accuracy_micro | writers (proxy) | -0.1 | " in text
    assert len((tmp_path / "claims.csv").read_text().splitlines()) == len(rows) + 1
    assert read(tmp_path / "nothing.csv") == []


def test_causes_fit_by_pattern(tmp_path):
    file = tmp_path / "causes.csv"
    file.write_text("kind,pattern,cause,shown_by\nrow,FedCPS; T4; *,two models,a run\n")
    assert all_causes(file) == (("row", "FedCPS; T4; *", "two models (a run)"),)
    assert cause("row", ("no", "such", "row")) == ""
