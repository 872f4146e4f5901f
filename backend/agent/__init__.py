"""The host agent: one per GPU host, owner of every job. HTTP on loopback, bearer token on every route."""
