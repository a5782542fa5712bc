"""What each code means: of errors, of findings of verify, of checks of the doctor."""
