"""Readers: one file per format of a data set."""
