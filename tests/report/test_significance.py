"""Comparisons over seeds, against SciPy."""

import csv
import html.parser
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from fljax.metrics.headline import direction, limits
from fljax.report import formats, plots
from fljax.report.columns import decimals
from fljax.report.page import page
from fljax.report.ranks import rank_methods
from fljax.report.significance import compare_scores, holm, interval_of
from fljax.report.summary import save_table

RNG = np.random.default_rng(0)
SEED = RNG.normal(0.8, 0.1, 8)  # what a seed does to all methods
SCORES = {"fedavg": SEED, "ditto": SEED + RNG.normal(0.03, 0.01, 8), "ifca_2": SEED + RNG.normal(0.002, 0.01, 8)}


def test_p_values_and_intervals_are_scipys():
    rows = {row.algorithm: row for row in compare_scores(SCORES)}
    assert rows["fedavg"].difference is None
    assert rows["fedavg"].p_value is rows["fedavg"].p_holm is None
    for name in ("ditto", "ifca_2"):
        row, scores = rows[name], SCORES[name]
        expected = stats.ttest_rel(scores, SEED)
        assert row.p_value == pytest.approx(expected.pvalue, rel=1e-12)
        low, high = expected.confidence_interval(0.95)
        assert row.difference == pytest.approx((float((scores - SEED).mean()), low, high), rel=1e-9)
        assert row.p_wilcoxon == pytest.approx(stats.wilcoxon(scores, SEED).pvalue)
        assert row.deviation == pytest.approx(np.std(scores, ddof=1))
    assert rows["ditto"].p_value < 0.001  # paired; the same scores as two groups would tell nothing
    assert stats.ttest_ind(SCORES["ditto"], SEED).pvalue > 0.1


def test_interval_of_a_mean_is_scipys():
    low, high = stats.t.interval(0.9, 7, SEED.mean(), stats.sem(SEED))
    assert interval_of(SEED, 0.9) == pytest.approx((SEED.mean(), low, high))
    rounded = np.array([SEED[0], SEED[0] * (1 + 2e-7)])  # alike up to float32's rounding
    for values in (SEED[:1], np.repeat(SEED[:1], 3), rounded):  # equal values do not show how far others would vary
        assert interval_of(values) == pytest.approx((SEED[0], np.nan, np.nan), nan_ok=True)


def test_intervals_end_where_a_metric_does():
    near_one, half = [0.99, 1.0, 0.97], [0.1, 0.9, 0.5]
    assert stats.t.interval(0.95, 2, np.mean(near_one), stats.sem(near_one))[1] > 1.02
    assert stats.ttest_rel([1.0, 1.0], [0.0, 0.4]).confidence_interval(0.95).high > 3
    high, low = compare_scores({"near one": near_one, "half": half}, limits=limits("accuracy_macro"))
    assert (high.interval.high, low.interval.low, low.interval.high) == (1, 0, 1)
    assert high.interval.low == pytest.approx(stats.t.interval(0.95, 2, np.mean(near_one), stats.sem(near_one))[0])
    (_, most) = compare_scores({"a": [0.0, 0.4], "b": [1.0, 1.0]}, limits=limits("accuracy_macro"))
    assert most.difference[1:] == (-1, 1)
    assert most.p_value == compare_scores({"a": [0.0, 0.4], "b": [1.0, 1.0]})[1].p_value
    (own,) = compare_scores({"a": [-3.0, -1.0]}, limits=limits("test_loss"))  # a loss of the user's, below 0
    assert own.interval == compare_scores({"a": [-3.0, -1.0]})[0].interval
    for lost in ([SEED[0], np.nan], [np.nan, SEED[0]]):
        assert np.isnan(interval_of(np.array(lost))).all()
    assert interval_of(SEED[:1]).within(0, 1) == pytest.approx((SEED[0], np.nan, np.nan), nan_ok=True)


