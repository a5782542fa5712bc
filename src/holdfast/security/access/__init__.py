"""Who may do what: identities, grants, roles and policies, and the guard that asks them."""
