"""Typed documents that cross a border: CLI `--json`, the agent's HTTP API, the store and the pages share them.

engine   what can be launched, and how a launch goes
load     a load test: what is asked, each request's record, what comes out
run      stored runs: rows, comparison, exchange
host     the machine: doctor, telemetry, the agent's own status
"""
