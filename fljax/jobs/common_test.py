"""`--common-test`: the partition splits the training examples alone; all clients are tested on the test examples."""

from collections.abc import Callable

from fljax.catalogue.words import shown
from fljax.data.common_tests import training_on_tests, with_common_test
from fljax.data.users import UserExamples
from fljax.jobs.job import Job
from fljax.types import Examples, Federation

Pool = Examples | UserExamples
_UNUSED = {
    "test_fraction": "no client has test examples of its own",
    "n_public": "the server has no public examples",
}
"""Settings of partitions that have no effect on clients with one test set -> why."""


def check_common_test(job: Job) -> None:
    """Raises ValueError if the clients of the job cannot have one test set: their own tests change over the rounds, or
    are made of the data set's test examples."""
    run, fraction = job.run, job.schema["partition"].get("test_fraction")
    if run.drift != "none":
        raise ValueError(
            f"--common-test with --drift {run.drift}: it changes the clients' tests; leave one of them out"
        )
    if run.partition == "natural" or fraction is None:
        names = "data" if run.data is not None else "data set"
        whose = f"the clients that the {names} names" if run.partition == "natural" else "clients"
        reason = "" if run.partition == "natural" else ", as it has no test_fraction"
        raise ValueError(
            f"--common-test with --partition {run.partition}: the test examples go to {whose}{reason}; choose a "
            "partition of the training examples alone, such as iid or dirichlet"
        )
    for name, nobody in _UNUSED.items():
        setting, value = job.schema["partition"].get(name), job.settings["partition"].get(name)
        if setting is not None and value != setting.default:
            option = shown(f"partition.{name}", [str(value)])
            raise ValueError(f"{option}: with --common-test {nobody}; leave one of them out")


def with_test_set(deal: Callable[[Pool, Pool], Federation], train: Pool, test: Pool) -> Federation:
    """The federation of ``deal(train, nothing)``: clients train on all their examples and are tested on ``test``.

    The server has no public data: it would be the test set.
    """
    nothing = Examples(test.x[:0], test.y[:0])
    federation = training_on_tests(deal(train, nothing))
    return with_common_test(federation._replace(public=None), Examples(test.x, test.y))
