"""Erasing the data of one person, and exporting it."""
