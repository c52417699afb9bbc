"""Metrics and logs: their names and registries. It knows no component; components hand it numbers and ids."""
