"""One model on one device: a front process (HTTP, text) and a core process (schedule, run, update)."""
