"""Validates TOML documents against a JSON schema. Run by /usr/bin/python3, which has Debian's
jsonschema.

Standard input is a JSON object: `schema`, and `documents`, a list of texts. Standard output is a
JSON list, which has null for each valid document and an error for each other one."""

import json
import sys
import tomllib

import jsonschema

request = json.load(sys.stdin)
jsonschema.Draft202012Validator.check_schema(request["schema"])
validator = jsonschema.Draft202012Validator(request["schema"])


def why_not(text):
    error = jsonschema.exceptions.best_match(validator.iter_errors(tomllib.loads(text)))
    return error and f"{error.json_path}: {error.message}"


json.dump([why_not(text) for text in request["documents"]], sys.stdout)
