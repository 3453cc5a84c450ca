"""`mtpjax export`: a work directory becomes a folder of another format."""

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import Any

import rich.console

from mtpjax import api
from mtpjax import config as config_lib
from mtpjax.checkpoint import WorkDir
from mtpjax.checkpoint.convert import FORMATS, Target
from mtpjax.data import byte_vocabulary
from mtpjax.data.companions import TOKENIZER, read_files
from mtpjax.progress import Progress, print_line
from mtpjax.staging import new_folder


def run(
  kind: str,
  workdir: str | pathlib.Path,
  folder: str | pathlib.Path,
  console: rich.console.Console,
  next_only: bool = False,
  dtype: str = "",
  max_shard_mb: int = 5000,
  step: int | None = None,
  base: str = "",
) -> dict[str, Any]:
  """Writes a checkpoint and its tokenizer in another format.

  Extra heads are written as their kind is published. The folder appears
  complete or not at all.

  Args:
    kind: one of `FORMATS`.
    workdir: of `mtpjax train` or `mtpjax convert`.
    folder: must not exist yet, or be empty.
    console: gets a line of summary.
    next_only: leave the extra heads out.
    dtype: "float32" or "bfloat16"; empty takes that of the parameters.
    max_shard_mb: the most MB (10^6 bytes) of a file; a larger tensor has a
      file of its own.
    step: the checkpoint; None takes the latest sound one.
    base: the model that heads were trained on; see `api.load`.

  Returns:
    {"folder", "params", "architecture", "dtype", "secs"}.

  Raises:
    UserError: the folder exists; no such checkpoint; no published architecture
      or format has the model's features.
  """
  began = time.perf_counter()
  format = FORMATS[kind]
  assert format.write is not None
  with contextlib.ExitStack() as stack:
    part = stack.enter_context(new_folder(folder, "config.json"))
    config = WorkDir(workdir).load_config()
    with_heads = bool(config.heads.n_extra) and not next_only
    if with_heads:
      format.check(config.heads, str(workdir))
    with Progress(console, f"loading {workdir}"):
      loaded = api.load(workdir, step, base=base)
    ids = _special_ids(loaded)
    _write_companions(part, loaded, ids)

    def progress(n_values: int) -> Callable[[int], None]:
      text = f"writing {folder}, values"
      return stack.enter_context(Progress(console, text, n_values)).update

    parts = ("lm", "heads") if with_heads else ("lm",)
    dtype = dtype or config.model.param_dtype
    written = format.write(
      part,
      Target(
        loaded.model, {name: loaded.params[name] for name in parts}, dtype,
        loaded.max_length, ids, str(folder), max_shard_mb * 10**6, progress,
      ),
    )  # fmt: skip
  figures = {
    "folder": str(folder),
    "params": written.params,
    "architecture": written.architecture,
    "dtype": dtype,
    "secs": time.perf_counter() - began,
  }
  line = (
    f"{folder}: {written.architecture}, {written.params:,} parameters in "
    f"{dtype}, exported in {figures['secs']:.1f} s"
  )
  if written.note:
    line += f"; {written.note}"
  print_line(console, line)
  return figures


def _special_ids(loaded: api.Loaded) -> dict[str, Any]:
  """Returns BOS and EOS as config.json and generation_config.json have them."""
  eos = list(loaded.tokenizer.eos_ids)
  return {
    "bos_token_id": loaded.tokenizer.bos_id,
    "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
  }


def _write_companions(
  folder: pathlib.Path, loaded: api.Loaded, ids: dict[str, Any]
) -> None:
  """Writes what lies beside config.json and the weights."""
  for name, raw in read_files(loaded.workdir).items():
    (folder / name).write_bytes(raw)
  tokenizer = folder / TOKENIZER
  if not tokenizer.exists():  # the ids are bytes, which need no file here
    config_lib.write_json(tokenizer, byte_vocabulary.definition())
  generation = folder / "generation_config.json"
  if not generation.exists():
    config_lib.write_json(generation, ids)
  settings = folder / "tokenizer_config.json"
  if not settings.exists():
    # Without it transformers guesses a class, with rules of its own, from the
    # model's family.
    tokens = _special_tokens(tokenizer, ids)
    config_lib.write_json(
      settings,
      {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": loaded.max_length,
      }
      | tokens,
    )


def _special_tokens(file: pathlib.Path, ids: dict[str, Any]) -> dict[str, Any]:
  import tokenizers

  tokenizer = tokenizers.Tokenizer.from_file(str(file))
  tokens: dict[str, Any] = {}
  for name, value in ids.items():
    first = value[0] if isinstance(value, list) else value
    if first is not None:
      tokens[name.removesuffix("_id")] = tokenizer.id_to_token(first)
  return tokens
