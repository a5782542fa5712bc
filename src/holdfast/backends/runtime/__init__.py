"""What all backends run on: coroutines for sync and async callers, group commit, threads, locks, forks."""
