"""Backups: repositories of packs and manifests, and restoring from them.

- `storage`: the objects of a repository, in a directory or a bucket; `format`: their content;
- `packs`: writes and reads blocks of rows; `repository`: manifests, locks and pages of lines;
- `capture`: reads lines as of one moment; `creator`: makes a backup of them; `reused_packs`: checks what it reuses;
- `line_rows`: the rows of a line in a backup; `line_history`: those that it had at a moment between backups;
- `repository_repairer`: rebuilds what is damaged, and lists what is lost;
- `reader`: a backup as a store that can only be read; `checker`, `restorer`, `drill`: what uses it;
- `retention`, `pruner`: which backups are retained, and removing what the others needed.
"""
