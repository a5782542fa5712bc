"""The doctor: checks of the installation, the settings and the store, each with its remedy."""
