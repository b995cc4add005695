"""Validates TOML documents against a JSON schema, with Debian's jsonschema: for /usr/bin/python3.

Standard input is a JSON object: `schema`, and `documents`, a list of texts. Standard output is a
JSON list with, for each document, null or why it does not validate."""

import json
import sys
import tomllib

import jsonschema

asked = json.load(sys.stdin)
jsonschema.Draft202012Validator.check_schema(asked["schema"])
validator = jsonschema.Draft202012Validator(asked["schema"])


def why_not(text):
    error = jsonschema.exceptions.best_match(validator.iter_errors(tomllib.loads(text)))
    return error and f"{error.json_path}: {error.message}"


json.dump([why_not(text) for text in asked["documents"]], sys.stdout)
