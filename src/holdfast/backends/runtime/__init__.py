"""The runtime of all backends: coroutines for sync and async callers, group commit, threads, locks, forks."""
