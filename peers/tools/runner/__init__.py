"""Runs a light origin, peers and a client on 127.0.0.1, and measures the CPU time of the peers.

Used by run-case, figure, mem-idle, starve and compression. The modules, from the bottom up:
`settings`, `process`, `lock`, `cases`, `client`, `programs`, `checks`, `windows`, `plan`, `report`.
"""
