"""Scheduled jobs: their records, types and schedules, and the runner."""
