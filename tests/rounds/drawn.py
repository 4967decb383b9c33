"""Cohorts of any key and round by one program for each federation's shapes and way of drawing."""

import jax

from fljax.rounds.cohort import sample_cohort

draw_cohort = jax.jit(sample_cohort, static_argnums=3)
