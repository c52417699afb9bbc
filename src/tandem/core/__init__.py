"""The vocabulary every other package speaks: requests, sampling parameters, finish reasons, errors, the clock.

Standard library only; it knows no wire format, no configuration and no device.
"""
