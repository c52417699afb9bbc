"""Who starts and stops replicas: this machine, or a cluster. One implementation a file."""
