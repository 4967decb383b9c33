"""Sweeps: points of hyperparameters x seeds in one program, and searches with files, halving and a table."""

from fljax.run.sweep.points import draw as draw
from fljax.run.sweep.points import grid as grid
from fljax.run.sweep.points import log_spaced as log_spaced
from fljax.run.sweep.points import log_uniform as log_uniform
from fljax.run.sweep.points import spaced as spaced
from fljax.run.sweep.points import stack as stack
from fljax.run.sweep.points import uniform as uniform
from fljax.run.sweep.search import on_validation as on_validation
from fljax.run.sweep.search import over_settings as over_settings
from fljax.run.sweep.search import search as search
from fljax.run.sweep.table import best as best
from fljax.run.sweep.table import by_point as by_point
from fljax.run.sweep.table import tidy as tidy
from fljax.run.sweep.whole import coalitions as coalitions
from fljax.run.sweep.whole import sweep as sweep
