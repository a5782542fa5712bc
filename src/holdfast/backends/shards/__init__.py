"""Rows kept as objects that are only ever created: for object storage, and for directories of files.

A shard is one line of one tenant. Its log is a chain of objects, each under the next free name: creating that name is
what makes a batch. So a step and its condition are one object. Every so often a piece of the log is folded into one
object with an index, and what was folded is deleted after a time of grace.

- `blobs` what is needed of a storage, and patience with it;
- `naming` which names objects have;
- `formats` what is in them;
- `view` what a process knows of a shard;
- `folding` what a fold is made of;
- `core` reading and writing a shard, `bodies` what rows hold, `entries` what is written, `stale` when to begin anew;
- `lanes` batches about one shard, in groups, and `transactions` about several;
- `answers` queries;
- `tidying` what deletes, and what checks;
- `backend` the store that all this makes up.
"""
