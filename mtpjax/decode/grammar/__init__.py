"""What a text must match: patterns, JSON schemas, and their automata."""

from mtpjax.decode.grammar.compile import compile_json_schema, compile_regex
from mtpjax.decode.grammar.grammar import Grammar

__all__ = ["Grammar", "compile_json_schema", "compile_regex"]
