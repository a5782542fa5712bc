"""Rows stored as objects that are only ever created: for object storage, and for directories of files.

A shard is one line of one tenant. Its log is a chain of objects, each under the next free name: creating that object
commits a batch. So a step and its condition are one object. An *epoch* is 32 entries of the log; at its end, it is
folded into one object with an index, and its entries are deleted after a grace period. A shard that was deleted and
written again has a new *generation*, with a first object (`birth`) and epochs of its own.

- `object_storage`: the interface of a storage, with timeouts and retries;
- `object_names`, `formats`: the names of objects, and their content;
- `shard_view`: the state of a shard in memory, and drafts of entries;
- `shard_log`: reads and writes shards, and the bodies of rows;
- `compaction`: folds an epoch into one object with an index;
- `writer`: batches on one shard, in groups; `transactions`: batches on several;
- `query`: reads;
- `garbage_collection`: deletes folded objects, and checks shards; `salvage` and `rebuild`: damaged shards;
- `backend`: the store; `local` in a directory, `cloud` in object storage.
"""
