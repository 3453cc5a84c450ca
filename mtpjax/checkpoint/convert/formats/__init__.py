"""The formats that are read and written, a file each.

`mtpjax convert` and `mtpjax export` have a subcommand for each line.
"""

from mtpjax.checkpoint.convert.format import Format
from mtpjax.checkpoint.convert.formats import gguf, hf, medusa, meta

FORMATS: dict[str, Format] = {
  "hf": hf.FORMAT,
  "gguf": gguf.FORMAT,
  "meta": meta.FORMAT,
  "medusa": medusa.FORMAT,
}
