"""The web interface: pages that are rendered on the server, and made lively by small modules of ours."""
