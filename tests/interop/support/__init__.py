"""Helpers of the interop tests: millrace, origins, certificates and a plain client."""

import pathlib

PROJECT = pathlib.Path(__file__).resolve().parents[3]
