"""Settings for the whole test suite."""

import os

from hypothesis import HealthCheck, settings

# No deadlines: a shared runner may pause for longer than any useful limit.
# In CI the examples are the same on every run, so that a red run is red again; a developer's
# machine draws new ones each time and keeps what it found in .hypothesis/.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "torture",
    deadline=None,
    max_examples=20_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
