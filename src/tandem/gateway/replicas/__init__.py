"""The engines behind the gateway: what each kind needs, and how each one is."""
