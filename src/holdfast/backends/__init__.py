"""Stores of rows: the port, the registry of URL schemes, and one module for each kind of store."""
