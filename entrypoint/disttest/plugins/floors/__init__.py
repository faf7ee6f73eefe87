"""Turns a green run red that has done less than its options demand: ``--min-tests``, ``--expect``, ``--strict``, …"""
