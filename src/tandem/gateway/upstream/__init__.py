"""HTTP/1.1 to the replicas, transport to transport. Knows no model, no policy and no stream format."""
