"""Rows kept as objects that are only ever created: for object storage, and for directories of files.

A shard is one line of one tenant. Its log is a chain of objects, each under the next free name: creating that name is
what makes a batch. So a step and its condition are one object. Every so often a piece of the log is folded into one
object with an index, and what was folded is deleted after a time of grace.

- `object_storage`: what is needed of a storage, with its timeouts and retries;
- `object_names`, `formats`: the names of objects, and their content;
- `shard_view`: what a process has read of a shard;
- `shard_log`: reading and writing a shard; `bodies` its row contents, `entries` what is written, `staleness` when a
  view is read again, `rebuild` how;
- `compaction`: folding a piece of the log into one object with an index;
- `writer`: batches on one shard, in groups; `transactions`: batches on several;
- `query`: reads;
- `garbage_collection`: deletion of what was folded, and the checks; `salvage`: reading a damaged shard;
- `backend`: the store made of these, `local` on a directory, `cloud` on object storage.
"""
