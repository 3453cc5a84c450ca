"""Tokenizers: plain bytes, or any `tokenizer.json`, behind one interface."""

import pathlib
from collections.abc import Callable, Sequence

from mtpjax.data.byte_tokenizer import ByteTokenizer
from mtpjax.data.companions import (
  Companions,
  read_companions,
)
from mtpjax.data.hf_tokenizer import HfTokenizer
from mtpjax.data.tokenizer import Tokenizer
from mtpjax.errors import UserError

# Tokenizers without files, by name; others are given as a path.
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {"bytes": ByteTokenizer}


def tokenizer_of_run(spec: str, folder: pathlib.Path) -> str:
  """Returns what `load_tokenizer` loads for a run.

  Args:
    spec: `data.tokenizer` of the run.
    folder: where `Tokenizer.save` has put its files; what else lies beside
      them belongs to it.
  """
  return spec if spec in TOKENIZERS else str(folder)


def load_tokenizer(
  spec: str, bos_token: str = "", eos_tokens: Sequence[str] = ()
) -> Tokenizer:
  """Loads a tokenizer.

  Args:
    spec: `bytes`, or the path of a `tokenizer.json`, which is read alone, or
      of a folder with one, as Hugging Face publishes it: what lies beside it
      (`tokenizer_config.json`, `special_tokens_map.json`,
      `generation_config.json`, `chat_template.jinja` and, for EOS, the
      model's `config.json`) is read too.
    bos_token: the BOS token; empty takes what the folder says, and if it does
      not looks the usual names up.
    eos_tokens: the same for all EOS tokens; the first is the one written.

  Returns:
    The tokenizer.

  Raises:
    UserError: no such file, not a tokenizer, a damaged file beside it, or a
      token it does not have.
  """
  if spec in TOKENIZERS:
    if bos_token or eos_tokens:
      raise UserError(
        f"data.tokenizer: {spec!r} has its own BOS and EOS, not "
        f"{', '.join(filter(None, (bos_token, *eos_tokens)))}; leave "
        "--data.bos-token and --data.eos-tokens empty"
      )
    return TOKENIZERS[spec]()
  path = pathlib.Path(spec).expanduser()
  folder = path if path.is_dir() else None
  if folder is not None:
    path = folder / "tokenizer.json"
  if not path.is_file():
    raise UserError(
      f"data.tokenizer: {spec!r} is no such file; give `bytes` or the path of "
      "a tokenizer.json (`mtpjax tokenizer` trains one)"
    )
  companions = Companions() if folder is None else read_companions(folder)
  try:
    return HfTokenizer(path, companions, bos_token, eos_tokens)
  except UserError:
    raise
  # The library's Rust side raises plain Exception.
  except Exception as error:
    reason = str(error).partition("\n")[0]
    raise UserError(
      f"data.tokenizer: {spec!r} is not a tokenizer.json ({reason}); give "
      "one that the `tokenizers` library can load"
    ) from error