def test_limits_of_metrics():
    names = (
        "accuracy_macro",
        "val_accuracy_p10",
        "new_f1_macro",
        "accuracy_at_best_val",
        "auc_micro",
        "attack_success",
    )
    assert {limits(name) for name in (*names, "ece_macro")} == {(0.0, 1.0)}
    assert (limits("r2_micro"), limits("ari"), limits("brier_macro")) == ((-np.inf, 1.0), (-0.5, 1.0), (0.0, 2.0))
    assert {limits(name) for name in ("test_loss", "val_loss", "mse_macro", "rounds")} == {(0.0, np.inf)}
    assert {limits(name) for name in ("churn", "missed_class_macro")} == {(-np.inf, np.inf)}


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_what_cannot_be_tested_is_left_out():
    rows = {
        row.algorithm: row
        for row in compare_scores({"a": [0.5, np.nan, 0.7], "b": [0.4, 0.5, 0.6], "c": [0.5, 0.6, 0.7]}, "b")
    }
    assert rows["a"].n_seeds == 2
    assert rows["a"].difference.mean == pytest.approx(0.1)
    assert rows["c"].p_value is None  # the same difference on every seed: no spread to judge it by
    assert rows["c"].difference == pytest.approx((0.1, np.nan, np.nan), nan_ok=True)
    assert rows["c"].n_pairs == 3
    (single,) = compare_scores({"a": [0.5]})
    assert np.isnan(single.deviation)


def test_scores_of_other_clients_are_no_pairs():
    *_, b, c = compare_scores(SCORES | {"apart": SCORES[[*SCORES][1]]}, apart=("apart",))
    assert (c.difference, c.p_value, c.p_holm, c.n_pairs) == (None, None, None, 0)
    assert c.mean == next(row.mean for row in compare_scores(SCORES) if row.algorithm == [*SCORES][1])
    assert b.p_holm == compare_scores(SCORES)[-1].p_holm  # corrected for the tests that were made
    (_, unpaired) = compare_scores({"a": [0.5, np.nan], "b": [np.nan, 0.5]})
    assert (unpaired.difference, unpaired.n_seeds) == (None, 1)


def test_what_float32_rounds_is_no_spread():
    """Scores come as float32: 0.81 - 0.80 and 0.83 - 0.82 differ in their last digits there."""
    base, above = (np.float32(scores) for scores in ([0.80, 0.82, 0.84], [0.81, 0.83, 0.85]))
    assert np.ptp(above.astype(np.float64) - base) > 0  # the premise
    (_, row) = compare_scores({"base": base, "above": above})
    assert row.p_value is row.p_wilcoxon is None
    above[0] += np.float32(0.002)
    (_, row) = compare_scores({"base": base, "above": above})
    assert row.p_value == pytest.approx(stats.ttest_rel(above.astype(np.float64), base.astype(np.float64)).pvalue)
    assert row.p_wilcoxon == pytest.approx(stats.wilcoxon([0.012, 0.01, 0.01]).pvalue)  # ties are ties
    near_zero = np.float32([0.01, 0.03, 0.05])  # a step is as wide as the larger score has it, and R2 may be negative
    (_, row) = compare_scores({"base": near_zero - np.float32(10), "above": near_zero})
    assert row.difference == pytest.approx((10, np.nan, np.nan), nan_ok=True)
    assert row.p_value is None
    for scores, baseline, message in [
        ({}, None, "empty"),
        ({"a": [1.0], "b": [1.0, 2.0]}, None, "same"),
        ({"a": [1.0]}, "b", "b"),
    ]:
        with pytest.raises(ValueError, match=message):
            compare_scores(scores, baseline)


