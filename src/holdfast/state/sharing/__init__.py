"""Ways to work together over a store: topics, requests, pipelines and documents."""
