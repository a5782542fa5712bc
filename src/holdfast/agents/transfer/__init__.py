"""Transfers of a conversation from one agent to another."""
