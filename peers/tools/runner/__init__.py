"""Runs a light origin, peers and a client on 127.0.0.1, and measures the CPU time of the peers.

Used by run-case, figure, mem-idle and starve. The modules, from the bottom up: `settings`,
`process`, `lock`, `cases`, `client`, `checks`, `windows`, `plan`, `report`.
"""
