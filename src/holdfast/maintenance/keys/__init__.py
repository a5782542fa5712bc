"""The keys of an encrypted store: rotation, encrypting anew, and destruction."""
