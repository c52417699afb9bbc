"""Fewer bits: quantise, calibrate, load what others quantised, and measure what it costs in quality."""
