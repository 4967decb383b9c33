"""Data of a user's own: arrays, tables, files and folders of images or texts, as a federation or as new examples."""
