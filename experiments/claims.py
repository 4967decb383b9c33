"""Every "X beats Y" of the five papers: paired over seeds, with an interval, and whether it holds.

    python experiments/claims.py            # counts, and what fails
    python experiments/claims.py --rows     # and every claim
    python experiments/claims.py --write    # results/claims.csv and claims.md as well

The difference of a claim is that of two runs on the same clients with the same seed; its interval is Student's, 95 %,
over the seeds. A claim holds where the interval is above what the claim allows (zero; for "no worse than" a little
below), fails where it is below, and is undecided between, or with fewer than two seeds. A lead or a loss of less than a
hundredth that is the same on every seed, such as one test example on each, is undecided too: such differences have no
spread to make an interval of. Counted are whole runs. Which scale they had is beside each: what fails at smoke scale is
no finding about the paper's own.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import marked
import numpy as np
from causes import cause
from claims_list import AT_PAPER_SIZE, Claim, claims
from outcomes import RESULTS, file_of, is_whole, read
from scipy.stats import t as student

VERDICTS = ("holds", "fails", "undecided", "not run")

SAME, FEW = 0.005, 0.01
"""Differences are one number where they deviate by no more than this share of it; that is a few test examples, the step
in which accuracies move, where it is below this share of all."""


class ClaimResult(NamedTuple):
    """What the runs say of a claim."""

    claim: Claim
    scale: str  # "paper", "smoke" or ""
    differences: tuple[float, ...]  # a seed each, positive is better
    cause: str = ""

    @property
    def mean(self) -> float:
        """The mean of the differences; NaN if there are none."""
        return float(np.mean(self.differences)) if self.differences else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean over seeds; infinite for fewer than two seeds."""
        n = len(self.differences)
        if n < 2:
            return -np.inf, np.inf
        half = float(student.ppf(0.975, n - 1)) * float(np.std(self.differences, ddof=1)) / np.sqrt(n)
        return self.mean - half, self.mean + half

    @property
    def is_one_number(self) -> bool:
        """Whether all differences are one number, within what `SAME` allows, and that is a few test examples."""
        least_lead = FEW * (100 if self.claim.metric.endswith("_pct") else 1)
        is_alike = len(self.differences) > 1 and float(np.std(self.differences, ddof=1)) <= SAME * abs(self.mean)
        return is_alike and abs(self.mean) < least_lead

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if not self.differences:
            return "not run"
        if self.is_one_number and self.claim.at_least >= 0:  # "no worse than" needs no spread
            return "undecided"
        low, high = self.interval
        if low > self.claim.at_least:
            return "holds"
        return "fails" if high < self.claim.at_least else "undecided"


def claim_result(claim: Claim, results: Path = RESULTS) -> ClaimResult:
    """The claim's differences, of whole runs of the paper's size where there are pairs of them, else of small ones."""
    for small in (False, True):
        small_dataset = claim.dataset
        dataset = small_dataset if small else AT_PAPER_SIZE.get((claim.paper, small_dataset), small_dataset)
        lines = [
            line
            for line in read(file_of(results, claim.paper, claim.table, dataset, small))
            if (line["setting"], line["metric"]) == (claim.setting, claim.metric) and is_whole(line["settings"])
        ]
        ours, theirs = ({r["seed"]: float(r["value"]) for r in lines if r["method"] == m} for m in claim[5:7])
        sign = -1 if claim.less else 1
        differences = tuple(sign * (ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys()))
        if differences:
            return ClaimResult(
                claim, "smoke" if small else "paper", differences, cause("claim", claim[:1] + claim[2:8])
            )
    return ClaimResult(claim, "", ())


def claim_results(results: Path = RESULTS) -> list[ClaimResult]:
    """The result of every claim."""
    return [claim_result(claim, results) for claim in claims()]


def counted(rows: Sequence[ClaimResult]) -> str:
    """A table in Markdown: how many claims of each paper hold, fail and so on."""
    lines = ["| paper | " + " | ".join(VERDICTS) + " | claims |", "|---|" + "--:|" * (len(VERDICTS) + 1)]
    for paper in dict.fromkeys(row.claim.paper for row in rows):
        counts = Counter(row.verdict for row in rows if row.claim.paper == paper)
        lines.append(
            f"| {paper} | " + " | ".join(str(counts[v] or "") for v in VERDICTS) + f" | {sum(counts.values())} |"
        )
    return "\n".join(lines)


def summary(rows: Sequence[ClaimResult]) -> str:
    """The table of `counted`, a table of the claims that fail, and their causes by number, since many have the same."""
    lines, failed = [counted(rows)], [row for row in rows if row.verdict == "fails"]
    causes = list(dict.fromkeys(row.cause for row in failed if row.cause))
    if failed:
        lines += ["", "| fails | setting | by | 95 % | seeds | scale | cause |", "|---|---|--:|---|--:|---|---|"]
    for row in failed:
        low, high = row.interval
        name = f"{row.claim.paper}: {row.claim.ours} over {row.claim.rival}, {row.claim.metric}"
        numbers = f"{row.mean:.4g} | {low:.4g} to {high:.4g} | {len(row.differences)}"
        number = causes.index(row.cause) + 1 if row.cause else ""
        lines.append(f"| {name} | {row.claim.setting} | {numbers} | {row.scale} | {number} |")
    if causes:
        lines += ["", *(f"{number}. {text}" for number, text in enumerate(causes, 1))]
    return "\n".join(lines)


COLUMNS = ("paper", "said", "table", "dataset", "setting", "ours", "rival", "metric", "published", "difference")
MORE = ("low", "high", "seeds", "scale", "verdict", "cause")


def write(rows: Sequence[ClaimResult], folder: Path) -> None:
    """``claims.csv``, a line a claim, and ``claims.md``, the summary."""
    with (folder / "claims.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*COLUMNS, *MORE))
        for row in rows:
            low, high = row.interval
            claim, margin = row.claim, "" if row.claim.by is None else f"{row.claim.by:g}"
            texts = [f"{value:.4g}" if np.isfinite(value) else "" for value in (row.mean, low, high)]
            claim_cells = (claim.paper, claim.said, claim.table, claim.dataset, claim.setting, claim.ours, claim.rival)
            run_cells = (*texts, len(row.differences), row.scale, row.verdict, row.cause)
            writer.writerow((*claim_cells, claim.metric, margin, *run_cells))
    (folder / "claims.md").write_text(summary(rows) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every claim")
    parser.add_argument("--write", action="store_true", help="write claims.csv and .md among the results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the experiments' lines")
    arguments = parser.parse_args()
    rows = claim_results(arguments.results)
    for row in rows if arguments.rows else ():
        low, high = row.interval
        claim = " | ".join(map(str, row.claim[:8]))
        print(row.verdict, claim, f"{row.mean:.4g} ({low:.4g} to {high:.4g})", row.scale, sep=" | ")
    print(summary(rows))
    if arguments.write:
        write(rows, arguments.results)
    if arguments.write and arguments.results == RESULTS:
        marked.show("experiments/claims.py", counted(rows))


if __name__ == "__main__":
    main()
