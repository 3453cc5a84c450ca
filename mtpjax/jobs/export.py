"""`mtpjax export`: a work directory becomes a folder of another format."""

import pathlib
import time
from typing import Any

import jax
import rich.console

from mtpjax import api
from mtpjax import config as config_lib
from mtpjax.checkpoint import WorkDir
from mtpjax.checkpoint.convert import families, write_medusa
from mtpjax.checkpoint.convert.companions import copy_files
from mtpjax.checkpoint.convert.export import write_hf_weights
from mtpjax.errors import UserError
from mtpjax.progress import Progress, print_line
from mtpjax.staging import new_folder


def run(
  workdir: str | pathlib.Path,
  folder: str | pathlib.Path,
  console: rich.console.Console,
  next_only: bool = False,
  dtype: str = "",
  max_shard_mb: int = 5000,
  step: int | None = None,
  base: str = "",
) -> dict[str, Any]:
  """Writes config.json, safetensors and tokenizer as Hugging Face has them.

  Extra heads of Medusa's own wiring go to the folder `medusa` in it, as Medusa
  publishes them. Sequential heads become further layers of the model, as
  DeepSeek-V3 publishes them, their number num_nextn_predict_layers. The folder
  appears complete or not at all.

  Args:
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
    {"folder", "params", "architecture", "dtype", "has_tokenizer", "secs"}.

  Raises:
    UserError: the folder exists; no such checkpoint; no published architecture
      or format has the model's features.
  """
  began = time.perf_counter()
  with new_folder(folder, "config.json") as part:
    config = WorkDir(workdir).load_config()
    with_heads = bool(config.heads.n_extra) and not next_only
    if with_heads:
      _require_published(config.heads, workdir)
    with Progress(console, f"loading {workdir}"):
      loaded = api.load(workdir, step, base=base)
    model = loaded.model
    dtype = dtype or config.model.param_dtype
    values = families.write_values(
      model.config, model.trunk_layers, dtype, loaded.max_length
    )
    is_chain = with_heads and model.is_chain
    if is_chain:
      values["num_nextn_predict_layers"] = config.heads.n_extra
    ids = _special_ids(loaded)
    config_lib.write_json(part / "config.json", values | ids)
    has_tokenizer = config.data.tokenizer != "bytes"
    _write_companions(part, loaded, ids, has_tokenizer)
    chain_params = loaded.params["heads"] if is_chain else None
    n_values = None
    if not is_chain:  # which is written with copies of what it shares
      n_values = sum(leaf.size for leaf in jax.tree.leaves(loaded.params["lm"]))
    with Progress(console, f"writing {folder}, values", n_values) as progress:
      n_params = write_hf_weights(
        part, model.config, loaded.params["lm"], dtype, max_shard_mb * 10**6,
        chain_params, progress.update,
      )  # fmt: skip
    if with_heads and not is_chain:
      write_medusa(
        part / "medusa", config.heads, loaded.params["heads"], str(folder),
        dtype,
      )  # fmt: skip
  figures = {
    "folder": str(folder),
    "params": n_params,
    "architecture": values["architectures"][0],
    "dtype": dtype,
    "has_tokenizer": has_tokenizer,
    "secs": time.perf_counter() - began,
  }
  kind = config.heads.kind if with_heads else ""
  print_line(console, _summary(figures, kind))
  return figures


def _require_published(
  heads: config_lib.Heads, workdir: str | pathlib.Path
) -> None:
  published = (("medusa", "normed"), ("sequential", "last"))
  if (heads.kind, heads.tap) not in published:
    raise UserError(
      f"{workdir}: has {heads.n_extra} extra heads of kind {heads.kind} with "
      f"tap {heads.tap}, which no published format holds; give --next-only to "
      "leave them out"
    )


def _special_ids(loaded: api.Loaded) -> dict[str, Any]:
  """Returns BOS and EOS as config.json and generation_config.json have them."""
  eos = list(loaded.tokenizer.eos_ids)
  return {
    "bos_token_id": loaded.tokenizer.bos_id,
    "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
  }


def _write_companions(
  folder: pathlib.Path,
  loaded: api.Loaded,
  ids: dict[str, Any],
  has_tokenizer: bool,
) -> None:
  """Writes what lies beside config.json and the weights."""
  copy_files(loaded.workdir, folder)
  generation = folder / "generation_config.json"
  if not generation.exists():
    config_lib.write_json(generation, ids)
  settings = folder / "tokenizer_config.json"
  if has_tokenizer and not settings.exists():
    # Without it transformers guesses a class, with rules of its own, from the
    # model's family.
    tokens = _special_tokens(folder / "tokenizer.json", ids)
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


def _summary(figures: dict[str, Any], kind: str) -> str:
  line = (
    f"{figures['folder']}: {figures['architecture']}, {figures['params']:,} "
    f"parameters in {figures['dtype']}, exported in {figures['secs']:.1f} s"
  )
  if kind == "medusa":
    line += "; Medusa heads in medusa/"
  elif kind == "sequential":
    line += "; sequential heads as the last layers"
  if not figures["has_tokenizer"]:
    line += "; no tokenizer files: the ids are bytes, 256 begins, 257 ends"
  return line
