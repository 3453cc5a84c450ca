"""Tiny tokenizer folders with chat templates, as Hugging Face lays them out."""

import json

from mtpjax.data import train_bpe

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
LLAMA3_TOKENS = (
  "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
)  # fmt: skip

# SmolLM2's own, with its system message.
CHATML = (
  "{% for message in messages %}{% if loop.first and messages[0]['role'] != "
  "'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named "
  "SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' "
  "+ message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
  "{% endif %}"
)
# As Llama 3's: BOS in front, contents stripped, blocks on their own lines.
LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
# As those that think: earlier thoughts are left out, the last are kept.
THINKING = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.last %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
# Plain words, and the EOS behind an answer.
VICUNA = (
  "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
  "{{ 'USER: ' + m.content }}{% else %}{{ ' ASSISTANT: ' + m.content + "
  "eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
  "{{ ' ASSISTANT:' }}{% endif %}"
)

TALK = [
  {"role": "user", "content": "Hi"},
  {"role": "assistant", "content": "Hello"},
  {"role": "user", "content": "Bye"},
  {"role": "assistant", "content": "See you"},
]


def write_folder(
  folder, added=(), vocab_size=280, config=None, generation=None, template=None
):
  """Writes a byte-level BPE tokenizer and what lies beside it.

  Ids: `<s>`, `</s>`, 256 bytes, merges, then from `vocab_size` on `added`.
  """
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / "tokenizer.json"
  texts = ["user assistant system Hello Hi Bye See you, hello world " * 8]
  assert train_bpe(texts, vocab_size, path) == vocab_size
  definition = json.loads(path.read_text())
  definition["added_tokens"] += [
    definition["added_tokens"][0] | {"id": vocab_size + i, "content": name}
    for i, name in enumerate(added)
  ]
  path.write_text(json.dumps(definition))
  for name, content in (
    ("tokenizer_config.json", config),
    ("generation_config.json", generation),
  ):
    if content is not None:
      (folder / name).write_text(json.dumps(content))
  if template is not None:
    (folder / "chat_template.jinja").write_text(template)
  return folder


def write_chatml(folder):
  """Writes a folder as that of SmolLM2's chat model."""
  return write_folder(
    folder,
    (IM_START, IM_END),
    config={
      "bos_token": IM_START, "eos_token": {"content": IM_END},
      "add_bos_token": False, "chat_template": CHATML,
    },
  )  # fmt: skip


def write_llama2(folder):
  """Writes a tokenizer.json in the manner of Llama 2; returns its path.

  Spaces are ▁, one is put before a text, and bytes are tokens.
  """
  vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
  vocabulary += ["▁", "a", "b", "c"]
  model = {
    "type": "BPE", "dropout": None, "unk_token": "<unk>",
    "continuing_subword_prefix": None, "end_of_word_suffix": None,
    "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
    "vocab": {token: i for i, token in enumerate(vocabulary)}, "merges": [],
  }  # fmt: skip
  added = [
    {
      "id": i, "content": token, "single_word": False, "lstrip": False,
      "rstrip": False, "normalized": False, "special": True,
    }
    for i, token in enumerate(vocabulary[:3])
  ]  # fmt: skip
  definition = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": added,
    "normalizer": {
      "type": "Sequence",
      "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
      ],
    },
    "pre_tokenizer": None, "post_processor": None,
    "decoder": {
      "type": "Sequence",
      "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
      ],
    },
    "model": model,
  }  # fmt: skip
  path = folder / "tokenizer.json"
  path.write_text(json.dumps(definition))
  return path
