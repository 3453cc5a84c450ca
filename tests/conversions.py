"""What a conversion does apart from the weights, for tests of formats."""

import types

from mtpjax import data
from mtpjax.checkpoint.convert import Target


def tokenizer_of(source, path):
  """Files that come along, as bytes by name, and the fields that follow."""
  files = data.companions.published_files(source.tokenizer)
  folder = path if path.is_dir() else path.parent
  fields = data.companions.document_fields(
    files, folder, source.model.vocab_size
  )
  return files, fields


def target(model, params, dtype="float32", most=10**9, name="", length=64):
  """What a format is given to write: parameters, and no tokenizer."""
  return Target(
    model, params, dtype, length,
    {"bos_token_id": None, "eos_token_id": None}, name, most,
    lambda n_values: lambda n_written: None,
  )  # fmt: skip


def write_medusa(folder, heads, params, name, dtype):
  """Medusa heads alone, whatever model they are on."""
  from mtpjax.checkpoint.convert.formats import medusa

  model = types.SimpleNamespace(heads=heads)
  return medusa.write(
    folder, target(model, {"heads": params}, dtype, name=name)
  )
