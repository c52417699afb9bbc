"""Traffic: recorded traces, datasets, synthetic shapes and arrival processes. Knows neither engines nor sockets."""
