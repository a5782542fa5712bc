"""The HTTP API: a store, served to programs and to browsers."""
