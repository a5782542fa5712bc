"""Export of threads into files, and import from them."""
