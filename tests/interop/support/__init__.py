"""What the interop tests share: millrace itself, origins, certificates, and a plain client."""

import pathlib

PROJECT = pathlib.Path(__file__).resolve().parents[3]
