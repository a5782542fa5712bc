"""What tests of Holdfast's stores are made of, shipped for whoever writes a backend.

- `holdfast.testing.conformance`: the suite that tells whether a backend keeps the promises of its port.
- `holdfast.testing.model`: the port in its plainest form, to compare with.
- `holdfast.testing.powercut`: what a power cut may leave of an SQLite store, at any point of a recorded run.
- `holdfast.testing.vfs_faults`: disks that are full or failing, for SQLite stores.

`holdfast.backends.wrappers` has faults and counters for any store. Only the suite needs pytest and hypothesis, which
the extra `holdfast[testing]` brings.
"""