def test_tables_say_the_same_in_every_form(tmp_path):
    compared = compare_scores(SCORES)
    table = formats.table_of(compared, "accuracy_macro", "fedavg")
    markdown = table.markdown.splitlines()
    assert markdown[0].count("|") == markdown[1].count("|") == markdown[2].count("|") == 7
    assert [line.startswith("| ditto | **") for line in markdown] == [False, False, False, True, False]
    latex = table.latex
    assert r"ifca\_2" in latex
    assert r"95 \%" in latex
    assert latex.count(r"\\") == 4
    assert latex.count("&") == 5 * 4
    save_table(tmp_path / "c.csv", formats.as_rows(compared, "accuracy_macro"))
    with (tmp_path / "c.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[1]["p_value"]) == compared[1].p_value
    assert rows[0]["difference"] == rows[0]["pairs"] == ""
    assert rows[1]["pairs"] == "8"
    assert table.text.splitlines()[-1].startswith("ifca_2")


def test_small_errors_have_digits_that_are_not_0():
    errors = compare_scores({"a": [3.21e-5, 3.35e-5], "b": [2.1e-5, 2.2e-5]})
    table = formats.table_of(errors, "mse_macro", "a")
    assert [row[1] for row in table.cells] == ["0.0000328 ± 0.0000010", "0.0000215 ± 0.0000007"]
    assert table.bold == {(1, 1)}  # with four digits they would be equal
    assert table.cells[1][2].startswith("-0.0000113 [-0.00")
    assert formats.digits_of(errors, "accuracy_macro") == formats.digits_of([], "mse_macro") == 4
    assert formats.table_of_settings({"x": errors, "y": errors}, "mse_macro", None).cells[0][1] == table.cells[0][1]


def test_new_clients_and_validation_splits_are_judged_as_the_others():
    names = ("new_accuracy_macro", "new_test_loss", "new_churn", "attack_success", "rounds", "rmse_micro")
    assert [direction(name) for name in names] == [1, -1, 0, -1, -1, -1]
    assert [direction(name) for name in ("val_accuracy_macro", "val_loss", "val_churn")] == [1, -1, 0]


@pytest.mark.parametrize(
    ("measure", "bold_names"),
    [("accuracy_macro", ["more"]), ("r2_p10", ["more"]), ("test_loss", ["less"]), ("churn", [])],
)
def test_the_best_mean_is_bold_whichever_way_is_better(measure, bold_names, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    rows = compare_scores({"lost": [np.nan] * 2, "less": [1.0, 2.0], "more": [2.0, 3.0]})
    table = formats.table_of(rows, measure, "lost")
    for text, mark in ((table.text, "\x1b[1m"), (table.markdown, "**"), (table.latex, r"\textbf")):
        assert [line.strip("| ").split()[0] for line in text.splitlines() if mark in line] == bold_names
    equal_rows = compare_scores({"one": [0.25, 0.75], "other": [0.50001, 0.5], "less": [0.4, 0.5]})  # alike as shown
    lines = formats.table_of(equal_rows, "accuracy_macro", "one").markdown.splitlines()
    assert [line.strip("| ").split()[0] for line in lines if "**" in line] == ["one", "other"]
    rows_of_nan = compare_scores({"lost": [np.nan] * 2})
    assert "**" not in formats.table_of(rows_of_nan, measure, "lost").markdown
    assert formats.table_of(rows_of_nan, measure, "lost").cells[0][1] == "-"
    partial = compare_scores({"one": [0.9, np.nan], "other": [0.5, 0.6]})  # the seed that is missing may have failed
    lines = formats.table_of(partial, "accuracy_macro", "one").markdown.splitlines()
    assert [line.strip("| ").split()[0] for line in lines if "**" in line] == ["other"]


def test_large_numbers_have_the_digits_that_say_something():
    """Of errors in the unit of the targets: six in all, each by itself; one that diverged hides no other."""
    compared = compare_scores({"a": [53134.37890625, 53130.25], "b": [1761.244140625, 1763.5]})
    cells = formats.table_of(compared, "mse_macro", "a").cells
    assert [row[1] for row in cells] == ["53132.3 ± 2.9", "1762.37 ± 1.60"]
    assert cells[1][2].startswith("-51369.9 [-5")
    cells = formats.table_of_settings({"x": compared, "y": compare_scores({"a": [0.5], "b": [2e9]})}, "m", None).cells
    assert [row[1:] for row in cells] == [["53132.3 ± 2.9", "0.5000"], ["1762.37 ± 1.60", "2000000000"]]
    assert [decimals(value) for value in (0.0, 9.99, 99.9, 100.0, 12345.6, 1e9, np.nan)] == [4, 4, 4, 3, 1, 0, 4]


def test_methods_by_data_settings_with_ranks():
    """A method that a data setting lacks has no rank; the best of each column are bold."""
    settings = {
        "iid": compare_scores({"a": [0.5, 0.7], "b": [0.8, 0.8], "c": [0.9, 0.9]}),
        "skewed": compare_scores({"a": [0.3, 0.3], "b": [0.1, 0.3]}),
    }
    ranks = rank_methods(
        {name: {summary.algorithm: summary.mean for summary in rows} for name, rows in settings.items()}, 1
    )
    table = formats.table_of_settings(settings, "accuracy_macro", ranks)
    assert table.header == ["algorithm", "iid", "skewed", "mean\nrank"]
    assert [row[2:] for row in table.cells] == [["0.3000 ± 0.0000", "1.50"], ["0.2000 ± 0.1414", "1.50"], ["-", "-"]]
    assert table.bold == {(2, 1), (0, 2), (0, 3), (1, 3)}
    assert formats.table_of_settings(settings, "churn", None).bold == frozenset()
    rounds = {"iid": compare_scores({"a": [3.0, 4.0], "b": [2.0, np.nan]})}
    assert formats.table_of_settings(rounds, "rounds", None).cells == [["a", "3.5 ± 0.7"], ["b", "2.0"]]
    assert formats.table_of_settings(rounds, "rounds", None).bold == {(0, 1)}  # b did not always get there


class Closed(html.parser.HTMLParser):
    """Checks that every tag is closed in order, and keeps what is linked to."""

    def __init__(self):
        super().__init__()
        self.open, self.linked, self.cells = [], [], []

    def handle_starttag(self, tag, attrs):
        self.linked += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_a_page_is_whole_and_needs_nothing_else(tmp_path):
    picture = tmp_path / "curve.png"
    picture.write_bytes(b"\x89PNG")
    text = page("a < b", {"last": (["m", "n"], [["<x>", "1 & 2"]], ["3 < 4"])}, {"curve": picture}, 'model = "<mlp>"')
    parser = Closed()
    parser.feed(text)
    assert parser.open == []
    assert parser.cells == ["<x>", "1 & 2"]
    assert "<p>3 &lt; 4</p>" in text
    assert all(link.startswith("data:image/png;base64,") for link in parser.linked)
    assert "http" not in text


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_a_browser_shows_the_page(tmp_path, width, height):
    """On a desk and on a phone: text and a curve are seen, and nothing is wider than the window."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no headless browser is installed")
    figure = plots.learning_curves({"a": (np.arange(1, 5), np.linspace(0, 1, 4))})
    plots.save(figure, tmp_path / "curve.png")
    rows = compare_scores(SCORES)
    table = formats.table_of(rows, "accuracy_macro", "fedavg")
    tables = {"last": (table.flat_header, table.cells, ["a note"])}
    text = page("A report", tables, {"curve": tmp_path / "curve.png"}, "x = 1 " * 99)
    measure = "document.body.dataset.seen = document.documentElement.scrollWidth + ' of ' + window.innerWidth"
    file, shot = tmp_path / "report.html", tmp_path / "shot.png"
    file.write_text(text.replace("</body>", f"<script>{measure}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    options += [f"--user-data-dir={tmp_path / 'own'}", f"--screenshot={shot}", "--dump-dom", file.as_uri()]
    process = subprocess.run([browser, *options], capture_output=True, text=True, timeout=120)
    assert "<td>fedavg</td>" in process.stdout
    assert f'data-seen="{width} of {width}"' in process.stdout  # tables and settings scroll within themselves
    pixels = np.asarray(Image.open(shot).convert("L"))
    assert pixels.shape[1] == width
    assert (pixels < 128).mean() > 0.005  # text and a curve


@pytest.mark.parametrize(("scores", "shape"), [(0.5, r"\(\)"), ([[0.5, 0.6]], r"\(1, 2\)")])
def test_scores_that_are_no_row_of_seeds(scores, shape):
    with pytest.raises(ValueError, match=f"scores of 'b' have shape {shape}; give \\(seeds,\\)"):
        compare_scores({"a": [1.0], "b": scores})


@pytest.mark.parametrize("confidence", [95, 1, 0, "0.9"])
def test_a_confidence_that_is_none(confidence):
    with pytest.raises(ValueError, match=r"^confidence="):
        compare_scores({"a": [1.0, 2.0], "b": [2.0, 2.5]}, confidence=confidence)
    with pytest.raises(ValueError, match=r"^confidence="):
        interval_of(SEED, confidence)
