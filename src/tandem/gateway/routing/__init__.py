"""Where each request goes: one policy a file, all with one signature, and what they learn from."""
