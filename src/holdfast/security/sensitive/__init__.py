"""Detection and protection of sensitive data: credentials and personal data in what is about to be stored."""
