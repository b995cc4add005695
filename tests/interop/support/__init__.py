"""Shared by the interop tests: millrace itself, origins, certificates and a plain client."""

import pathlib

PROJECT = pathlib.Path(__file__).resolve().parents[3]
