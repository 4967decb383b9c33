"""One file per format that a data set may come in."""
