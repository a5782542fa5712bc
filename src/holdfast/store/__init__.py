"""The store as programs use it: opening one, threads and their checkpoints, identities."""
