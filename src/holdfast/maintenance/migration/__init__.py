"""Migration of all states of a store from one version of a schema to another."""
