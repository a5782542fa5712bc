"""Operations on a whole store: prune, verify, repair, archive, scheduled jobs, the doctor."""
