"""Cohorts of a run's key for cohorts; `draw_cohort`: by one program for each federation's shapes and way of drawing."""

import jax
import numpy as np

from fljax.keys import descend
from fljax.rounds.cohort import CohortKeys, cohort_of


def sample_cohort(key, round, federation, draw, dropout):
    return cohort_of(CohortKeys(*descend(key, round, np.arange(3))), round, federation, draw, dropout)


draw_cohort = jax.jit(sample_cohort, static_argnums=3)
