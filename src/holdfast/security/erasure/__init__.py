"""Erasing the data of one person: whose data it is, the ledger of erasures, and their certificates."""
