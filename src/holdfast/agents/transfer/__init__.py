"""One agent hands its conversation to another."""
